"""What judging all pairs costs: tokens and memory by hand on small numbers."""

from __future__ import annotations

from typing import Any

import pytest

from tests.models.estimates.conftest import AMOUNTS, SHAPE, told_characters
from trimtab.models.config.judge import JudgeConfig, JudgePreferencesConfig
from trimtab.models.estimates.memory import FLOAT_BYTES
from trimtab.models.estimates.shapes import PlanError
from trimtab.models.estimates.stages import work_of
from trimtab.models.estimates.stages.sampling import asked_tokens
from trimtab.models.estimates.work import StageInputs, Work


def _judged(judge: dict[str, Any], **more: Any) -> Work:
    config = JudgePreferencesConfig(judge=JudgeConfig(**judge), **more)
    return work_of("judge_preferences", config, StageInputs(SHAPE, AMOUNTS))


def test_a_judge_here_sees_each_pair_in_both_orders() -> None:
    base = {"local_model": "smollm2-135m-instruct"}
    told = told_characters("helpfulness", "compare")
    asked = 42 + -(-told // 3)  # a pair, and a token for three characters of the prompts
    plain = _judged(base)
    assert (plain.examples, plain.sampled_tokens) == (37, 0)
    assert plain.forward_tokens == 2 * 37 * (asked + 1)
    assert (
        plain.peak[0] == "judging" and plain.peak[1].frozen == FLOAT_BYTES * SHAPE.policy_parameters
    )
    # Three samples of 20 tokens of thoughts, passed again with the question for the answer.
    config = {"chain_of_thought": True, "max_thought_tokens": 20, "num_samples": 3}
    thinking = _judged({**base, **config, "temperature": 1.0}, max_pairs=10)
    assert thinking.examples == 10
    assert thinking.sampled_tokens == 2 * 3 * 10 * 20
    assert thinking.forward_tokens == 2 * 3 * 10 * (asked + asked + 20 + 1)
    assert thinking.peak[0] == "thinking" and thinking.peak[1].cache > 0


def test_tokens_of_requests_and_answers_to_an_endpoint() -> None:
    """Ten pairs of 300 tokens together, what it is told, and a verdict of a token; with thoughts
    these, what it is told and the pairs once more with them."""
    told = 10 * -(-told_characters("helpfulness", "compare") // 3)
    judge = JudgeConfig.model_validate({"endpoint": {"model": "m"}})
    assert asked_tokens(judge, 10, 300) == 2 * (300 + told + 10)
    thinking = judge.model_copy(update={"chain_of_thought": True, "max_thought_tokens": 20})
    assert asked_tokens(thinking, 10, 300) == 2 * (300 + told + 200 + 300 + told + 200 + 10)


def test_a_judge_elsewhere_costs_nothing_here() -> None:
    for judge in ({"gold_accuracy": 0.9}, {"endpoint": {"model": "m"}}):
        work = _judged(judge, splits=("train", "test"))
        assert (work.examples, work.forward_tokens, dict(work.phases)) == (37 + 13, 0, {})


def test_a_judge_of_unknown_size_is_named() -> None:
    with pytest.raises(PlanError, match=r"judge_preferences\.judge\.local_model is 'some/model'"):
        _judged({"local_model": "some/model"})
