"""Exhibits of [RM, arXiv 2401.06080]: label strength, reward models, their policies, MetaRM rounds.

Given labels are those of the data, right labels are gold's. The judge of figure 8, GPT-4 in the
paper, is one that was asked about the validation pairs (`judge_preferences.splits`); where none
was, it is the gold scorer of the synthetic world.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

import torch

from trimtab.models.reporting.kit.artifacts import ReportInputError, Row, is_clear
from trimtab.models.reporting.run.labels import equal_groups, strength_groups, strength_rows
from trimtab.models.statistics.calibration import spearman
from trimtab.models.studies import variants
from trimtab.models.studies.frontier import is_more_at_equal_kl
from trimtab.models.studies.measures import (
    KL,
    RIGHT,
    STABILITY,
    SeedRun,
    accuracy_of,
    curve_plots,
    curves_table,
    outcome_plot,
    percent_in_bins,
    read_by_kl,
    read_variants,
    unevenness,
)
from trimtab.models.studies.registry import exhibits_in
from trimtab.models.studies.results import (
    Line,
    Plot,
    Rows,
    SeedResult,
    Verdict,
    bar_plot,
    line_at,
    line_of,
)
from trimtab.models.studies.variants import TREATMENTS, WITH_DROPOUT, Variant

exhibit = exhibits_in("part-2")
NUM_GROUPS = 10
BINS = [-4 + 0.25 * index for index in range(33)]  # of strength over its spread between pairs
NOISY, DENOISED = ("baseline", "margin"), ("flip", "flip_margin", "soft_margin")
BETWEEN, WITHIN = "cosine, other pairs, different labels", "cosine, other pairs, same label"
GIVEN_LABELS, BOTH_LABELS = "given labels", "labels both give"
OVERFITTED = f"overfitted: best less last, {GIVEN_LABELS}"
ACCURACY = "accuracy on the test pairs (.5 is chance)"


@exhibit(
    arms="add_strength",
    claim="Many strengths are near 0, and about a quarter below; deviations have a long tail",
    printed="25 % of pairs below 0",
)
def figure_1(run: SeedRun) -> SeedResult:
    """Mean and deviation of the preference strength, M reward models."""
    rows = strength_rows(run, "strength")
    mean, std = (
        torch.tensor([row[name] for row in rows], dtype=torch.float64)
        for name in ("strength_mean", "strength_std")
    )
    unit = mean.std(correction=0)
    below = float((mean < 0).double().mean())
    near = float((mean.abs() < unit / 2).double().mean())
    skewness = float((((std - std.mean()) / std.std(correction=0)) ** 3).mean())
    shares = {"share below 0": below, "share within half a spread of 0": near}
    row = shares | {"skewness of the deviations": skewness}
    checks = {
        "between a tenth and four tenths of the strengths are below 0": 0.1 < below < 0.4,
        "the deviations have a long right tail (skewness above .5)": skewness > 0.5,
    }
    plots = [
        _histogram("Strength of the labels", "mean over the members", mean / unit, "strength"),
        _histogram("Deviation between the members", "deviation", std / unit, "deviation"),
    ]
    return SeedResult({"training pairs": row}, checks, plots)


def _histogram(title: str, name: str, values: torch.Tensor, quantity: str) -> Plot:
    middles, percent = percent_in_bins(values.tolist(), BINS)
    first = 0 if values.min() < 0 else BINS.index(0.0)
    return Plot(
        title,
        f"{quantity} / standard deviation of strength over pairs",
        "pairs in a bin of a quarter (%)",
        {name: (middles[first:], percent[first:])},
        note="Beyond the ends: in the outermost bins.",
    )


@exhibit(arms="add_strength", claim="The deviation is U-shaped over the mean")
def figure_2(run: SeedRun) -> SeedResult:
    """Deviation over mean strength, twenty groups."""
    std = [float(group["std"]) for group in strength_groups(strength_rows(run, "strength"))]
    first, lowest, last = std[0], min(std), std[-1]
    row = {"weakest group": first, "the group where it is least": lowest, "strongest group": last}
    checks = {
        "the weakest group deviates a tenth more than the least": first > 1.1 * lowest,
        "the strongest group deviates a tenth more than the least": last > 1.1 * lowest,
        "the least lies between": 0 < std.index(lowest) < len(std) - 1,
    }
    plot = Plot(
        "Where the members disagree",
        "group of pairs, from weakest to strongest",
        "mean deviation between members\n(units of score)",
        {"deviation": ([float(n) for n in range(1, len(std) + 1)], std)},
    )
    return SeedResult({"deviation between members": row}, checks, [plot])


@exhibit(
    arms="add_strength",
    claim="The stronger the preference, the more often a judge agrees with its label",
    printed=".164 (weakest), .544 (near 0), .956 (strongest)",
)
def figure_3(run: SeedRun) -> SeedResult:
    """Agreement of labels with a judge by strength.

    The judge is gold, in place of the paper's GPT-4; pairs are those that no member was trained on.
    Raises ReportInputError without gold.
    """
    rows = [row for row in run.rows("strength", "strength.jsonl") if row["split"] != "train"]
    groups = equal_groups(rows, NUM_GROUPS)
    shares = [_agreement(run, group) for group in groups]
    means = [sum(row["strength_mean"] for row in group) / len(group) for group in groups]
    _, near = min(zip(map(abs, means), shares, strict=True), key=lambda pair: pair[0])
    tenths = [float(index) for index in range(1, len(shares) + 1)]
    rising = float(spearman(*(torch.tensor(v, dtype=torch.float64) for v in (tenths, shares))))
    row = {
        "weakest tenth": shares[0],
        "the tenth nearest to 0": near,
        "strongest tenth": shares[-1],
        "rank correlation over tenths": rising,
    }
    checks = {
        "agreement rises with strength (rank correlation above .8)": rising > 0.8,
        "gold disagrees with most of the weakest tenth": shares[0] < 0.5,
        "gold agrees with nine in ten of the strongest": shares[-1] > 0.9,
    }
    plot = Plot(
        "The stronger the preference, the likelier the label is right",
        "tenth of held-out pairs, from weakest to strongest",
        "labels that gold agrees with (share)",
        {"agreement": (tenths, shares)},
    )
    return SeedResult({"agreement with gold": row}, checks, [plot])


def _agreement(run: SeedRun, rows: Sequence[Row]) -> float:
    """The share of labels that gold agrees with, pairs left out that it holds equal."""
    wrong = _turned_by_gold([run.truth[row["id"]] for row in rows if row["id"] in run.truth])
    if not wrong:
        raise ReportInputError(
            "agreement with a judge needs right labels, of which these pairs have none: run the "
            "study in the synthetic world (scale smoke or default)"
        )
    return sum(not is_wrong for is_wrong in wrong.values()) / len(wrong)


def _turned_by_gold(truths: Sequence[Row]) -> dict[str, bool]:
    """Whether gold labels a pair the other way round, but for pairs that it holds equal."""
    known = [truth for truth in truths if truth["gold_chosen"] != truth["gold_rejected"]]
    return {truth["id"]: bool(truth["is_wrong"]) for truth in known}


@exhibit(
    arms="add_scorers",
    varied=variants.TENTHS,
    claim="The weakest fifth teaches worse than chance, the next fifth about chance; the "
    "strongest tenth is not the best",
    printed="below .5 for tenths 1 and 2, about .5 for 3 and 4",
)
def figure_4(run: SeedRun) -> SeedResult:
    """A reward model of each tenth of the pairs by strength."""
    table, right = _accuracies(run, variants.TENTHS)
    checks = {
        "the two weakest tenths teach worse than chance": max(right[:2]) < 0.5,
        "the next two teach within .1 of chance": all(abs(x - 0.5) < 0.1 for x in right[2:4]),
        "the strongest tenth is not the best": max(right) > right[9],
    }
    plot = Plot(
        "What each tenth of the pairs teaches on its own",
        "tenth of the training pairs, from weakest to strongest",
        ACCURACY,
        {column: line_at(range(1, 11), table.values(), column) for column in table["tenth 1"]},
    )
    return SeedResult(table, checks, [plot])


@exhibit(
    arms="add_scorers",
    varied=variants.WEAKEST_TENTHS,
    claim="Flipped labels of the weakest tenths teach better than the given ones",
)
def figure_5(run: SeedRun) -> SeedResult:
    """Reward models of the two weakest tenths, labels as given and flipped."""
    table, accuracies = _accuracies(run, variants.WEAKEST_TENTHS)
    first, first_flipped, second, second_flipped = accuracies
    checks = {
        "flipping tenth 1 makes its reward model more accurate": first_flipped > first,
        "flipping tenth 2 makes its reward model more accurate": second_flipped > second,
    }
    return SeedResult(table, checks, [_bars("The weakest labels, as given and flipped", table)])


@exhibit(
    arms="add_scorers",
    varied=variants.STRONGEST_TENTH,
    claim="Soft labels with margin are best there, margin alone helps little",
)
def figure_6(run: SeedRun) -> SeedResult:
    """Margin, soft labels and both, on the strongest tenth."""
    table, (plain, margin, _, both) = _accuracies(run, variants.STRONGEST_TENTH)
    checks = {
        "soft labels with margin are better than labels as given": both > plain,
        "and no worse than margin alone": both >= margin,
        "margin alone changes less than two points": abs(margin - plain) < 0.02,
    }
    return SeedResult(table, checks, [_bars("Four ways to train on the strongest tenth", table)])


@exhibit(
    arms="add_scorers",
    varied=variants.MARGINS,
    claim="A margin for all pairs makes the reward model more accurate",
)
def figure_7(run: SeedRun) -> SeedResult:
    """Adaptive margin on all pairs."""
    table, (baseline, margin) = _accuracies(run, variants.MARGINS)
    checks = {"with a margin it is more accurate": margin > baseline}
    return SeedResult(table, checks, [_bars("A margin for all pairs", table)])


def _accuracies(run: SeedRun, trained: Mapping[str, Variant]) -> tuple[Rows, list[float]]:
    """Accuracies of the scorers `scorer_<variant>` by label, and `accuracy_of` each of them."""
    table = read_variants(trained, lambda name: run.accuracies(f"scorer_{name}"))
    return table, [accuracy_of(row) for row in table.values()]


def _bars(title: str, table: Rows) -> Plot:
    columns = list(next(iter(table.values())))
    return bar_plot(title, "labels it was trained on", ACCURACY, table, columns)


@exhibit(
    arms="long_reward_models",
    claim="Denoised labels are more accurate on the judge's labels, and overfit the given ones "
    "less",
)
def figure_8(run: SeedRun) -> SeedResult:
    """Five ways to train a reward model, three validation sets, by step.

    Several epochs, on the validation pairs. Three sets of labels: as given, the judge's or gold's,
    and the pairs on which both agree; the first alone where nobody else labelled the pairs. What is
    overfitted is the best accuracy on the given labels less the last.
    """
    labels, swapped = _other_labels(run)
    curves = read_variants(
        TREATMENTS, lambda name: _validation_curves(run, f"scorer_{name}_long", labels, swapped)
    )
    table = {}
    for label, by_set in curves.items():
        table[label] = {f"last, {name}": values[-1] for name, (_, values) in by_set.items()}
        _, accuracies = by_set[GIVEN_LABELS]
        table[label][OVERFITTED] = max(accuracies) - accuracies[-1]
    denoised, noisy = _denoised_and_noisy(table, OVERFITTED)
    checks = {"denoised labels overfit the given ones less": denoised < noisy}
    if labels:
        ours, theirs = _denoised_and_noisy(table, f"last, {labels}")
        words = f"denoised labels are more accurate on {labels.removesuffix(' labels')}"
        checks = {words: ours > theirs, "and overfit the given ones less": denoised < noisy}
    plots = [
        Plot(
            f"Validation accuracy, {name}",
            "training step",
            f"accuracy on {name} (.5 is chance)",
            {label: by_set[name] for label, by_set in curves.items()},
        )
        for name in next(iter(curves.values()))
    ]
    return SeedResult(table, checks, plots)


def _denoised_and_noisy(table: Rows, column: str) -> tuple[float, float]:
    """Means of a column over the treatments that denoise labels, and over those that do not."""
    ours, theirs = (
        fmean(table[TREATMENTS[name].label][column] for name in names)
        for names in (DENOISED, NOISY)
    )
    return ours, theirs


def _other_labels(run: SeedRun) -> tuple[str, dict[str, bool]]:
    """The name of the labels of validation pairs beside the given ones, "" where there are none,
    and whether each pair's label is the other way round.

    A judge has no label where its verdict depends on the order, gold none where both are equal.
    """
    judged = run.rows("judged", "judgements.jsonl")
    if judged := [row for row in judged if row["split"] == "validation"]:
        swapped = {row["id"]: row["verdict"] < 0 for row in judged if row["verdict"]}
        return "the judge's labels", swapped
    by_gold = _turned_by_gold(list(run.truth.values()))
    return "gold's labels" if by_gold else "", by_gold


def _validation_curves(
    run: SeedRun, role: str, labels: str, swapped: Mapping[str, bool]
) -> dict[str, Line]:
    """Accuracy of a scorer on the validation pairs by step, by the name of the labels."""
    by_step: dict[int, list[Row]] = {}
    for row in run.rows(role, "validation.jsonl"):
        by_step.setdefault(row["step"], []).append(row)
    if not by_step:
        raise ReportInputError(
            f"{role} left no validation.jsonl: it was trained without score_every, or took fewer "
            "steps than that; take more pairs"
        )
    sets = {GIVEN_LABELS: [[row["gap"] > 0 for row in rows] for rows in by_step.values()]}
    if labels:
        parts = [[row for row in rows if row["id"] in swapped] for rows in by_step.values()]
        sets[labels] = [[(r["gap"] > 0) != swapped[r["id"]] for r in rows] for rows in parts]
        sets[BOTH_LABELS] = [[r["gap"] > 0 for r in rows if not swapped[r["id"]]] for rows in parts]
        if not sets[BOTH_LABELS][0]:
            raise ReportInputError(
                f"{labels} of the validation pairs are {len(parts[0])}, and none is the label "
                f"given: there is no pair to measure '{BOTH_LABELS}' on; see alignment and "
                "share_tied of who judged"
            )
    steps = [float(step) for step in by_step]
    return {name: (steps, [fmean(map(float, right)) for right in sets[name]]) for name in sets}


@exhibit(
    arms="free_policies",
    claim="On denoised reward models KL grows evenly and perplexity hardly fluctuates",
)
def figure_9(run: SeedRun) -> SeedResult:
    """PPO without KL penalty on the five reward models."""
    curves = run.curves(TREATMENTS, "free_")
    table = curves_table(curves)
    checks = {}
    for column in ("unevenness of KL", "spread of perplexity", KL):
        ours, theirs = _denoised_and_noisy(table, column)
        checks[f"on denoised reward models {column} is less"] = ours < theirs
    return SeedResult(table, checks, curve_plots(curves, STABILITY))


@exhibit(
    arms="free_policies",
    claim="Policies of the four methods beat the baseline's",
    printed="no numbers in the text",
)
def figure_10(run: SeedRun) -> SeedResult:
    """The five policies of figure 9 against SFT and against the baseline's."""
    table, nets, plots = _policies_of(run, TREATMENTS, "baseline")
    checks = {"all four methods' policies beat the baseline's": min(nets.values()) > 0}
    return SeedResult(table, checks, plots)


