"""Tables and figures of [AM, arXiv 2309.10202]: calibration, scores by task, policies.

Reward model and Advantage Model are trained on the same pairs, as given: roles `scorer_raw` and
`advantage_raw`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from trimtab.models.reporting.kit.names import capitalised
from trimtab.models.reporting.run.scorers import (
    answer_scores,
    category_moments,
    ece,
    ratio_of,
    spread_of,
)
from trimtab.models.statistics.calibration import (
    auroc,
    calibration_curve,
    likeliest_temperature,
    pair_confidence,
)
from trimtab.models.studies import variants
from trimtab.models.studies.measures import (
    GIVEN,
    RIGHT,
    SeedRun,
    accuracy_of,
    curve_plots,
    outcome_plot,
    percent_in_bins,
    read_variants,
)
from trimtab.models.studies.registry import exhibits_in
from trimtab.models.studies.results import (
    Line,
    Plot,
    Rows,
    SeedResult,
    Table,
    Verdict,
    bar_plot,
    line_at,
)
from trimtab.models.studies.variants import (
    EPOCHS,
    Variant,
)

exhibit = exhibits_in("advantage-model")
REWARD, ADVANTAGE, SCALED = "reward model", "Advantage Model", "reward model, temperature scaled"
MODELS = {REWARD: "scorer_raw", ADVANTAGE: "advantage_raw"}
ECE_GIVEN, ECE_RIGHT = "calibration error, given labels", "calibration error, right labels"
UNIT_WEIGHTS = "Advantage Model, all ratios 1"
WEIGHTS = "Advantage Model, importance weights"
PRINTED = "Advantage Model, importance weights as printed"
WEIGHED = {
    REWARD: "scorer_two",
    UNIT_WEIGHTS: "scorer_unweighed",
    WEIGHTS: "scorer_weighed",
    PRINTED: "scorer_printed",
}
POSTERIOR = "reward model, posterior labels of the vote"
OVERCONFIDENCE = "confidence less accuracy, given labels"
LEAST_OVERCONFIDENCE = 0.05
MAX_POINTS_LOST = 0.005
RISE, FALL = "gold, best less first", "gold, best less last"
BINS = [-3 + 0.5 * index for index in range(13)]  # of scores over their spread
# On raw scores, as in the paper, and on scores that PPO-max normalises and clips.
NORMALISED = ", scores normalised"
RAW_ARMS = {
    "raw_reward_model": Variant(REWARD),
    "raw_advantage_model": Variant(ADVANTAGE),
    "raw_full": Variant("Advantage Model + rehearsal"),
}
NORMALISED_ARMS = {
    "reward_model": Variant(f"{REWARD}{NORMALISED}"),
    "advantage_model": Variant(f"{ADVANTAGE}{NORMALISED}"),
    "full": Variant(f"Advantage Model + rehearsal{NORMALISED}"),
}
ARMS = RAW_ARMS | NORMALISED_ARMS


@exhibit(
    arms="add_both_scorers",
    claim="The Advantage Model is as accurate and better calibrated",
    printed="accuracy 69.25 and 69.43, ECE 4.70 and 3.48 (HH); 74.75 and 75.28, 5.35 and 3.83",
)
def table_1(run: SeedRun) -> SeedResult:
    """Accuracy and calibration error of reward model and Advantage Model."""
    table: Rows = {}
    for name, role in MODELS.items():
        table[name] = run.accuracies(role)
        table[name][ECE_GIVEN] = ece(run.labelled_gaps(role).gap, "width")
        if run.truth:
            table[name][ECE_RIGHT] = ece(run.clean_gaps(role).gap, "width")
    theirs, ours = table.values()
    least = accuracy_of(theirs) - MAX_POINTS_LOST
    checks = {
        "it is at most half a point less accurate": accuracy_of(ours) >= least,
        "it is better calibrated on the given labels": ours[ECE_GIVEN] < theirs[ECE_GIVEN],
    }
    return SeedResult(table, checks)


@exhibit(
    arms="forgetting",
    claim="A reward model's scores differ between tasks; PPO on it loses what SFT was expert at",
    printed="forget set 16.87 / 53.84 / 29.28 (win, tie, lose)",
)
def figure_1(run: SeedRun) -> SeedResult:
    """Reward scores by task, and wins on the forget set."""
    tasks, between, within = _scores_by_task(run, "scorer_raw")
    judged, spread = run.outcome("judge_reward_model", "forget"), ratio_of(between, within)
    table = {
        "reward model": {"spread of task means / spread within": spread},
        "PPO on it, forget set": {name: judged[name] for name in ("win", "tie", "lose")},
    }
    checks = {
        "mean scores of tasks lie a quarter of the spread within apart": spread > 0.25,
        "PPO on it loses more of the forget set than it wins": judged["lose"] > judged["win"],
    }
    plot = _task_bars("The reward model scores tasks differently", tasks, {"mean": "mean"})
    return SeedResult(table, checks, [plot])


@exhibit(
    arms="add_both_scorers",
    claim="The Advantage Model's curve lies nearer to 1 / (1 + exp(-difference))",
)
def figure_2(run: SeedRun) -> SeedResult:
    """Accuracy by score difference."""
    error = "calibration error, bins of equal mass"
    gaps = {name: run.labelled_gaps(role).gap for name, role in MODELS.items()}
    table = {name: {error: ece(gap, "mass")} for name, gap in gaps.items()}
    nearer = table[ADVANTAGE][error] < table[REWARD][error]
    plot = Plot(
        "Accuracy by confidence",
        "confidence, 1 / (1 + exp(-score difference)), middle of bin",
        "accuracy on the given test labels",
        {name: _curve(gap) for name, gap in gaps.items()}
        | {"perfect calibration": ([0.5, 1.0], [0.5, 1.0])},
    )
    return SeedResult(table, {"its curve lies nearer to the diagonal": nearer}, [plot])


def _curve(gap: Tensor) -> Line:
    """Five bins from confidence .5 to 1; an empty one gets the bin's own confidence."""
    confidence, correct = pair_confidence(gap)
    _, accuracy, count = calibration_curve(confidence, correct, 10)
    middles = [0.55, 0.65, 0.75, 0.85, 0.95]
    bins = zip(middles, accuracy[5:].tolist(), count[5:].tolist(), strict=True)
    return middles, [share if number else middle for middle, share, number in bins]


