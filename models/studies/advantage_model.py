"""Tables and figures of [AM, arXiv 2309.10202]: calibration, scores by task, policies, rehearsal.

Reward model and Advantage Model are trained on the same pairs, as given: roles `scorer_raw` and
`advantage_raw`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from scipy.optimize import minimize_scalar
from torch import Tensor

from trimtab.models.reporting.kit.artifacts import Artifacts
from trimtab.models.reporting.run.scorers import (
    answer_scores,
    category_moments,
    ece,
    ratio_of,
    spread_of,
)
from trimtab.models.statistics.calibration import auroc, calibration_curve, pair_confidence
from trimtab.models.studies.constants import swept
from trimtab.models.studies.frontier import LEAST_SHARED_KL, lead_at_equal_kl
from trimtab.models.studies.measures import (
    GIVEN,
    KL,
    LOSE,
    LOST,
    NET,
    RIGHT,
    TIE,
    WIN,
    accuracies,
    accuracy_of,
    answers,
    curve_of,
    curve_plots,
    forgetting,
    forgetting_plot,
    outcome,
    outcome_plot,
    percent_in_bins,
    read_by_kl,
    validation_gap,
)
from trimtab.models.studies.registry import exhibit
from trimtab.models.studies.results import Plot, SeedResult, bar_plot, titled
from trimtab.models.studies.variants import CRITERIA, EPOCHS, REHEARSAL_KL_COEFS, REHEARSALS

ByTask = dict[str, float]
REWARD, ADVANTAGE, SCALED = "reward model", "Advantage Model", "reward model, temperature scaled"
MODELS = {REWARD: "scorer_raw", ADVANTAGE: "advantage_raw"}
ECE_GIVEN, ECE_RIGHT = "calibration error, given labels", "calibration error, right labels"
UNSHOWN = "forget families without an example"
UNIT_WEIGHTS = "Advantage Model, all ratios 1"
WEIGHTS = "Advantage Model, importance weights"
WEIGHED = {
    "reward model": "scorer_two",
    UNIT_WEIGHTS: "scorer_unweighed",
    WEIGHTS: "scorer_weighed",
}
OVERCONFIDENCE = "confidence less accuracy, given labels"
LEAST_OVERCONFIDENCE = 0.05
MAX_POINTS_LOST = 0.005
BINS = [-3 + 0.5 * index for index in range(13)]  # of scores over their spread
ARMS = {
    "raw_scores_rm": "reward model",
    "reward_model": "reward model, scores normalised",
    "advantage_model": "Advantage Model",
    "full": "Advantage Model + rehearsal",
}


@exhibit(
    "advantage-model",
    arms="both_scorers",
    claim="The Advantage Model is as accurate and better calibrated",
    printed="accuracy 69.25 and 69.43, ECE 4.70 and 3.48 (HH); 74.75 and 75.28, 5.35 and 3.83",
)
def table_1(artifacts: Artifacts) -> SeedResult:
    """Accuracy and calibration error of reward model and Advantage Model."""
    table = {}
    for name, role in MODELS.items():
        row = accuracies(artifacts, role)
        row[ECE_GIVEN] = ece(artifacts.labelled_gaps(role).gap, "width")
        if artifacts.truth:
            row[ECE_RIGHT] = ece(artifacts.clean_gaps(role).gap, "width")
        table[name] = row
    ours, theirs = table[ADVANTAGE], table[REWARD]
    return SeedResult(
        table,
        checks={
            "it is at most half a point less accurate": accuracy_of(ours)
            >= accuracy_of(theirs) - MAX_POINTS_LOST,
            "it is better calibrated on the given labels": ours[ECE_GIVEN] < theirs[ECE_GIVEN],
        },
    )


@exhibit(
    "advantage-model",
    arms="forgetting",
    claim="A reward model's scores differ between tasks; PPO on it loses what SFT was expert at",
    printed="forget set 16.87 / 53.84 / 29.28 (win, tie, lose)",
)
def figure_1(artifacts: Artifacts) -> SeedResult:
    """Reward scores by task, and wins on the forget set.

    Of the reward model, and of PPO on it.
    """
    mean, _, spreads = _scores_by_task(artifacts, "scorer_raw")
    judged = artifacts.document("judge_reward_model", "judgement.json")
    verdict = judged.get("forget_gold") or judged.get("forget_judge_score")
    if verdict is None:
        raise KeyError("the prompts have no forget set: run the study in the synthetic world")
    spread = ratio_of(*spreads)
    return SeedResult(
        table={
            "reward model": {"spread of task means / spread within": spread},
            "PPO on it, forget set": {name: verdict[name] for name in ("win", "tie", "lose")},
        },
        checks={
            "mean scores of tasks lie a quarter of the spread within apart": spread > 0.25,
            "PPO on it loses more of the forget set than it wins": verdict["lose"] > verdict["win"],
        },
        plots=[_task_bars("The reward model scores tasks differently", {"mean": mean})],
    )


@exhibit(
    "advantage-model",
    arms="both_scorers",
    claim="The Advantage Model's curve lies nearer to 1 / (1 + exp(-difference))",
)
def figure_2(artifacts: Artifacts) -> SeedResult:
    """Accuracy by score difference.

    Accuracy by confidence, which is the sigmoid of the score difference.
    """
    curves, errors = {}, {}
    for name, role in MODELS.items():
        gap = artifacts.labelled_gaps(role).gap
        curves[name] = _curve(gap)
        errors[name] = ece(gap, "mass")
    curves["perfect calibration"] = ([0.5, 1.0], [0.5, 1.0])
    return SeedResult(
        table={name: {"calibration error, bins of equal mass": e} for name, e in errors.items()},
        checks={
            "its curve lies nearer to the diagonal": errors["Advantage Model"]
            < errors["reward model"]
        },
        plots=[
            Plot(
                "Accuracy by confidence",
                "confidence, 1 / (1 + exp(-score difference)), middle of bin",
                "accuracy on the given test labels",
                curves,
            )
        ],
    )


def _curve(gap: Tensor) -> tuple[list[float], list[float]]:
    """Five bins from confidence .5 to 1; an empty one gets the bin's own confidence."""
    confidence, correct = pair_confidence(gap)
    _, accuracy, count = calibration_curve(confidence, correct, 10)
    middles = [0.55, 0.65, 0.75, 0.85, 0.95]
    bins = zip(middles, accuracy[5:].tolist(), count[5:].tolist(), strict=True)
    return middles, [share if number else middle for middle, share, number in bins]