@exhibit(
    arms="features", claim="With SimCSE the features of chosen and rejected answers overlap less"
)
def figure_11(run: SeedRun) -> SeedResult:
    """t-SNE of chosen and rejected features, with and without SimCSE.

    Of test answers, by right labels where they are known. Overlap is how well neighbours mix: of
    each answer's 15 nearest in feature space, the share of the other label over what chance gives;
    1 is complete overlap. SimCSE spreads all features: that it parts the labels shows in cosines
    that differ more between and within labels for how far answers of one label are spread.
    """

    def read(name: str) -> dict[str, float]:
        measured = run.document(f"features_scorer_{name}", "overlap.json")
        overlap = measured.get("right") or measured["given"]
        return {
            "overlap of neighbours": overlap["mixing"],
            "cosine, the answers of a pair": overlap["pair"],
            BETWEEN: overlap["between"],
            WITHIN: overlap["within"],
            **run.accuracies(f"scorer_{name}"),
        }

    table = read_variants(variants.SIMCSE_STRENGTHS, read)
    alone, *_, ours = table.values()
    mixes_less = ours["overlap of neighbours"] < alone["overlap of neighbours"]
    lie_apart = _separation(ours) > _separation(alone)
    is_as_accurate = accuracy_of(ours) >= accuracy_of(alone) - 0.005
    checks = {
        "with SimCSE neighbours mix less": mixes_less,
        "labels lie further apart, for the spread within one": lie_apart,
        "the reward model is at most half a point less accurate": is_as_accurate,
    }
    cosines = bar_plot(
        "Cosines of test answers, by the weight of SimCSE",
        "reward model",
        "mean cosine of two answers' features",
        table,
        (BETWEEN, WITHIN),
    )
    planes = [_plane(run, name) for name in ("dropout", "simcse_1")]
    return SeedResult(table, checks, [*planes, cosines])


