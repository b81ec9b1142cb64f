"""The Advantage Model paper's figures by hand: tasks, confidence, and what policies keep."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tests.models.studies.conftest import Run, pair, score
from tests.models.studies.policies_by_hand import judged, policy
from trimtab.models.studies.advantage_model import (
    ARMS,
    calibration,
    figure_1,
    figure_2,
    figure_4,
    figure_5,
    importance_weights,
    margin_by_strength,
    table_2,
)
from trimtab.models.studies.results import Verdict
from trimtab.models.studies.variants import (
    EPOCHS,
    MARGIN_EPOCHS,
)

TASKS = {"test.jsonl": [pair("e0", "add"), pair("e1", "sort")]}


def _scores_by_task(add: tuple[float, float], sort: tuple[float, float]) -> dict[str, Any]:
    """A test pair of each task with its two scores."""
    rows = [
        score(f"e{n}", good) | {"rejected_score": bad} for n, (good, bad) in enumerate((add, sort))
    ]
    return {"scores.jsonl": rows}


def test_figure_1_sets_tasks_apart_and_looks_at_what_is_forgotten(run: Run) -> None:
    roles = {
        "preferences": TASKS,
        "scorer_raw": _scores_by_task((5.0, 3.0), (1.0, -1.0)),
        "judge_reward_model": judged(0.0, forget=-0.2),
    }
    reading = figure_1(run(roles))
    # Means 4 and 0: 2 from their mean; within a task answers lie 1 from theirs.
    assert reading.table["reward model"] == {"spread of task means / spread within": 2.0}
    assert reading.table["PPO on it, forget set"]["lose"] == pytest.approx(0.35)
    assert all(reading.checks.values())
    roles |= {
        "scorer_raw": _scores_by_task((1.0, -1.0), (1.1, -0.9)),
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
    far, near = _scores_by_task((5.0, 3.0), (1.0, -1.0)), _scores_by_task((1.5, -0.5), (0.5, -1.5))
    roles = {"preferences": TASKS, "scorer_raw": far, "advantage_raw": near}
    reading = figure_4(run(roles))
    # Means .5 and -.5: half from their mean.
    assert list(reading.table["Advantage Model"].values()) == [0.5, 1.0, 0.5]
    assert list(reading.table["reward model"].values()) == [2.0, 1.0, 2.0]
    assert all(reading.checks.values())
    roles |= {"scorer_raw": near, "advantage_raw": far}
    assert not any(figure_4(run(roles)).checks.values())


def _policies(nets: dict[str, float], gold: list[float]) -> dict[str, Any]:
    roles: dict[str, Any] = {}
    for name in ARMS:
        roles |= policy(name, nets[name], [0.0] * len(gold), gold=gold)
        if gold == NO_GOLD:
            roles[f"eval_{name}"] = {"responses.jsonl": [{"set": "main", "kl": 1.0, "length": 5}]}
    return roles


NO_GOLD = [0.0] * 3


def test_figure_5_wants_the_advantage_model_first_and_no_fall(run: Run) -> None:
    nets = dict.fromkeys(ARMS, 0.2) | {"raw_reward_model": 0.0, "reward_model": 0.1}
    reading = figure_5(run(_policies(nets, [0.0, 1.0, 0.9])))
    # Of all that was gained a tenth is lost again.
    assert all(reading.checks.values())
    row = reading.table["Advantage Model"]
    assert row["gold, best less first"] == pytest.approx(1.0)
    assert row["gold, best less last"] == pytest.approx(0.1)
    nets |= {"raw_advantage_model": 0.0, "advantage_model": 0.0}
    assert set(figure_5(run(_policies(nets, [0.5, 1.0, 0.9]))).checks.values()) == {False}
    assert list(figure_5(run(_policies(nets, NO_GOLD))).checks.values())[-1] is None


def _table_2(run: Run, **outcomes: tuple[float, float]) -> dict[str, Verdict]:
    """Wins less losses on the main and on the forget set, of each arm."""
    roles = {
        f"judge_{name}": judged(main, forget=forget) for name, (main, forget) in outcomes.items()
    }
    reading = table_2(run(roles))
    lost = reading.table["Advantage Model + rehearsal, scores normalised"]["forget, lose"]
    assert lost == pytest.approx(0.25 - outcomes["full"][1] / 2)
    return dict(reading.checks)


def test_table_2_counts_what_is_lost_of_the_forget_set(run: Run) -> None:
    reward, advantage, rehearsed = (0.1, -0.3), (0.3, -0.2), (0.3, -0.1)
    better = {"raw_reward_model": reward, "reward_model": reward}
    better |= {"raw_advantage_model": advantage, "advantage_model": advantage}
    better |= {"raw_full": rehearsed, "full": rehearsed}
    assert all(_table_2(run, **better).values())
    # On raw scores alone it is as bad as can be; to lose as much as the least is not to lose least.
    worse = better | {"raw_advantage_model": (0.1, -0.3), "raw_full": (0.3, -0.3)}
    seen = _table_2(run, **worse)
    assert list(seen.values()) == [False, False, False, True, True, True]
    assert list(seen)[-1] == "rehearsal loses least of the forget set, scores normalised"


def _confident(gap: float, right: int) -> dict[str, Any]:
    """Of twenty test pairs so many are right, all of one gap; on validation three in four are."""
    rows = [score(f"e{n}", gap if n < right else -gap) for n in range(20)]
    rows += [score(f"v{n}", gap if n < 15 else -gap, "validation") for n in range(20)]
    return {"scores.jsonl": rows}


def test_calibration_is_compared_where_the_reward_model_is_overconfident(run: Run) -> None:
    preferences = {"test.jsonl": [pair(f"e{n}") for n in range(20)]}
    # Fifteen of twenty are right: a gap of 1.1 is confident of .75, one of 3 of .95.
    found = {f"scorer_epochs_{n}": _confident(1.0 if n == 1 else 3.0, 15) for n in EPOCHS}
    ours = {f"advantage_epochs_{n}": _confident(1.0986, 15) for n in EPOCHS}
    reading = calibration(run({"preferences": preferences, **found, **ours}))
    row = reading.table["reward model, 4 epochs"]
    assert row["confidence less accuracy, given labels"] == pytest.approx(0.2026, abs=1e-4)
    assert row["calibration error, given labels"] == pytest.approx(0.2026, abs=1e-4)
    # Scaled it is as right about itself: only that control is not beaten, but for rounding.
    scaled = reading.table["reward model, 4 epochs, temperature scaled"]
    assert scaled["calibration error, given labels"] == pytest.approx(0.0, abs=1e-3)
    assert list(reading.checks.values())[:4] == [True] * 4
    humble = {f"scorer_epochs_{n}": _confident(1.0, 15) for n in EPOCHS}
    nothing = calibration(run({"preferences": preferences, **humble, **ours}))
    assert list(nothing.checks.values()) == [False, None, None, None, None]


def test_bounds_by_strength_are_held_against_a_constant_and_against_the_vote(run: Run) -> None:
    preferences = {"test.jsonl": [pair(f"e{n}") for n in range(20)]}

    def roles(**gaps: float) -> dict[str, Any]:
        """Fifteen of twenty are right, as a gap of ln 3 says."""
        return {"preferences": preferences} | {
            f"{name}_{epochs}": _confident(gap, 15)
            for name, gap in gaps.items()
            for epochs in MARGIN_EPOCHS
        }

    others = {"scorer_few": 3.0, "scorer_posterior": 2.0, "advantage_constant": 0.5}
    reading = margin_by_strength(run(roles(**others, advantage_by_strength=math.log(3))))
    # A temperature makes the reward model as right about itself, but for rounding.
    better = [shown for words, shown in reading.checks.items() if "scaled" not in words]
    assert better == [True] * 3
    assert len(reading.table) == 10 and len(reading.plots) == 2
    row = reading.table["Advantage Model, m(x) by strength, 4 epochs"]
    assert row["calibration error, given labels"] == pytest.approx(0.0, abs=1e-6)
    worse = margin_by_strength(run(roles(**others, advantage_by_strength=-9.0)))
    assert set(worse.checks.values()) == {False}


def test_importance_weights_are_read_by_who_wrote_the_pair(run: Run) -> None:
    preferences = {"test.jsonl": [pair(f"e{n}") | {"policy": n % 2} for n in range(8)]}

    def scored(gaps: tuple[float, float]) -> dict[str, Any]:
        """Three of four pairs of each policy are right, all of one gap."""
        rows = [score(f"e{n}", gaps[n % 2] * (1 if n > 1 else -1)) for n in range(8)]
        return {"scores.jsonl": rows, "summary.json": {"mean_absolute_log_ratio": 0.2}}

    calm, sure = math.log(3), 9.0
    roles = {
        "preferences": preferences,
        "scorer_two": scored((sure, sure)),
        "scorer_unweighed": scored((calm, sure)),
        "scorer_weighed": scored((calm, calm)),
        "scorer_printed": scored((sure, sure)),
    }
    reading = importance_weights(run(roles))
    assert all(reading.checks.values())
    row = reading.table["Advantage Model, all ratios 1"]
    assert row["calibration error, given labels, SFT's pairs"] == pytest.approx(0.0, abs=1e-6)
    assert row["calibration error, given labels, the policy's pairs"] == pytest.approx(
        0.25, abs=1e-3
    )
    assert reading.plots[0].ticks == ("all pairs", "SFT's pairs", "the policy's pairs")
    worse = roles | {"scorer_weighed": scored((-sure, -sure))}
    worse["scorer_weighed"]["summary.json"] = {"mean_absolute_log_ratio": 0.0}
    assert not any(importance_weights(run(worse)).checks.values())
