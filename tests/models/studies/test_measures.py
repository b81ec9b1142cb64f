"""Figures of policies on curves and verdicts written down by hand."""

from __future__ import annotations

from typing import Any

import pytest

from tests.models.studies.conftest import Run
from tests.models.studies.policies_by_hand import scored
from trimtab.models.reporting.kit.artifacts import ReportInputError
from trimtab.models.studies.measures import unevenness
from trimtab.models.studies.part_one import figure_9


def test_even_growth_is_a_line() -> None:
    assert unevenness([1.0, 3.0, 5.0, 7.0]) == pytest.approx(0.0)
    assert unevenness([2.0, 2.0, 2.0]) == 0.0
    # 0, 1, 0: slope 0, mean 1/3, residuals -1/3, 2/3, -1/3: spread sqrt(2) / 3 over a range of 1.
    assert unevenness([0.0, 1.0, 0.0]) == pytest.approx(2**0.5 / 3)


def test_even_growth_does_not_know_the_unit() -> None:
    values = [0.0, 1.0, 4.0, 9.0]
    assert unevenness([5 + 10 * v for v in values]) == pytest.approx(unevenness(values))


def _verdict(win: float, lose: float) -> dict[str, float]:
    return {"win": win, "tie": 1 - win - lose, "lose": lose, "net": win - lose}


def _judged(win: float, lose: float, held_out: tuple[float, float] = (0.3, 0.2)) -> dict[str, Any]:
    verdicts = {"main_gold": _verdict(win, lose), "held_out_gold": _verdict(*held_out)}
    return {"judgement.json": verdicts}


def test_gold_decides_and_reward_models_where_there_is_none(run: Run) -> None:
    both = {"main_gold": _verdict(0.5, 0.1), "main_judge_score": _verdict(0.1, 0.5)}
    roles = {
        "a": {"judgement.json": both},
        "b": {"judgement.json": {"main_judge_score": _verdict(0.2, 0.4)}},
    }
    judged = run(roles)
    assert judged.outcome("a")["net"] == pytest.approx(0.4)
    assert judged.outcome("b")["net"] == pytest.approx(-0.2)
    with pytest.raises(ReportInputError, match="no prompts of the set 'forget'"):
        judged.outcome("a", "forget")


def _policy(kl: list[float]) -> dict[str, Any]:
    monitors = {"perplexity": 2.0, "response_length": 5.0, "score_std": 9.0}
    metrics = [
        {"step": n, "time": 0.0, "metrics": {**monitors, "score": float(n), "kl": value}}
        for n, value in enumerate(kl, start=1)
    ]
    return {"metrics.jsonl": metrics, "rollouts.jsonl": []}


def test_ppo_max_is_stable_only_below_its_bound_of_kl(run: Run) -> None:
    answers = {"responses.jsonl": [{"set": "main", "kl": 1.0, "length": 5}]}
    roles = {"eval_ppo_max_rm": answers, "judge_ppo_max_rm": _judged(0.5, 0.1)}
    roles["eval_start_ppo_max_rm"] = scored(0.0, 2.0)
    steady = figure_9(run({**roles, "policy_ppo_max_rm": _policy([0.1, 0.5, 1.0])}))
    assert all(steady.checks.values())
    # SFT's answers score 1 at a spread of 1, whatever the first steps do: 3 is 2 spreads more.
    row = steady.table["PPO-max"]
    assert (row["score gained, spreads"], row["KL, nats"]) == (2.0, 1.0)
    jump = figure_9(run({**roles, "policy_ppo_max_rm": _policy([0.1, 2.5, 1.0])}))
    assert not jump.checks["KL stays below 2 nats"]