def _separation(row: Mapping[str, float]) -> float:
    """How much less alike answers of different labels are than those of one label, over how unlike
    the latter are. A cone that only widens does not change it."""
    return (row[WITHIN] - row[BETWEEN]) / max(1 - row[WITHIN], 1e-9)


def _plane(run: SeedRun, name: str) -> Plot:
    rows = run.rows(f"features_scorer_{name}", "features.jsonl")
    return Plot(
        f"Features of test answers, {variants.SIMCSE_STRENGTHS[name].label}",
        "t-SNE, first axis (no unit)",
        "t-SNE, second axis (no unit)",
        {
            label: line_of([row for row in rows if row["is_chosen"] is is_chosen], "x", "y")
            for label, is_chosen in (("chosen", True), ("rejected", False))
        },
        kind="points",
    )


@exhibit(
    arms="contrastive_policies",
    claim="Return and reward are more stable on contrastive reward models",
)
def figure_12(run: SeedRun) -> SeedResult:
    """PPO without KL penalty on contrastive reward models."""
    curves = run.curves(WITH_DROPOUT, "free_")
    table = curves_table(curves)
    unevennesses = [unevenness(curve.score) for curve in curves.values()]
    for row, value in zip(table.values(), unevennesses, strict=True):
        row["unevenness of the score"] = value
    alone, *contrastive = unevennesses
    checks = {"the score grows more evenly than the baseline's": fmean(contrastive) < alone}
    return SeedResult(table, checks, curve_plots(curves, STABILITY))


