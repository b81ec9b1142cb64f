"""What judging policies costs: every two of them on every prompt, in both orders."""

from __future__ import annotations

from typing import Any

from tests.models.estimates.conftest import AMOUNTS, SHAPE, told_characters
from trimtab.models.config.judge import JudgeAnswersConfig, JudgeConfig
from trimtab.models.estimates.stages import work_of
from trimtab.models.estimates.work import StageInputs, Work


def _judged(judge: dict[str, Any], **more: Any) -> Work:
    config = JudgeAnswersConfig(name="m", judge=JudgeConfig(**judge), **more)
    return work_of("judge_answers", config, StageInputs(SHAPE, AMOUNTS, num_policies=4))


def test_a_judge_here_sees_six_pairs_of_four_policies_in_both_orders() -> None:
    base = {"local_model": "smollm2-135m-instruct"}
    told = told_characters("helpfulness", "compare")
    asked = 42 + -(-told // 3)  # a pair, and a token for three characters of the prompts
    work = _judged(base)
    assert work.examples == 12 * 6
    assert work.forward_tokens == 2 * 12 * 6 * (asked + 1)
    assert _judged(base, max_prompts=2, sets=("main", "forget")).examples == 2 * 2 * 6
    assert _judged(base, max_prompts=5, sets=("main",)).examples == 5 * 6
    assert _judged(base, max_prompts=9).examples == 12 * 6  # there are no more


def test_a_judge_elsewhere_costs_nothing_here() -> None:
    for judge in ({"gold_accuracy": 0.9}, {"endpoint": {"model": "m"}}):
        work = _judged(judge)
        assert (work.examples, work.forward_tokens, dict(work.phases)) == (12 * 6, 0, {})