@exhibit(
    "advantage-model",
    arms="both_scorers",
    claim="The Advantage Model tells good from bad answers more distinctly",
)
def figure_3(artifacts: Artifacts) -> SeedResult:
    """Scores of good and bad answers.

    How well scores tell good from bad answers: each model's scores in units of their spread.
    """
    table, plots = {}, []
    for name, role in MODELS.items():
        scores = artifacts.scores(role, "test")
        good = torch.tensor([r["chosen_score"] for r in scores.values()], dtype=torch.float64)
        bad = torch.tensor([r["rejected_score"] for r in scores.values()], dtype=torch.float64)
        both = torch.cat([good, bad])
        centre, unit = both.mean(), both.std(correction=0)
        distinct = float(auroc(both, torch.arange(len(both)) < len(good)))
        table[name] = {"AUROC of good against bad answers": distinct}
        plots.append(
            Plot(
                f"Scores of good and bad answers, {name}",
                "score, less its mean, / its standard deviation",
                "answers in a bin of a half (%)",
                {
                    "labelled better": percent_in_bins(((good - centre) / unit).tolist(), BINS),
                    "labelled worse": percent_in_bins(((bad - centre) / unit).tolist(), BINS),
                },
            )
        )
    theirs, ours = (row["AUROC of good against bad answers"] for row in table.values())
    return SeedResult(table, {"it tells them apart better": ours > theirs}, plots)