@exhibit(
    arms="contrastive_policies",
    claim="Contrastive reward models give slightly better policies, SimCSE on pairs the best",
    printed="no numbers in the text",
)
def figure_13(run: SeedRun) -> SeedResult:
    """The policies of figure 12 against SFT and against the baseline's."""
    table, nets, plots = _policies_of(run, WITH_DROPOUT, "dropout")
    best = WITH_DROPOUT["simcse_pairs"].label
    checks = {
        "most contrastive policies beat the baseline's": sum(n > 0 for n in nets.values()) > 2,
        "SimCSE on pairs is the best": max(nets, key=lambda label: nets[label]) == best,
    }
    return SeedResult(table, checks, plots)


def _policies_of(
    run: SeedRun, compared: Mapping[str, Variant], baseline: str
) -> tuple[Rows, dict[str, float], list[Plot]]:
    """The policies `free_<name>` against SFT and against `free_<baseline>`, the latter's wins less
    losses, and both as plots; by label."""
    others = {name: variant for name, variant in compared.items() if name != baseline}
    sft = read_variants(compared, lambda name: run.outcome(f"judge_free_{name}"))
    versus = read_variants(others, lambda name: run.outcome(f"versus_free_{name}"))
    even = {"win": 0.0, "tie": 1.0, "lose": 0.0, "net": 0.0}
    table = {
        label: {f"{column}, against SFT": value for column, value in row.items()}
        | {f"{c}, against the baseline": value for c, value in versus.get(label, even).items()}
        for label, row in sft.items()
    }
    plots = [
        outcome_plot("Policies against SFT", sft, "SFT"),
        outcome_plot("Policies against the baseline's", versus, "the baseline's policy"),
    ]
    return table, {label: row["net"] for label, row in versus.items()}, plots


