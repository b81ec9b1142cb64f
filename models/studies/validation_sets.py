"""Reading figure 8 of Part II: accuracy by step on three sets of the validation pairs.

Given labels are those of the data. The paper's GPT-4 is a judge that was asked about the validation
pairs (`judge_preferences.splits`); where none was, it is the gold scorer of the synthetic world.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import fmean

from models.reporting.kit.artifacts import Artifacts, ReportInputError, Row
from models.studies.reading import Plot, Reading
from models.studies.scorers import DENOISED, METHODS

GIVEN, BOTH = "given labels", "labels both give"
OVERFITTED = f"overfitted: best less last, {GIVEN}"
Rounds = dict[int, list[Row]]
Curve = tuple[list[float], list[float]]


def figure_8(artifacts: Artifacts) -> Reading:
    """Five ways to train, several epochs, on the validation pairs by step.

    Three sets of labels: as given, the judge's or gold's, and the pairs on which both agree; the
    first alone where nobody else labelled the pairs. What is overfitted is the best accuracy on the
    given labels less the last.
    """
    others = _others_labels(artifacts)
    curves = {
        words: _curves(_rounds(artifacts, f"scorer_{name}_long"), others)
        for name, words in METHODS.items()
    }
    table = {}
    for words, by_set in curves.items():
        table[words] = {f"last, {name}": values[-1] for name, (_, values) in by_set.items()}
        given = by_set[GIVEN][1]
        table[words][OVERFITTED] = max(given) - given[-1]

    def advantage(column: str) -> float:
        ours = fmean(table[METHODS[name]][column] for name in DENOISED)
        return ours - fmean(table[name][column] for name in ("baseline", "margin"))

    overfits_less = advantage(OVERFITTED) < 0
    checks = {"denoised labels overfit the given ones less": overfits_less}
    if others is not None:
        whose = others[0]
        words = f"denoised labels are more accurate on {whose.removesuffix(' labels')}"
        is_better = advantage(f"last, {whose}") > 0
        checks = {words: is_better, "and overfit the given ones less": overfits_less}
    return Reading(table, checks, [_plot(curves, name) for name in next(iter(curves.values()))])


def _plot(curves: Mapping[str, Mapping[str, Curve]], name: str) -> Plot:
    return Plot(
        f"Validation accuracy, {name}",
        "training step",
        f"accuracy on {name} (.5 is chance)",
        {words: by_set[name] for words, by_set in curves.items()},
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


def _rounds(artifacts: Artifacts, role: str) -> Rounds:
    """The validation rows of a scorer by step."""
    by_step: Rounds = {}
    for row in artifacts.rows(role, "validation.jsonl"):
        by_step.setdefault(row["step"], []).append(row)
    if not by_step:
        raise ReportInputError(
            f"{role} left no validation.jsonl: it was trained without score_every, or took fewer "
            "steps than that; take more pairs"
        )
    return by_step


def _curves(by_step: Rounds, others: tuple[str, dict[str, bool]] | None) -> dict[str, Curve]:
    """Accuracy on the validation pairs by step, by whose labels."""
    steps = [float(step) for step in by_step]
    found = {GIVEN: (steps, [_mean(r["gap"] > 0 for r in rows) for rows in by_step.values()])}
    if others is None:
        return found
    whose, turned = others
    parts = [[row for row in rows if row["id"] in turned] for rows in by_step.values()]
    agreed = [[row for row in rows if not turned[row["id"]]] for rows in parts]
    if not agreed[0]:
        raise ReportInputError(
            f"{whose} of the validation pairs are {len(parts[0])}, and none is the label given: "
            f"there is no pair to measure '{BOTH}' on; see alignment and share_tied of who judged"
        )
    theirs = [_mean((r["gap"] > 0) != turned[r["id"]] for r in rows) for rows in parts]
    both = [_mean(row["gap"] > 0 for row in rows) for rows in agreed]
    return found | {whose: (steps, theirs), BOTH: (steps, both)}


def _mean(flags: Iterable[bool]) -> float:
    return fmean(map(float, flags))
