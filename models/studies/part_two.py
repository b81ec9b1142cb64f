"""Exhibits of [RM, arXiv 2401.06080]: label strength, reward models, their policies, MetaRM rounds.

Given labels are those of the data, right labels are gold's. The judge of figure 8, GPT-4 in the
paper, is one that was asked about the validation pairs (`judge_preferences.splits`); where none
was, it is the gold scorer of the synthetic world.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean

import torch

from trimtab.models.reporting.kit.artifacts import Artifacts, ReportInputError, Row, is_clear
from trimtab.models.reporting.run.labels import equal_groups, strength_groups, strength_rows
from trimtab.models.statistics.calibration import spearman
from trimtab.models.studies.frontier import lead_at_equal_kl
from trimtab.models.studies.measures import (
    KL,
    LOSE,
    NET,
    RIGHT,
    TIE,
    WIN,
    accuracies,
    accuracy_of,
    accuracy_table,
    answers,
    curve_plots,
    curves_of,
    curves_table,
    outcome,
    outcome_plot,
    percent_in_bins,
    read_by_kl,
    unevenness,
)
from trimtab.models.studies.registry import exhibit
from trimtab.models.studies.results import Line, Plot, SeedResult, Table, bar_plot
from trimtab.models.studies.variants import (
    CONTRASTIVE,
    DENOISED_AT_KL,
    KL_COEFS,
    MARGINS,
    RATED,
    SIMCSE_STRENGTHS,
    STRONGEST_TENTH,
    TENTHS,
    TREATMENTS,
    WEAKEST_TENTHS,
    WITH_DROPOUT,
    Variant,
)

NUM_GROUPS = 10
BINS = [-4 + 0.25 * index for index in range(33)]  # of strength over its spread between pairs
DENOISED = ("flip", "flip_margin", "soft_margin")
BETWEEN, WITHIN = "cosine, other pairs, different labels", "cosine, other pairs, same label"
MONITORS = ("score", "gold", "kl", "perplexity")
GIVEN_LABELS, BOTH_LABELS = "given labels", "labels both give"
OVERFITTED = f"overfitted: best less last, {GIVEN_LABELS}"


@exhibit(
    "part-2",
    arms="vote",
    claim="Many strengths are near 0, and about a quarter below; deviations have a long tail",
    printed="25 % of pairs below 0",
)
def figure_1(artifacts: Artifacts) -> SeedResult:
    """Mean and deviation of the preference strength, M reward models."""
    rows = strength_rows(artifacts, "strength")
    mean, std = (
        torch.tensor([row[name] for row in rows], dtype=torch.float64)
        for name in ("strength_mean", "strength_std")
    )
    below = float((mean < 0).double().mean())
    skewness = float((((std - std.mean()) / std.std(correction=0)) ** 3).mean())
    unit = mean.std(correction=0)
    near = float((mean.abs() < unit / 2).double().mean())
    return SeedResult(
        table={
            "training pairs": {
                "share below 0": below,
                "share within half a spread of 0": near,
                "skewness of the deviations": skewness,
            }
        },
        checks={
            "between a tenth and four tenths of the strengths are below 0": 0.1 < below < 0.4,
            "the deviations have a long right tail (skewness above .5)": skewness > 0.5,
        },
        plots=[
            _histogram("Strength of the labels", "mean over the members", mean / unit, "strength"),
            _histogram("Deviation between the members", "deviation", std / unit, "deviation"),
        ],
    )


def _histogram(title: str, name: str, values: torch.Tensor, what: str) -> Plot:
    middles, percent = percent_in_bins(values.tolist(), BINS)
    first = 0 if values.min() < 0 else BINS.index(0.0)
    return Plot(
        title,
        f"{what} / standard deviation of strength over pairs",
        "pairs in a bin of a quarter (%)",
        {name: (middles[first:], percent[first:])},
        note="Beyond the ends: in the outermost bins.",
    )


@exhibit("part-2", arms="vote", claim="The deviation is U-shaped over the mean")
def figure_2(artifacts: Artifacts) -> SeedResult:
    """Deviation over mean strength, twenty groups."""
    groups = strength_groups(strength_rows(artifacts, "strength"))
    std = [float(group["std"]) for group in groups]
    lowest = min(std)
    return SeedResult(
        table={
            "deviation between members": {
                "weakest group": std[0],
                "the group where it is least": lowest,
                "strongest group": std[-1],
            }
        },
        checks={
            "the weakest group deviates a tenth more than the least": std[0] > 1.1 * lowest,
            "the strongest group deviates a tenth more than the least": std[-1] > 1.1 * lowest,
            "the least lies between": 0 < std.index(lowest) < len(std) - 1,
        },
        plots=[
            Plot(
                "Where the members disagree",
                "group of pairs, from weakest to strongest",
                "mean deviation between members\n(units of score)",
                {"deviation": ([float(n) for n in range(1, len(std) + 1)], std)},
            )
        ],
    )


@exhibit(
    "part-2",
    arms="vote",
    claim="The stronger the preference, the more often a judge agrees with its label",
    printed=".164 (weakest), .544 (near 0), .956 (strongest)",
)
def figure_3(artifacts: Artifacts) -> SeedResult:
    """Agreement of labels with a judge by strength.

    How often gold, in place of the paper's GPT-4, agrees with labels of rising strength.

    On pairs that no member was trained on. Raises ReportInputError without gold.
    """
    rows = [row for row in artifacts.rows("strength", "strength.jsonl") if row["split"] != "train"]
    groups = equal_groups(rows, NUM_GROUPS)
    shares = [_agreement(artifacts, group) for group in groups]
    means = [sum(row["strength_mean"] for row in group) / len(group) for group in groups]
    near = min(range(len(means)), key=lambda index: abs(means[index]))
    tenths = [float(index) for index in range(1, len(shares) + 1)]
    rising = float(spearman(*(torch.tensor(v, dtype=torch.float64) for v in (tenths, shares))))
    return SeedResult(
        table={
            "agreement with gold": {
                "weakest tenth": shares[0],
                "the tenth nearest to 0": shares[near],
                "strongest tenth": shares[-1],
                "rank correlation over tenths": rising,
            }
        },
        checks={
            "agreement rises with strength (rank correlation above .8)": rising > 0.8,
            "gold disagrees with most of the weakest tenth": shares[0] < 0.5,
            "gold agrees with nine in ten of the strongest": shares[-1] > 0.9,
        },
        plots=[
            Plot(
                "The stronger the preference, the likelier the label is right",
                "tenth of held-out pairs, from weakest to strongest",
                "labels that gold agrees with (share)",
                {"agreement": (tenths, shares)},
            )
        ],
    )


def _agreement(artifacts: Artifacts, rows: Sequence[Row]) -> float:
    """The share of labels that gold agrees with, pairs left out that it holds equal."""
    truths = [artifacts.truth.get(row["id"]) for row in rows]
    known = [t for t in truths if t is not None and t["gold_chosen"] != t["gold_rejected"]]
    if not known:
        raise ReportInputError(
            "agreement with a judge needs right labels, of which these pairs have none: run the "
            "study in the synthetic world (scale smoke or default)"
        )
    return sum(not truth["is_wrong"] for truth in known) / len(known)


@exhibit(
    "part-2",
    arms="reward_models",
    varied=TENTHS,
    claim="The weakest fifth teaches worse than chance, the next fifth about chance; the "
    "strongest tenth is not the best",
    printed="below .5 for tenths 1 and 2, about .5 for 3 and 4",
)
def figure_4(artifacts: Artifacts) -> SeedResult:
    """A reward model of each tenth of the pairs by strength."""
    table = accuracy_table(artifacts, TENTHS)
    right = [accuracy_of(row) for row in table.values()]
    return SeedResult(
        table,
        checks={
            "the two weakest tenths teach worse than chance": max(right[:2]) < 0.5,
            "the next two teach within .1 of chance": all(abs(x - 0.5) < 0.1 for x in right[2:4]),
            "the strongest tenth is not the best": max(right) > right[9],
        },
        plots=[
            Plot(
                "What each tenth of the pairs teaches on its own",
                "tenth of the training pairs, from weakest to strongest",
                "accuracy on the test pairs (.5 is chance)",
                {
                    column: (
                        [float(n) for n in range(1, 11)],
                        [row[column] for row in table.values()],
                    )
                    for column in table["tenth 1"]
                },
            )
        ],
    )


@exhibit(
    "part-2",
    arms="reward_models",
    varied=WEAKEST_TENTHS,
    claim="Flipped labels of the weakest tenths teach better than the given ones",
)
def figure_5(artifacts: Artifacts) -> SeedResult:
    """Reward models of the two weakest tenths, labels as given and flipped."""
    table = accuracy_table(artifacts, WEAKEST_TENTHS)
    right = {name: accuracy_of(row) for name, row in table.items()}
    checks = {
        f"flipping tenth {number} makes its reward model more accurate": right[
            f"tenth {number}, flipped"
        ]
        > right[f"tenth {number}, as given"]
        for number in (1, 2)
    }
    return SeedResult(table, checks, [_bars("The weakest labels, as given and flipped", table)])


@exhibit(
    "part-2",
    arms="reward_models",
    varied=STRONGEST_TENTH,
    claim="Soft labels with margin are best there, margin alone helps little",
)
def figure_6(artifacts: Artifacts) -> SeedResult:
    """Margin, soft labels and both, on the strongest tenth."""
    table = accuracy_table(artifacts, STRONGEST_TENTH)
    right = {label: accuracy_of(row) for label, row in table.items()}
    both = right["soft labels + margin"]
    return SeedResult(
        table,
        checks={
            "soft labels with margin are better than labels as given": both > right["as given"],
            "and no worse than margin alone": both >= right["margin"],
            "margin alone changes less than two points": abs(right["margin"] - right["as given"])
            < 0.02,
        },
        plots=[_bars("Four ways to train on the strongest tenth", table)],
    )


@exhibit(
    "part-2",
    arms="reward_models",
    varied=MARGINS,
    claim="A margin for all pairs makes the reward model more accurate",
)
def figure_7(artifacts: Artifacts) -> SeedResult:
    """Adaptive margin on all pairs."""
    table = accuracy_table(artifacts, MARGINS)
    margin, baseline = (accuracy_of(table[name]) for name in ("margin", "baseline"))
    return SeedResult(
        table,
        {"with a margin it is more accurate": margin > baseline},
        [_bars("A margin for all pairs", table)],
    )


def _bars(title: str, table: Table) -> Plot:
    x, y = "labels it was trained on", "accuracy on the test pairs (.5 is chance)"
    return bar_plot(title, x, y, table, list(next(iter(table.values()))))


@exhibit(
    "part-2",
    arms="long_reward_models",
    claim="Denoised labels are more accurate on the judge's labels, and overfit the given ones "
    "less",
)
def figure_8(artifacts: Artifacts) -> SeedResult:
    """Five ways to train a reward model, three validation sets, by step.

    Several epochs, on the validation pairs. Three sets of labels: as given, the judge's or gold's,
    and the pairs on which both agree; the first alone where nobody else labelled the pairs. What is
    overfitted is the best accuracy on the given labels less the last.
    """
    others = _others_labels(artifacts)
    curves = {
        each.label: _accuracy_curves(_validation_by_step(artifacts, f"scorer_{name}_long"), others)
        for name, each in TREATMENTS.items()
    }
    table = {}
    for words, by_set in curves.items():
        table[words] = {f"last, {name}": values[-1] for name, (_, values) in by_set.items()}
        given = by_set[GIVEN_LABELS][1]
        table[words][OVERFITTED] = max(given) - given[-1]

    def advantage(column: str) -> float:
        ours = fmean(table[TREATMENTS[name].label][column] for name in DENOISED)
        return ours - fmean(table[name][column] for name in ("baseline", "margin"))

    overfits_less = advantage(OVERFITTED) < 0
    checks = {"denoised labels overfit the given ones less": overfits_less}
    if others is not None:
        whose = others[0]
        words = f"denoised labels are more accurate on {whose.removesuffix(' labels')}"
        is_better = advantage(f"last, {whose}") > 0
        checks = {words: is_better, "and overfit the given ones less": overfits_less}
    return SeedResult(
        table,
        checks,
        plots=[
            Plot(
                f"Validation accuracy, {name}",
                "training step",
                f"accuracy on {name} (.5 is chance)",
                {words: by_set[name] for words, by_set in curves.items()},
            )
            for name in next(iter(curves.values()))
        ],
    )


def _others_labels(artifacts: Artifacts) -> tuple[str, dict[str, bool]] | None:
    """Who else labelled validation pairs, and of each that they did, whether the other way round.

    A judge has no label where its verdict depends on the order, gold none where both are equal.
    """
    judged = artifacts.rows("judged", "judgements.jsonl")
    asked = [row for row in judged if row["split"] == "validation"]
    if asked:
        return "the judge's labels", {
            row["id"]: row["verdict"] < 0 for row in asked if row["verdict"]
        }
    truth = artifacts.truth.values()
    known = [told for told in truth if told["gold_chosen"] != told["gold_rejected"]]
    if known:
        return "gold's labels", {told["id"]: bool(told["is_wrong"]) for told in known}
    return None


def _validation_by_step(artifacts: Artifacts, role: str) -> dict[int, list[Row]]:
    """The validation rows of a scorer by step."""
    by_step: dict[int, list[Row]] = {}
    for row in artifacts.rows(role, "validation.jsonl"):
        by_step.setdefault(row["step"], []).append(row)
    if not by_step:
        raise ReportInputError(
            f"{role} left no validation.jsonl: it was trained without score_every, or took fewer "
            "steps than that; take more pairs"
        )
    return by_step


def _accuracy_curves(
    by_step: dict[int, list[Row]], others: tuple[str, dict[str, bool]] | None
) -> dict[str, Line]:
    """Accuracy on the validation pairs by step, by whose labels."""
    steps = [float(step) for step in by_step]
    given = [_share(row["gap"] > 0 for row in rows) for rows in by_step.values()]
    curves = {GIVEN_LABELS: (steps, given)}
    if others is None:
        return curves
    whose, turned = others
    parts = [[row for row in rows if row["id"] in turned] for rows in by_step.values()]
    agreed = [[row for row in rows if not turned[row["id"]]] for rows in parts]
    if not agreed[0]:
        raise ReportInputError(
            f"{whose} of the validation pairs are {len(parts[0])}, and none is the label given: "
            f"there is no pair to measure '{BOTH_LABELS}' on; see alignment and share_tied of who "
            "judged"
        )
    theirs = [_share((r["gap"] > 0) != turned[r["id"]] for r in rows) for rows in parts]
    both = [_share(row["gap"] > 0 for row in rows) for rows in agreed]
    return curves | {whose: (steps, theirs), BOTH_LABELS: (steps, both)}


def _share(flags: Iterable[bool]) -> float:
    return fmean(map(float, flags))


@exhibit(
    "part-2",
    arms="free_policies",
    claim="On denoised reward models KL grows evenly and perplexity hardly fluctuates",
)
def figure_9(artifacts: Artifacts) -> SeedResult:
    """PPO without KL penalty on the five reward models."""
    curves = curves_of(artifacts, TREATMENTS, "free_")
    table = curves_table(curves)
    noisy = [table["baseline"], table["margin"]]
    clean = [table[TREATMENTS[name].label] for name in DENOISED]

    def is_less(column: str) -> bool:
        return fmean(row[column] for row in clean) < fmean(row[column] for row in noisy)

    return SeedResult(
        table,
        checks={
            f"on denoised reward models {column} is less": is_less(column)
            for column in ("unevenness of KL", "spread of perplexity", KL)
        },
        plots=curve_plots(curves, MONITORS),
    )


@exhibit(
    "part-2",
    arms="free_policies",
    claim="Policies of the four methods beat the baseline's",
    printed="no numbers in the text",
)
def figure_10(artifacts: Artifacts) -> SeedResult:
    """The five policies of figure 9 against SFT and against the baseline's."""
    words = "all four methods' policies beat the baseline's"
    return _policies_of(artifacts, TREATMENTS, "baseline", words)