@exhibit(
    arms="denoised_policies",
    in_world=True,
    claim="At equal KL the policy of denoised labels is better than that of the given ones",
)
def denoised_policies(run: SeedRun) -> SeedResult:
    """Policies by KL, on reward models that learned few and hard labels by heart.

    PPO-max on reward models of four epochs on a thousand pairs, whose harder labels are wrong
    more often: labels as given, flipped, flipped and smoothed by the recipe's vote, and posterior
    labels by the calibrated cross-fitted vote, at several KL coefficients.
    """

    def read(name: str, policy: str) -> dict[str, float]:
        row = run.answers(policy) | run.outcome(f"judge_{policy}")
        return {c: row[c] for c in (KL, "win", "lose", "net")} | run.accuracies(f"scorer_{name}")

    table, lines = read_by_kl(variants.DENOISED_AT_KL, variants.KL_COEFS, read, "net")
    plain, *denoised = lines
    right = [accuracy_of(table[f"{label}, KL coefficient 0"]) for label in lines]
    checks: dict[str, Verdict] = {"flips make the reward model more accurate": right[1] > right[0]}
    for label in denoised:
        is_better = is_more_at_equal_kl(lines[label], lines[plain])
        checks[f"{label}: at equal KL the policy is better"] = is_better
    x, y = "KL to SFT (nats)", "wins minus losses against SFT"
    return SeedResult(table, checks, [Plot("Policies by KL", x, y, lines, kind="paths")])