@exhibit(
    arms="add_both_scorers", claim="The Advantage Model tells good from bad answers more distinctly"
)
def figure_3(run: SeedRun) -> SeedResult:
    """Scores of good and bad answers."""
    area = "AUROC of good against bad answers"
    table, plots = {}, []
    for name, role in MODELS.items():
        rows = run.scores(role, "test").values()
        good, bad = (
            torch.tensor([row[column] for row in rows], dtype=torch.float64)
            for column in ("chosen_score", "rejected_score")
        )
        both = torch.cat([good, bad])
        centre, unit = both.mean(), both.std(correction=0)
        table[name] = {area: float(auroc(both, torch.arange(len(both)) < len(good)))}
        plots.append(
            Plot(
                f"Scores of good and bad answers, {name}",
                "score, less its mean, / its standard deviation",
                "answers in a bin of a half (%)",
                {
                    label: percent_in_bins(((scores - centre) / unit).tolist(), BINS)
                    for label, scores in (("labelled better", good), ("labelled worse", bad))
                },
            )
        )
    is_better = table[ADVANTAGE][area] > table[REWARD][area]
    return SeedResult(table, {"it tells them apart better": is_better}, plots)


@exhibit(arms="add_both_scorers", claim="The Advantage Model's means differ far less between tasks")
def figure_4(run: SeedRun) -> SeedResult:
    """Mean and deviation of scores by task."""
    scored = {name: _scores_by_task(run, role) for name, role in MODELS.items()}
    table = {
        name: {
            "spread of task means": between,
            "spread within tasks": within,
            "their ratio": ratio_of(between, within),
        }
        for name, (_, between, within) in scored.items()
    }
    checks = {
        f"{words} is less": table[ADVANTAGE][words] < table[REWARD][words]
        for words in ("spread of task means", "their ratio")
    }
    plots = []
    for title, moment in (("Mean score", "mean"), ("Deviation of scores", "deviation")):
        tasks = {
            task: {name: by_task[task][moment] for name, (by_task, *_) in scored.items()}
            for task in scored[REWARD][0]
        }
        plots.append(_task_bars(f"{title} by task", tasks, list(MODELS)))
    return SeedResult(table, checks, plots)


