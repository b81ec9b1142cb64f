"""Alignment against wins, by hand: three pairs, three judges, each used in two ways."""

from __future__ import annotations

from typing import Any

import pytest

from tests.models.studies.conftest import Run, pair, truth
from tests.models.studies.policies_by_hand import judged
from trimtab.models.reporting.kit.artifacts import ReportInputError
from trimtab.models.studies.rlaif import (
    ALIGNMENT,
    HARMLESS,
    LABELS,
    MARGIN,
    WINS,
    alignment,
    feedback,
)

# Of three pairs the second is labelled wrong: the truth is .9, .1, .9.
MEASURE_NAMES = {0.5: [0.5, 0.5, 0.5], 0.8: [0.8, 0.8, 0.8], 1.0: [1.0, 0.0, 1.0]}


def _roles(wins: dict[str, float]) -> dict[str, dict[str, Any]]:
    roles: dict[str, dict[str, Any]] = {
        "preferences": {
            "train.jsonl": [pair(name) for name in "abc"],
            "truth.jsonl": [truth(name, name == "b") for name in "abc"],
        }
    }
    summary = {"position_bias": 0.0, "share_tied": 0.0, "num_unparsed": 0, "cost": 0.0}
    for accuracy, preferences in MEASURE_NAMES.items():
        rows = [
            {"id": name, "split": "train", "preference": preference}
            for name, preference in zip("abc", preferences, strict=True)
        ]
        roles[f"judged_{accuracy:g}"] = {"judgements.jsonl": rows, "summary.json": summary}
    for name, win in wins.items():
        verdict = {"win": win, "tie": 0.0, "lose": 1 - win, "net": 2 * win - 1}
        roles[f"judge_{name}"] = {"judgement.json": {"main_gold": verdict}}
        answers = [{"set": "main", "gold": win, "kl": 1.0, "length": 5}]
        roles[f"eval_{name}"] = {
            "responses.jsonl": answers,
            "summary.json": {"main_harmless": 0.75},
        }
    return roles


def _wins(**changes: float) -> dict[str, float]:
    own = {"people": 0.6}
    for kind in ("distilled", "direct"):
        own |= {f"{kind}_0.5": 0.4, f"{kind}_0.8": 0.6, f"{kind}_1": 0.8}
    return own | {name.replace("__", "."): value for name, value in changes.items()}


def test_every_policy_has_its_judges_alignment(run: Run) -> None:
    reading = alignment(run(_roles(_wins())))
    row = reading.table["direct, right in 0.8"]
    # It agrees with every label, of which two are right.
    assert (row[ALIGNMENT], row[LABELS]) == (pytest.approx(2 / 3), 1.0)
    assert (row[WINS], row[MARGIN], row[HARMLESS]) == (0.6, pytest.approx(0.2), 0.75)
    best = reading.table["distilled, right in 1"]
    assert (best[ALIGNMENT], best[LABELS]) == (1.0, pytest.approx(2 / 3))
    assert reading.table["people's labels"][WINS] == 0.6
    assert all(reading.checks.values()) and len(reading.checks) == 4
    places, wins = reading.plots[0].series["distilled"]
    assert places == pytest.approx([0.5, 2 / 3, 1.0])
    assert wins == [0.4, 0.6, 0.8]


def test_a_policy_that_does_not_follow_its_judge_fails_the_claim(run: Run) -> None:
    reading = alignment(run(_roles(_wins(direct_1=0.3, distilled_0__8=0.5))))
    assert list(reading.checks.values()) == [True, False, False, True]


def test_without_truth_there_is_no_curve(run: Run) -> None:
    roles = _roles(_wins())
    del roles["preferences"]["truth.jsonl"]
    with pytest.raises(ReportInputError, match="no verdicts on pairs whose truth is known"):
        alignment(run(roles))


def test_kinds_of_feedback_are_compared_head_to_head(run: Run) -> None:
    def against(distilled: float, direct: float, each_other: float) -> dict[str, Any]:
        return {
            "distilled_versus_people": judged(distilled),
            "direct_versus_people": judged(direct),
            "direct_versus_distilled": judged(each_other),
        }

    own = _roles(_wins(people_smoothed=0.6))
    reading = feedback(run(own | against(-0.04, 0.0, 0.1)))
    assert all(reading.checks.values())
    assert reading.table["distilled"][WINS] == 0.6
    assert reading.table["direct"][ALIGNMENT] == pytest.approx(2 / 3)
    row = reading.table["direct against distilled"]
    assert row == {MARGIN: pytest.approx(0.1), "wins": pytest.approx(0.3)}
    assert not any(feedback(run(own | against(-0.1, -0.2, 0.0))).checks.values())