@exhibit(
    "part-2",
    arms="features",
    claim="With SimCSE the features of chosen and rejected answers overlap less",
)
def figure_11(artifacts: Artifacts) -> SeedResult:
    """t-SNE of chosen and rejected features, with and without SimCSE.

    Features of better and worse test answers, by the weight of SimCSE, at one dropout.

    By right labels where they are known. Overlap is how well neighbours mix: of each answer's 15
    nearest in feature space, the share of the other label over what chance gives; 1 is complete
    overlap. SimCSE spreads all features: that it parts the labels shows in cosines that differ more
    between and within labels for how far answers of one label are spread.
    """
    table, plots = {}, []
    for name, variant in SIMCSE_STRENGTHS.items():
        measured = artifacts.document(f"features_scorer_{name}", "overlap.json")
        found = measured.get("right") or measured["given"]
        table[variant.label] = {
            "overlap of neighbours": found["mixing"],
            "cosine, the answers of a pair": found["pair"],
            BETWEEN: found["between"],
            WITHIN: found["within"],
            **accuracies(artifacts, f"scorer_{name}"),
        }
        if name in ("dropout", "simcse_1"):
            plots.append(_plane(artifacts, f"features_scorer_{name}", variant.label))
    alone = table[SIMCSE_STRENGTHS["dropout"].label]
    ours = table[SIMCSE_STRENGTHS["simcse_1"].label]
    return SeedResult(
        table,
        checks={
            "with SimCSE neighbours mix less": ours["overlap of neighbours"]
            < alone["overlap of neighbours"],
            "labels lie further apart, for the spread within one": _parted(ours) > _parted(alone),
            "the reward model is at most half a point less accurate": accuracy_of(ours)
            >= accuracy_of(alone) - 0.005,
        },
        plots=[
            *plots,
            bar_plot(
                "Cosines of test answers, by the weight of SimCSE",
                "reward model",
                "mean cosine of two answers' features",
                table,
                (BETWEEN, WITHIN),
            ),
        ],
    )