@exhibit(
    arms="rated_responses",
    in_world=True,
    claim="Ratings from the pairs of a prompt's responses are better labels than the pairs",
    printed="no numbers printed; rankings of four to nine answers become ratings, as Elo's",
)
def response_ratings(run: SeedRun) -> SeedResult:
    """Not in the paper: reward models on labels from ratings of a prompt's responses.

    A fifth of the clear labels is wrong, each by itself, so that they contradict each other.
    Near-ties are hardly compared, so that a prompt's pairs are fewer than its responses allow, and
    a label that no chain of others contradicts stays as it is.
    """
    wrong = "training labels that are wrong"

    def read(name: str) -> dict[str, float]:
        treated = run.rows(f"pairs_{name}", "train.jsonl")
        clear = [row for row in treated if is_clear(run.truth.get(row["id"]))]
        return {
            wrong: fmean(bool(run.truth[r["id"]]["is_wrong"]) != r["is_flipped"] for r in clear),
            **run.accuracies(f"scorer_{name}"),
            "mean label": fmean(row["label"] for row in treated),
            "pairs a prompt": len(treated) / len({row["prompt"] for row in treated}),
        }

    table = read_variants(variants.RATED, read)
    plain, smoothed, rated, flipped, both = table.values()
    checks = {
        "fewer labels are wrong after it": rated[wrong] < plain[wrong],
        "the reward model is more accurate": rated[RIGHT] > plain[RIGHT],
        "it is more accurate than on smoothed labels": rated[RIGHT] > smoothed[RIGHT],
        "it is more accurate than on labels flipped by strength": rated[RIGHT] > flipped[RIGHT],
        "after flips by strength ratings add to it": both[RIGHT] > flipped[RIGHT],
    }
    plot = bar_plot(
        "Labels and reward models", "labels", "share of the clear pairs", table, (wrong, RIGHT)
    )
    return SeedResult(table, checks, [plot])