@exhibit(
    "advantage-model",
    arms="both_scorers",
    claim="The Advantage Model's means differ far less between tasks",
)
def figure_4(artifacts: Artifacts) -> SeedResult:
    """Mean and deviation of scores by task."""
    means, deviations, table = {}, {}, {}
    for name, role in MODELS.items():
        means[name], deviations[name], (spread, within) = _scores_by_task(artifacts, role)
        table[name] = {
            "spread of task means": spread,
            "spread within tasks": within,
            "their ratio": ratio_of(spread, within),
        }
    ours, theirs = table[ADVANTAGE], table[REWARD]
    return SeedResult(
        table,
        checks={
            f"{words} is less": ours[words] < theirs[words]
            for words in ("spread of task means", "their ratio")
        },
        plots=[
            _task_bars("Mean score by task", means),
            _task_bars("Deviation of scores by task", deviations),
        ],
    )


def _scores_by_task(artifacts: Artifacts, role: str) -> tuple[ByTask, ByTask, tuple[float, float]]:
    """Mean and deviation of a scorer's scores by task; the spread of means, and that within."""
    names, which, scores = answer_scores(artifacts, role)
    mean, std = category_moments(which, scores, len(names))
    spreads = spread_of(which, scores, len(names))
    mean_by_task, std_by_task = (
        dict(zip(names, values.tolist(), strict=True)) for values in (mean, std)
    )
    return mean_by_task, std_by_task, spreads


def _task_bars(title: str, scorers: Mapping[str, ByTask]) -> Plot:
    table: dict[str, dict[str, float]] = {}
    for name, by_task in scorers.items():
        for task, value in by_task.items():
            table.setdefault(task, {})[name] = value
    y = "score of the test answers (its own unit)"
    return bar_plot(title, "task", y, table, list(scorers))