def _parted(row: Mapping[str, float]) -> float:
    """How much less alike answers of different labels are, over how unlike those of one label are:
    a cone that only widens leaves it as it is."""
    return (row[WITHIN] - row[BETWEEN]) / max(1 - row[WITHIN], 1e-9)


def _plane(artifacts: Artifacts, role: str, words: str) -> Plot:
    rows = artifacts.rows(role, "features.jsonl")
    return Plot(
        f"Features of test answers, {words}",
        "t-SNE, first axis (no unit)",
        "t-SNE, second axis (no unit)",
        {
            name: (
                [row["x"] for row in rows if row["is_chosen"] is flag],
                [row["y"] for row in rows if row["is_chosen"] is flag],
            )
            for name, flag in (("chosen", True), ("rejected", False))
        },
        kind="points",
    )


@exhibit(
    "part-2",
    arms="contrastive_policies",
    claim="Return and reward are more stable on contrastive reward models",
)
def figure_12(artifacts: Artifacts) -> SeedResult:
    """PPO without KL penalty on contrastive reward models."""
    curves = curves_of(artifacts, WITH_DROPOUT, "free_")
    table = curves_table(curves)
    for name, curve in curves.items():
        table[name]["unevenness of the score"] = unevenness(curve.score)
    ours = fmean(table[each.label]["unevenness of the score"] for each in CONTRASTIVE.values())
    return SeedResult(
        table,
        checks={
            "the score grows more evenly than the baseline's": ours
            < table[WITH_DROPOUT["dropout"].label]["unevenness of the score"]
        },
        plots=curve_plots(curves, MONITORS),
    )