def _scores_by_task(run: SeedRun, role: str) -> tuple[Rows, float, float]:
    """Mean and deviation of a scorer's scores by task; the spread of means, and that within."""
    names, which, scores = answer_scores(run, role)
    mean, std = category_moments(which, scores, len(names))
    tasks = {
        name: {"mean": float(mean[index]), "deviation": float(std[index])}
        for index, name in enumerate(names)
    }
    return tasks, *spread_of(which, scores, len(names))


def _task_bars(title: str, tasks: Table, columns: Mapping[str, str] | list[str]) -> Plot:
    return bar_plot(title, "task", "score of the test answers (its own unit)", tasks, columns)


@exhibit(
    arms="policies_by_scorer",
    claim="On the Advantage Model quality rises further and does not fall again",
)
def figure_5(run: SeedRun) -> SeedResult:
    """PPO by step on the main set, by what scores it.

    Quality falls again where the last tenth of the steps has lost more than a tenth of what the
    best tenth had gained; without gold it cannot be told.
    """
    curves = run.curves(ARMS)

    def read(name: str) -> dict[str, float]:
        gold = curves[ARMS[name].label].gold
        tenth = max(1, len(gold) // 10)
        means = [sum(gold[i : i + tenth]) / tenth for i in range(0, len(gold) - tenth + 1, tenth)]
        fall = {RISE: max(means) - gold[0], FALL: max(means) - means[-1]} if means else {}
        return run.answers(name) | fall | run.outcome(f"judge_{name}")

    table = read_variants(ARMS, read)
    raw, ours, _, normalised, ours_normalised, _ = (row["net"] for row in table.values())
    row = table[ADVANTAGE]
    checks = {
        "on the Advantage Model it wins more often against SFT": ours > raw,
        "normalised scores of the reward model do not mend that": ours > normalised,
        "where both are normalised, too, it wins more often": ours_normalised > normalised,
        "on the Advantage Model quality does not fall again": (
            row[FALL] <= 0.1 * row[RISE] if FALL in row else None
        ),
    }
    return SeedResult(table, checks, curve_plots(curves, ("gained", "gold", "kl")))


@exhibit(
    arms="policies_by_scorer",
    claim="The Advantage Model loses less of the forget set, with rehearsal least",
    printed="main 12.72/12.62/74.66, 14.87/10.38/74.74, 15.78/9.77/74.45 (win, lose, tie)",
)
def table_2(run: SeedRun) -> SeedResult:
    """Policies against SFT on the main and the forget set."""

    def judged(eval_set: str) -> Rows:
        return read_variants(ARMS, lambda name: run.outcome(f"judge_{name}", eval_set))

    main, forget = judged("main"), judged("forget")
    table = {
        label: {
            f"{place}, {key}": rows[label][key]
            for place, rows in (("main", main), ("forget", forget))
            for key in ("win", "lose", "tie", "net")
        }
        for label in main
    }
    checks: dict[str, bool] = {}
    for how, arms in (("", RAW_ARMS), (NORMALISED, NORMALISED_ARMS)):
        reward, advantage, rehearsed = (variant.label for variant in arms.values())
        lost = {label: row["lose"] for label, row in forget.items()}
        checks |= {
            f"the Advantage Model wins more on the main set{how}": (
                main[advantage]["net"] > main[reward]["net"]
            ),
            f"it loses less of the forget set{how}": lost[advantage] < lost[reward],
            f"rehearsal loses least of the forget set{how}": (
                lost[rehearsed] < min(lost[reward], lost[advantage])
            ),
        }
    plots = [
        outcome_plot("The main set", main, "SFT"),
        outcome_plot("The forget set", forget, "SFT"),
    ]
    return SeedResult(table, checks, plots)


@exhibit(
    arms="sweep",
    varied="num-clusters",
    claim="The number of clusters hardly matters",
    printed="rewards vary by about .05",
)
def figure_6(run: SeedRun) -> SeedResult:
    """The number of clusters of selective rehearsal."""
    table = {}
    counts = run.swept("policy_num_clusters_")
    for count, role in counts.items():
        name = role.removeprefix("policy_")
        main = {f"main, {k}": v for k, v in run.outcome(f"judge_{name}").items()}
        forget = {"forget, net": run.outcome(f"judge_{name}", "forget")["net"]}
        table[f"{count:g} clusters"] = run.answers(name) | main | forget
    golds = [row.get("gold", row["main, net"]) for row in table.values()]
    checks = {"results lie within .05 of each other": max(golds) - min(golds) < 0.05}
    lines = {
        f"{place} set": line_at(counts, table.values(), f"{place}, net")
        for place in ("main", "forget")
    }
    plot = Plot("The number of clusters", "clusters", "wins minus losses against SFT", lines)
    return SeedResult(table, checks, [plot])


@exhibit(
    arms="epochs_on_few_pairs",
    claim="Where a reward model is overconfident, the Advantage Model is better calibrated and no "
    "less accurate",
    printed="ECE 4.70 and 3.48 (HH), 5.35 and 3.83, of reward models of 7B after one epoch",
)
def calibration(run: SeedRun) -> SeedResult:
    """Calibration error by epochs on a thousand pairs, temperature scaling beside it.

    Both models after 1 to 8 epochs on the same few pairs, on the test pairs. The paper's reward
    models are overconfident after one epoch; as small as here they are after several. Controls: a
    reward model of one epoch, and one whose scores are divided by the temperature that makes the
    validation labels likeliest.
    """
    rows: dict[str, list[dict[str, float]]] = {REWARD: [], SCALED: [], ADVANTAGE: []}
    table: Rows = {}
    for name, kind in ((REWARD, "scorer"), (ADVANTAGE, "advantage")):
        for epochs in EPOCHS:
            role = f"{kind}_epochs_{epochs}"
            gap = run.labelled_gaps(role).gap
            label = f"{name}, {_after(epochs)}"
            table[label] = _calibrated(run, role, gap)
            rows[name].append(table[label])
            if name == REWARD:
                label = f"{label}, temperature scaled"
                temperature = likeliest_temperature(run.validation_gap(role))
                table[label] = _calibrated(run, role, gap / temperature)
                rows[SCALED].append(table[label])
    columns = (ECE_GIVEN, OVERCONFIDENCE, RIGHT if run.truth else GIVEN)
    plots = _plots_by_epochs(EPOCHS, rows, columns)
    return SeedResult(table, _where_overconfident(*rows.values()), plots)


def _plots_by_epochs(
    epochs: Sequence[int],
    rows: Mapping[str, Sequence[Mapping[str, float]]],
    columns: Sequence[str],
) -> list[Plot]:
    """A plot a column, a line a model; rows: of each model, by epochs."""
    return [
        Plot(
            f"{capitalised(column)} by epochs",
            "epochs on a thousand pairs",
            column,
            {name: line_at(epochs, by_epochs, column) for name, by_epochs in rows.items()},
        )
        for column in columns
    ]


def _after(epochs: int) -> str:
    return "1 epoch" if epochs == 1 else f"{epochs} epochs"


@exhibit(
    arms="margins_on_few_pairs",
    in_world=True,
    claim="With bounds by the pair's strength the Advantage Model is better calibrated than with a "
    "constant, and no less accurate",
    printed="m = 2.5; m(x) is left open",
)
def margin_by_strength(run: SeedRun) -> SeedResult:
    """Calibration error with m constant and by the pair's strength, of about a thousand pairs.

    The strength is the vote of reward models that were trained on the other half of the same pairs,
    and what an Advantage Model with such bounds learns is this vote. Controls: a reward model that
    learns from it too, by posterior labels; the reward model; and the reward model with the
    temperature that makes the validation labels likeliest.
    """
    table: Rows = {}
    by_name: dict[str, list[dict[str, float]]] = {}
    for epochs in variants.MARGIN_EPOCHS:
        plain, taught = f"scorer_few_{epochs}", f"scorer_posterior_{epochs}"
        gap = run.labelled_gaps(plain).gap
        temperature = likeliest_temperature(run.validation_gap(plain))
        rows = {
            REWARD: _calibrated(run, plain, gap),
            SCALED: _calibrated(run, plain, gap / temperature),
            POSTERIOR: _calibrated(run, taught, run.labelled_gaps(taught).gap),
        }
        for name, variant in variants.BOUNDS.items():
            role = f"advantage_{name}_{epochs}"
            rows[variant.label] = _calibrated(run, role, run.labelled_gaps(role).gap)
        for name, row in rows.items():
            table[f"{name}, {_after(epochs)}"] = row
            by_name.setdefault(name, []).append(row)
    _, scaled, posterior, constant, ours = by_name.values()

    def is_less(others: Sequence[Mapping[str, float]]) -> bool:
        return all(a[ECE_GIVEN] < b[ECE_GIVEN] for a, b in zip(ours, others, strict=True))

    checks = {
        "it is better calibrated than with a constant": is_less(constant),
        "it is better calibrated than a scaled reward model": is_less(scaled),
        "it is better calibrated than a reward model of the same vote": is_less(posterior),
        "it is at most half a point less accurate than with a constant": all(
            accuracy_of(a) >= accuracy_of(b) - MAX_POINTS_LOST
            for a, b in zip(ours, constant, strict=True)
        ),
    }
    columns = (ECE_GIVEN, RIGHT if run.truth else GIVEN)
    plots = _plots_by_epochs(variants.MARGIN_EPOCHS, by_name, columns)
    return SeedResult(table, checks, plots)


def _where_overconfident(
    theirs: Sequence[Mapping[str, float]],
    scaled: Sequence[Mapping[str, float]],
    ours: Sequence[Mapping[str, float]],
) -> dict[str, Verdict]:
    """The parts of the claim, after the epochs at which the reward model is overconfident; where
    it never is, they cannot be told.

    theirs, scaled, ours: the reward model's rows by epochs, with a temperature, and the Advantage
    Model's.
    """
    over = [n for n, row in enumerate(theirs) if row[OVERCONFIDENCE] > LEAST_OVERCONFIDENCE]
    once = [theirs[0]] * len(theirs)

    def is_calibrated(others: Sequence[Mapping[str, float]]) -> bool:
        return all(ours[n][ECE_GIVEN] < others[n][ECE_GIVEN] for n in over)

    parts = {
        "the Advantage Model is better calibrated": is_calibrated(theirs),
        "it is no less accurate": all(accuracy_of(ours[n]) >= accuracy_of(theirs[n]) for n in over),
        "it is better calibrated than a reward model of one epoch": is_calibrated(once),
        "it is better calibrated than after temperature scaling": is_calibrated(scaled),
    }
    return {"several epochs make the reward model overconfident": bool(over)} | {
        f"there {words}": is_so if over else None for words, is_so in parts.items()
    }


def _calibrated(run: SeedRun, role: str, gap: Tensor) -> dict[str, float]:
    confidence, correct = pair_confidence(gap)
    return {
        ECE_GIVEN: ece(gap, "width"),
        OVERCONFIDENCE: float(confidence.mean() - correct.double().mean()),
        **run.accuracies(role),
    }


@exhibit(
    arms="two_behaviour_policies",
    in_world=True,
    claim="Importance weights make the Advantage Model better calibrated on pairs that several "
    "policies wrote",
)
def importance_weights(run: SeedRun) -> SeedResult:
    """Calibration on pairs of two policies, with importance weights and without.

    SFT and a policy of PPO, which is pi_phi, wrote half of the pairs each. An answer is weighed
    against the pair's other answer; the control has all ratios 1. As equation 8 is printed, it is
    weighed against itself, and the model is trained with ratios that no score in use has.
    """
    table: Rows = {}
    by_writer: Rows = {}
    for label, role in WEIGHED.items():
        scored = run.labelled_gaps(role)
        writer = torch.tensor([row["policy"] for row in scored.rows])
        parts = {
            "all pairs": writer >= 0,
            "SFT's pairs": writer == 0,
            "the policy's pairs": writer == 1,
        }
        table[label] = run.accuracies(role)
        for pairs, is_written in parts.items():
            error = ece(scored.gap[is_written], "width")
            table[label][f"{ECE_GIVEN}, {pairs}"] = error
            by_writer.setdefault(pairs, {})[label] = error
    _, without, ours, _ = table.values()
    ratio = float(run.document("scorer_weighed", "summary.json")["mean_absolute_log_ratio"])
    ours["mean log-ratio to SFT, nats a token, absolute"] = ratio
    of_all = by_writer["all pairs"]
    checks = {
        "the two policies differ by a tenth of a nat a token": ratio > 0.1,
        "with weights it is better calibrated": of_all[WEIGHTS] < of_all[UNIT_WEIGHTS],
        "so it is than with weights as printed": of_all[WEIGHTS] < of_all[PRINTED],
        "with weights it is no less accurate": accuracy_of(ours) >= accuracy_of(without),
    }
    title = "Calibration on pairs of two policies"
    plot = bar_plot(title, "test pairs", ECE_GIVEN, by_writer, list(WEIGHED))
    return SeedResult(table, checks, [plot])
