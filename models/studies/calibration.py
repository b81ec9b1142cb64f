"""Reading the Advantage Model paper's table 1 and figures 1 to 4: calibration and scores by task.

Both models are trained on the same pairs, as given: roles `scorer_raw` and `advantage_raw`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from models.reporting.kit.artifacts import Artifacts
from models.reporting.run.scorers import answer_scores, category_moments, ece, ratio_of, spread_of
from models.statistics.calibration import auroc, calibration_curve, pair_confidence
from models.studies.reading import Plot, Reading
from models.studies.scorers import GIVEN, RIGHT, accuracies

MODELS = {"reward model": "scorer_raw", "Advantage Model": "advantage_raw"}
ECE_GIVEN, ECE_RIGHT = "calibration error, given labels", "calibration error, right labels"
MOST_POINTS_LOST = 0.005


def table_1(artifacts: Artifacts) -> Reading:
    """Accuracy and calibration error."""
    table = {}
    for name, role in MODELS.items():
        row = accuracies(artifacts, role)
        row[ECE_GIVEN] = ece(artifacts.labelled_gaps(role).gap, "width")
        if artifacts.truth:
            row[ECE_RIGHT] = ece(artifacts.clean_gaps(role).gap, "width")
        table[name] = row
    ours, theirs = table["Advantage Model"], table["reward model"]
    best = RIGHT if RIGHT in ours else GIVEN
    return Reading(
        table,
        checks={
            "it is at most half a point less accurate": ours[best]
            >= theirs[best] - MOST_POINTS_LOST,
            "it is better calibrated on the given labels": ours[ECE_GIVEN] < theirs[ECE_GIVEN],
        },
    )


def figure_1(artifacts: Artifacts) -> Reading:
    """The reward model's mean score by task, and PPO on it on the forget set."""
    names, mean, _ = _by_task(artifacts, "scorer_raw")
    judged = artifacts.document("judge_reward_model", "judgement.json")
    verdict = judged.get("forget_gold") or judged.get("forget_judge_score")
    if verdict is None:
        raise KeyError("the prompts have no forget set: run the study in the synthetic world")
    _, which, scores = answer_scores(artifacts, "scorer_raw")
    spread = ratio_of(*spread_of(which, scores, len(names)))
    return Reading(
        table={
            "reward model": {"spread of task means / spread within": spread},
            "PPO on it, forget set": {name: verdict[name] for name in ("win", "tie", "lose")},
        },
        checks={
            "mean scores of tasks lie a quarter of the spread within apart": spread > 0.25,
            "PPO on it loses more of the forget set than it wins": verdict["lose"] > verdict["win"],
        },
        plots=[_task_bars("The reward model scores tasks differently", names, {"mean": mean})],
    )


def figure_2(artifacts: Artifacts) -> Reading:
    """Accuracy by confidence, which is the sigmoid of the score difference."""
    curves, errors = {}, {}
    for name, role in MODELS.items():
        gap = artifacts.labelled_gaps(role).gap
        curves[name] = _curve(gap)
        errors[name] = ece(gap, "mass")
    curves["perfect calibration"] = ([0.5, 1.0], [0.5, 1.0])
    return Reading(
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
    found = zip(middles, accuracy[5:].tolist(), count[5:].tolist(), strict=True)
    return middles, [share if number else middle for middle, share, number in found]


def figure_3(artifacts: Artifacts) -> Reading:
    """How well scores tell good from bad answers: each model's scores in units of their spread."""
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
                    "labelled better": _shares((good - centre) / unit),
                    "labelled worse": _shares((bad - centre) / unit),
                },
            )
        )
    found = [table[name]["AUROC of good against bad answers"] for name in MODELS]
    return Reading(table, {"it tells them apart better": found[1] > found[0]}, plots)


def _shares(values: Tensor) -> tuple[list[float], list[float]]:
    edges = torch.arange(-3, 3.1, 0.5, dtype=torch.float64)
    counts = torch.histogram(values.clamp(-3, 3), edges).hist
    return ((edges[1:] + edges[:-1]) / 2).tolist(), (100 * counts / counts.sum()).tolist()


def figure_4(artifacts: Artifacts) -> Reading:
    """Mean and deviation of scores by task."""
    means, deviations, table = {}, {}, {}
    names: list[str] = []
    for name, role in MODELS.items():
        names, means[name], deviations[name] = _by_task(artifacts, role)
        _, which, scores = answer_scores(artifacts, role)
        spread, within = spread_of(which, scores, len(names))
        table[name] = {
            "spread of task means": spread,
            "spread within tasks": within,
            "their ratio": ratio_of(spread, within),
        }
    ours, theirs = table["Advantage Model"], table["reward model"]
    return Reading(
        table,
        checks={
            f"{words} is less": ours[words] < theirs[words]
            for words in ("spread of task means", "their ratio")
        },
        plots=[
            _task_bars("Mean score by task", names, means),
            _task_bars("Deviation of scores by task", names, deviations),
        ],
    )


def _by_task(artifacts: Artifacts, role: str) -> tuple[list[str], list[float], list[float]]:
    names, which, scores = answer_scores(artifacts, role)
    mean, std = category_moments(which, scores, len(names))
    return names, mean.tolist(), std.tolist()


def _task_bars(title: str, names: list[str], series: dict[str, list[float]]) -> Plot:
    places = [float(index) for index in range(len(names))]
    return Plot(
        title,
        "task",
        "score of the test answers (its own unit)",
        {name: (places, values) for name, values in series.items()},
        kind="bars",
        ticks=tuple(names),
    )