@exhibit(
    "part-2",
    arms="contrastive_policies",
    claim="Contrastive reward models give slightly better policies, SimCSE on pairs the best",
    printed="no numbers in the text",
)
def figure_13(artifacts: Artifacts) -> SeedResult:
    """The policies of figure 12 against SFT and against the baseline's."""
    words = "most contrastive policies beat the baseline's"
    result = _policies_of(artifacts, WITH_DROPOUT, "dropout", words)
    nets = {
        each.label: result.table[each.label]["net, against the baseline"]
        for each in CONTRASTIVE.values()
    }
    checks = {
        words: sum(n > 0 for n in nets.values()) > 2,
        "SimCSE on pairs is the best": max(nets, key=lambda name: nets[name]) == "SimCSE, pairs",
    }
    return SeedResult(result.table, checks, result.plots)


def _policies_of(
    artifacts: Artifacts, variants: Mapping[str, Variant], baseline: str, claim: str
) -> SeedResult:
    """The policies `free_<name>` against SFT and against `free_<baseline>`."""
    sft = {v.label: outcome(artifacts, f"judge_free_{name}") for name, v in variants.items()}
    base = {
        variant.label: outcome(artifacts, f"versus_free_{name}")
        for name, variant in variants.items()
        if name != baseline
    }
    nobody = {WIN: 0.0, TIE: 1.0, LOSE: 0.0, NET: 0.0}
    table = {
        words: {
            **{f"{key}, against SFT": value for key, value in found.items()},
            **{f"{k}, against the baseline": v for k, v in base.get(words, nobody).items()},
        }
        for words, found in sft.items()
    }
    return SeedResult(
        table,
        checks={claim: all(found[NET] > 0 for found in base.values())},
        plots=[
            outcome_plot("Policies against SFT", sft, "SFT"),
            outcome_plot("Policies against the baseline's", base, "the baseline's policy"),
        ],
    )