@exhibit(
    "advantage-model",
    arms="policies_by_scorer",
    claim="On the Advantage Model quality rises further and does not fall again",
)
def figure_5(artifacts: Artifacts) -> SeedResult:
    """PPO by step on the main set, by what scores it."""
    curves = {words: curve_of(artifacts, name) for name, words in ARMS.items()}
    table = {}
    for name, words in ARMS.items():
        gold = curves[words].gold
        tenth = max(1, len(gold) // 10)
        means = [sum(gold[i : i + tenth]) / tenth for i in range(0, len(gold) - tenth + 1, tenth)]
        fall = {"gold, best less last": max(means) - means[-1]} if means else {}
        table[words] = answers(artifacts, name) | fall | outcome(artifacts, f"judge_{name}")
    am, rm = table[ADVANTAGE], table[REWARD]
    return SeedResult(
        table,
        checks={
            "on the Advantage Model it wins more often against SFT": am[NET] > rm[NET],
            "normalised scores of the reward model do not mend that": am[NET]
            > table["reward model, scores normalised"][NET],
        },
        plots=curve_plots(curves, ("score", "gold", "kl")),
    )


@exhibit(
    "advantage-model",
    arms="policies_by_scorer",
    claim="The Advantage Model loses less of the forget set, with rehearsal least",
    printed="main 12.72/12.62/74.66, 14.87/10.38/74.74, 15.78/9.77/74.45 (win, lose, tie)",
)
def table_2(artifacts: Artifacts) -> SeedResult:
    """Policies against SFT on the main and the forget set."""
    outcomes = {
        eval_set: {
            label: outcome(artifacts, f"judge_{name}", eval_set) for name, label in ARMS.items()
        }
        for eval_set in ("main", "forget")
    }
    table = {
        label: {
            f"{eval_set}, {key}": rows[label][key]
            for eval_set, rows in outcomes.items()
            for key in (WIN, LOSE, TIE, NET)
        }
        for label in ARMS.values()
    }
    reward_model, advantage_model, rehearsed = (table[v] for v in list(ARMS.values())[1:])
    return SeedResult(
        table,
        checks={
            "the Advantage Model wins more on the main set": advantage_model["main, net"]
            > reward_model["main, net"],
            "it loses less of the forget set": advantage_model["forget, lose"]
            < reward_model["forget, lose"],
            "rehearsal loses least of the forget set": rehearsed["forget, lose"]
            <= min(reward_model["forget, lose"], advantage_model["forget, lose"]),
        },
        plots=[outcome_plot(f"The {name} set", rows, "SFT") for name, rows in outcomes.items()],
    )


@exhibit(
    "advantage-model",
    arms="sweep",
    varied="num-clusters",
    claim="The number of clusters hardly matters",
    printed="rewards vary by about .05",
)
def figure_6(artifacts: Artifacts) -> SeedResult:
    """The number of clusters of selective rehearsal."""
    values = swept(artifacts, "policy_num_clusters_")
    names = {count: role.removeprefix("policy_") for count, role in values.items()}
    table = {
        f"{count:g} clusters": {
            **answers(artifacts, name),
            **{f"main, {k}": v for k, v in outcome(artifacts, f"judge_{name}").items()},
            "forget, net": outcome(artifacts, f"judge_{name}", "forget")[NET],
        }
        for count, name in names.items()
    }
    golds = [row.get("gold", row["main, net"]) for row in table.values()]
    return SeedResult(
        table,
        checks={"results lie within .05 of each other": max(golds) - min(golds) < 0.05},
        plots=[
            Plot(
                "The number of clusters",
                "clusters",
                "wins minus losses against SFT",
                {
                    f"{eval_set} set": (
                        list(names),
                        [row[f"{eval_set}, net"] for row in table.values()],
                    )
                    for eval_set in ("main", "forget")
                },
            )
        ],
    )


@exhibit(
    "advantage-model",
    arms="epochs_on_few_pairs",
    claim="Where a reward model is overconfident, the Advantage Model is better calibrated and no "
    "less accurate",
    printed="ECE 4.70 and 3.48 (HH), 5.35 and 3.83, of reward models of 7B after one epoch",
)
def calibration(artifacts: Artifacts) -> SeedResult:
    """Calibration error by epochs on a thousand pairs, temperature scaling beside it.

    Both models after 1 to 8 epochs on the same few pairs, on the test pairs. The paper's reward
    models are overconfident after one epoch; as small as here they are after several. Controls: a
    reward model of one epoch, and one whose scores are divided by the temperature that makes the
    validation labels likeliest.
    """
    table: dict[str, dict[str, float]] = {}
    # By model, in the order of EPOCHS.
    rows: dict[str, list[dict[str, float]]] = {name: [] for name in (REWARD, SCALED, ADVANTAGE)}
    for name, role in ((REWARD, "scorer"), (ADVANTAGE, "advantage")):
        for epochs in EPOCHS:
            where = f"{role}_epochs_{epochs}"
            gap = artifacts.labelled_gaps(where).gap
            label = f"{name}, {'1 epoch' if epochs == 1 else f'{epochs} epochs'}"
            table[label] = _calibrated(artifacts, where, gap)
            rows[name].append(table[label])
            if name == REWARD:
                scaled = gap / likeliest_temperature(validation_gap(artifacts, where))
                label = f"{label}, temperature scaled"
                table[label] = _calibrated(artifacts, where, scaled)
                rows[SCALED].append(table[label])
    return SeedResult(
        table,
        checks=_where_overconfident(*rows.values()),
        plots=[
            Plot(
                f"{titled(column)} by epochs",
                "epochs on a thousand pairs",
                column,
                {
                    name: ([float(epochs) for epochs in EPOCHS], [row[column] for row in by_epochs])
                    for name, by_epochs in rows.items()
                },
            )
            for column in (ECE_GIVEN, OVERCONFIDENCE, RIGHT if artifacts.truth else GIVEN)
        ],
    )


def _where_overconfident(
    theirs: Sequence[Mapping[str, float]],
    scaled: Sequence[Mapping[str, float]],
    ours: Sequence[Mapping[str, float]],
) -> dict[str, bool]:
    """The parts of the claim, after the epochs at which the reward model is overconfident: rows by
    epochs of it, of its scaled scores and of the Advantage Model."""
    over = [
        rows
        for rows in zip(theirs, scaled, ours, strict=True)
        if rows[0][OVERCONFIDENCE] > LEAST_OVERCONFIDENCE
    ]
    once = theirs[0][ECE_GIVEN]
    parts = {
        "the Advantage Model is better calibrated": [
            mine[ECE_GIVEN] < other[ECE_GIVEN] for other, _, mine in over
        ],
        "it is no less accurate": [
            accuracy_of(mine) >= accuracy_of(other) for other, _, mine in over
        ],
        "it is better calibrated than a reward model of one epoch": [
            mine[ECE_GIVEN] < once for _, _, mine in over
        ],
        "it is better calibrated than after temperature scaling": [
            mine[ECE_GIVEN] < other[ECE_GIVEN] for _, other, mine in over
        ],
    }
    return {"several epochs make the reward model overconfident": bool(over)} | {
        f"there {words}": bool(over) and all(is_so) for words, is_so in parts.items()
    }


def _calibrated(artifacts: Artifacts, role: str, gap: Tensor) -> dict[str, float]:
    confidence, correct = pair_confidence(gap)
    return {
        ECE_GIVEN: ece(gap, "width"),
        OVERCONFIDENCE: float(confidence.mean() - correct.double().mean()),
        **accuracies(artifacts, role),
    }


def likeliest_temperature(gap: Tensor) -> float:
    """T that makes labels likeliest by sigmoid(gap / T) [Guo et al. 2017]; gap (N,), logits."""

    def loss(log_temperature: float) -> float:
        return float(-F.logsigmoid(gap / math.exp(log_temperature)).mean())

    return math.exp(minimize_scalar(loss, bounds=(-7, 7), method="bounded").x)


@exhibit(
    "advantage-model",
    arms="rehearsal_by_kl",
    claim="Rehearsal loses less of the forget set, at equal KL too, and selection is why",
)
def rehearsal(artifacts: Artifacts) -> SeedResult:
    """What is lost of the forget set by KL, with rehearsal and without, over KL coefficients.

    PPO-max on the Advantage Model at several KL coefficients, with rehearsal and without.

    The forget set has eight task families of as many prompts each, so that a share lost is the
    mean over families. PPO trains on none of them: answers to its own prompts, which the paper
    rehearses, hold none, and answers to what SFT was taught on do, if selection leaves them. The
    latter drawn at random are the control of selection. Lines are compared over the KL, on the
    main prompts, that they share.
    """
    labels = {name: variant.label for name, variant in REHEARSALS.items()}

    def read(name: str, policy: str) -> dict[str, float]:
        return {
            KL: answers(artifacts, policy)[KL],
            f"{KL}, forget set": answers(artifacts, policy, "forget")[KL],
            **forgetting(artifacts, policy),
            **_rehearsed(artifacts, name, policy),
        }

    table, lines = read_by_kl(labels, REHEARSAL_KL_COEFS, read, LOST)

    def less_lost(ours: str, theirs: str) -> dict[str, bool]:
        pairs = zip(lines[ours][1], lines[theirs][1], strict=True)
        lead = lead_at_equal_kl(lines[ours], lines[theirs])
        words = f"{labels[ours]} loses less than {labels[theirs]}"
        return {
            f"{words} at every KL coefficient": all(mine < other for mine, other in pairs),
            f"{words} at equal KL": (lead or 0.0) < 0,
        }

    return SeedResult(
        table,
        checks={
            "PPO without a KL penalty loses a tenth of the forget set": lines["without"][1][0]
            > 0.1,
            **less_lost("policy", "without"),
            **less_lost("demonstrations", "without"),
            **less_lost("demonstrations", "random"),
        },
        plots=[
            forgetting_plot(
                {labels[name]: line for name, line in lines.items()},
                "A point a KL coefficient. At equal KL: over what two lines share, if that is "
                f"at least {LEAST_SHARED_KL} nats.",
            )
        ],
    )


def _rehearsed(artifacts: Artifacts, name: str, policy: str) -> dict[str, float]:
    """How many task families of the forget set `rehearsal_<name>` has no example of."""
    if not artifacts.has(f"rehearsal_{name}"):
        return {}
    rows = artifacts.rows(f"eval_{policy}", "responses.jsonl")
    families = {row["category"] for row in rows if row["set"] == "forget"}
    shown = {row["category"] for row in artifacts.rows(f"rehearsal_{name}", "rehearsal.jsonl")}
    return {UNSHOWN: float(len(families - shown))}


@exhibit(
    "advantage-model",
    arms="rehearsal_criteria",
    claim="Examples of the highest advantage score keep more than those of other criteria",
    printed="named as other criteria, not tried: entropy, response length",
)
def rehearsal_criteria(artifacts: Artifacts) -> SeedResult:
    """What is lost of the forget set when rehearsed examples are kept by other criteria.

    PPO-max on the Advantage Model without a KL penalty: as much is forgotten as can be. Every
    criterion keeps as many examples of the same clusters.
    """
    labels = {"without": "without rehearsal", **{n: v.label for n, v in CRITERIA.items()}}
    table = {
        label: {
            **forgetting(artifacts, f"{name}_0"),
            KL: answers(artifacts, f"{name}_0")[KL],
            **_rehearsed(artifacts, name, f"{name}_0"),
        }
        for name, label in labels.items()
    }
    first, *others = (CRITERIA[name].label for name in CRITERIA)
    return SeedResult(
        table,
        checks={
            "without rehearsal a tenth of the forget set is lost": table[labels["without"]][LOST]
            > 0.1,
            **{
                f"{first} loses less than {other}": table[first][LOST] < table[other][LOST]
                for other in others
            },
        },
        plots=[
            bar_plot(
                "What is lost of the forget set",
                "rehearsed examples",
                "share of the forget set that is worse than SFT's",
                table,
                {"lost": LOST},
            )
        ],
    )


@exhibit(
    "advantage-model",
    arms="two_behaviour_policies",
    in_world=True,
    claim="Importance weights make the Advantage Model better calibrated on pairs that several "
    "policies wrote",
)
def importance_weights(artifacts: Artifacts) -> SeedResult:
    """Calibration on pairs of two policies, with importance weights and without.

    Scorers of pairs that SFT and a policy of PPO wrote, half each; the latter is pi_phi.

    Without weights the ratios are 1 and the scale of scores, (N - K) / N, is the same.
    """
    table: dict[str, dict[str, float]] = {}
    by_writer: dict[str, dict[str, float]] = {}
    for label, role in WEIGHED.items():
        scored = artifacts.labelled_gaps(role)
        writer = torch.tensor([row["policy"] for row in scored.rows])
        parts = {
            "all pairs": writer >= 0,
            "SFT's pairs": writer == 0,
            "the policy's pairs": writer == 1,
        }
        errors = {whose: ece(scored.gap[chosen], "width") for whose, chosen in parts.items()}
        for whose, error in errors.items():
            by_writer.setdefault(whose, {})[label] = error
        table[label] = accuracies(artifacts, role) | {
            f"{ECE_GIVEN}, {whose}": error for whose, error in errors.items()
        }
    summary = artifacts.document("scorer_weighed", "summary.json")
    ratio = float(summary["mean_absolute_log_ratio"])
    table[WEIGHTS]["mean log-ratio to SFT, nats a token, absolute"] = ratio
    ours, without = table[WEIGHTS], table[UNIT_WEIGHTS]
    return SeedResult(
        table,
        checks={
            "the two policies differ by a tenth of a nat a token": ratio > 0.1,
            "with weights it is better calibrated": ours[f"{ECE_GIVEN}, all pairs"]
            < without[f"{ECE_GIVEN}, all pairs"],
            "with weights it is no less accurate": accuracy_of(ours) >= accuracy_of(without),
        },
        plots=[
            bar_plot(
                "Calibration on pairs of two policies",
                "test pairs",
                ECE_GIVEN,
                by_writer,
                list(WEIGHED),
            )
        ],
    )
