"""The Advantage Model paper's figures by hand: tasks, confidence, and what policies keep."""

from __future__ import annotations

from typing import Any

import pytest

from tests.models.studies.conftest import Run, pair, score
from tests.models.studies.policies_by_hand import judged, policy
from trimtab.models.studies.advantage_model import (
    ARMS,
    figure_1,
    figure_2,
    figure_4,
    figure_5,
    table_2,
)

TASKS = {"test.jsonl": [pair("e0", "add"), pair("e1", "sort")]}


def _by_task(add: tuple[float, float], sort: tuple[float, float]) -> dict[str, Any]:
    """A test pair of each task with its two scores."""
    rows = [
        score(f"e{n}", good) | {"rejected_score": bad} for n, (good, bad) in enumerate((add, sort))
    ]
    return {"scores.jsonl": rows}


def test_figure_1_sets_tasks_apart_and_looks_at_what_is_forgotten(run: Run) -> None:
    roles = {
        "preferences": TASKS,
        "scorer_raw": _by_task((5.0, 3.0), (1.0, -1.0)),
        "judge_reward_model": judged(0.0, forget=-0.2),
    }
    reading = figure_1(run(roles))
    # Means 4 and 0: 2 from their mean; within a task answers lie 1 from theirs.
    assert reading.table["reward model"] == {"spread of task means / spread within": 2.0}
    assert reading.table["PPO on it, forget set"]["lose"] == pytest.approx(0.35)
    assert all(reading.checks.values())
    roles |= {
        "scorer_raw": _by_task((1.0, -1.0), (1.1, -0.9)),
        "judge_reward_model": judged(0.0, forget=0.2),
    }
    assert not any(figure_1(run(roles)).checks.values())


def test_figure_2_is_confidence_against_accuracy(run: Run) -> None:
    preferences = {"test.jsonl": [pair(f"e{n}") for n in range(4)]}

    def scores(gap: float) -> dict[str, Any]:
        """Three of four pairs are right, each with the same confidence."""
        return {"scores.jsonl": [score(f"e{n}", gap if n else -gap) for n in range(4)]}

    roles = {"preferences": preferences, "scorer_raw": scores(9.0), "advantage_raw": scores(1.0)}
    reading = figure_2(run(roles))
    assert all(reading.checks.values())
    # sigmoid(1) = .73 falls into the bin from .7 to .8, sigmoid(9) into the last.
    curves = reading.plots[0].series
    assert curves["Advantage Model"][1] == pytest.approx([0.55, 0.65, 0.75, 0.85, 0.95])
    assert curves["reward model"][1] == pytest.approx([0.55, 0.65, 0.75, 0.85, 0.75])
    roles |= {"scorer_raw": scores(1.0), "advantage_raw": scores(9.0)}
    assert not any(figure_2(run(roles)).checks.values())


def test_figure_4_compares_spreads_between_tasks(run: Run) -> None:
    far, near = _by_task((5.0, 3.0), (1.0, -1.0)), _by_task((1.5, -0.5), (0.5, -1.5))
    roles = {"preferences": TASKS, "scorer_raw": far, "advantage_raw": near}
    reading = figure_4(run(roles))
    # Means .5 and -.5: half from their mean.
    assert list(reading.table["Advantage Model"].values()) == [0.5, 1.0, 0.5]
    assert list(reading.table["reward model"].values()) == [2.0, 1.0, 2.0]
    assert all(reading.checks.values())
    roles |= {"scorer_raw": near, "advantage_raw": far}
    assert not any(figure_4(run(roles)).checks.values())


def _policies(nets: dict[str, float]) -> dict[str, Any]:
    roles: dict[str, Any] = {}
    for name in ARMS:
        roles |= policy(name, nets[name], [0.0] * 3, gold=[0.5, 0.9, 0.7])
    return roles


def test_figure_5_wants_the_advantage_model_first(run: Run) -> None:
    nets = {"raw_scores_rm": 0.0, "reward_model": 0.1, "advantage_model": 0.2, "full": 0.2}
    reading = figure_5(run(_policies(nets)))
    assert all(reading.checks.values())
    row = reading.table["Advantage Model"]
    assert row["gold, best less last"] == pytest.approx(0.2)
    nets["advantage_model"] = 0.0
    assert not any(figure_5(run(_policies(nets))).checks.values())


def test_table_2_counts_what_is_lost_of_the_forget_set(run: Run) -> None:
    def roles(*outcomes: tuple[float, float]) -> dict[str, Any]:
        """Wins less losses on the main and on the forget set, of each arm."""
        pairs = zip(ARMS, outcomes, strict=True)
        return {f"judge_{name}": judged(main, forget=forget) for name, (main, forget) in pairs}

    reading = table_2(run(roles((0.1, -0.4), (0.2, -0.3), (0.3, -0.2), (0.3, -0.1))))
    assert all(reading.checks.values())
    assert reading.table["Advantage Model + rehearsal"]["forget, lose"] == pytest.approx(0.3)
    worse = roles((0.1, -0.4), (0.2, -0.1), (0.1, -0.2), (0.1, -0.3))
    assert not any(table_2(run(worse)).checks.values())