@exhibit(
    "part-2",
    arms="denoised_policies",
    in_world=True,
    claim="At equal KL the policy of denoised labels is better than that of the given ones",
)
def denoised_policies(artifacts: Artifacts) -> SeedResult:
    """Policies by KL, on reward models that learned few and hard labels by heart.

    PPO-max on reward models of four epochs on a thousand pairs, whose harder labels are wrong
    more often: labels as given, flipped, and flipped and smoothed, at several KL coefficients.
    """
    labels = {name: variant.label for name, variant in DENOISED_AT_KL.items()}

    def read(name: str, policy: str) -> dict[str, float]:
        judged = outcome(artifacts, f"judge_{policy}")
        row = {KL: answers(artifacts, policy)[KL], WIN: judged[WIN], LOSE: judged[LOSE]}
        return row | {NET: judged[NET]} | accuracies(artifacts, f"scorer_{name}")

    table, lines = read_by_kl(labels, KL_COEFS, read, NET)
    right = {name: accuracy_of(table[f"{labels[name]}, KL coefficient 0"]) for name in labels}
    gains = {name: lead_at_equal_kl(line, lines["given"]) for name, line in lines.items()}
    return SeedResult(
        table,
        checks={
            "flips make the reward model more accurate": right["flipped"] > right["given"],
            **{
                f"{label}: at equal KL the policy is better": (gains[name] or 0.0) > 0
                for name, label in labels.items()
                if name != "given"
            },
        },
        plots=[
            Plot(
                "Policies by KL",
                "KL to SFT (nats)",
                "wins minus losses against SFT",
                {labels[name]: line for name, line in lines.items()},
                kind="paths",
            )
        ],
    )


@exhibit(
    "part-2",
    arms="rated_responses",
    in_world=True,
    claim="Ratings from the pairs of a prompt's responses are better labels than the pairs",
    printed="no numbers printed; rankings of four to nine answers become ratings, as Elo's",
)
def response_ratings(artifacts: Artifacts) -> SeedResult:
    """Not in the paper: reward models on labels from ratings of a prompt's responses.

    A fifth of the clear labels is wrong, each by itself, so that they contradict each other.

    Near-ties are hardly compared, so that a prompt's pairs are fewer than its responses allow, and
    a label that no chain of others contradicts stays as it is.
    """
    truth = artifacts.truth
    table: dict[str, dict[str, float]] = {}
    for name, variant in RATED.items():
        treated = artifacts.rows(f"pairs_{name}", "train.jsonl")
        clear = [row for row in treated if is_clear(truth.get(row["id"]))]
        wrong = [bool(truth[row["id"]]["is_wrong"]) != row["is_flipped"] for row in clear]
        table[variant.label] = {
            "training labels that are wrong": fmean(wrong),
            **accuracies(artifacts, f"scorer_{name}"),
            "mean label": fmean(row["label"] for row in treated),
            "pairs a prompt": len(treated) / len({row["prompt"] for row in treated}),
        }
    given, smoothed, rated, flipped, both = (table[each.label] for each in RATED.values())
    return SeedResult(
        table,
        checks={
            "fewer labels are wrong after it": rated["training labels that are wrong"]
            < given["training labels that are wrong"],
            "the reward model is more accurate": rated[RIGHT] > given[RIGHT],
            "it is more accurate than on smoothed labels": rated[RIGHT] > smoothed[RIGHT],
            "it is more accurate than on labels flipped by strength": rated[RIGHT] > flipped[RIGHT],
            "after flips by strength ratings add to it": both[RIGHT] > flipped[RIGHT],
        },
        plots=[
            bar_plot(
                "Labels and reward models",
                "labels",
                "share of the clear pairs",
                table,
                ("training labels that are wrong", RIGHT),
            )
        ],
    )
