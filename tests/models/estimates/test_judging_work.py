"""What a judge of this process costs PPO, by hand."""

from __future__ import annotations

from typing import Any

from tests.models.estimates.conftest import AMOUNTS, SHAPE, told_characters
from trimtab.models.config.judge import HarmlessConfig, JudgeConfig
from trimtab.models.config.policy import PPOConfig, ScorersConfig
from trimtab.models.config.reporting import EvaluateConfig
from trimtab.models.estimates.memory import FLOAT_BYTES, key_value_cache
from trimtab.models.estimates.stages import work_of
from trimtab.models.estimates.work import StageInputs, Work

LOCAL = {"local_model": "smollm2-135m-instruct"}


def _ppo(judge: dict[str, Any]) -> Work:
    config = PPOConfig(
        num_steps=5,
        critic_pretrain_steps=2,
        rollout_batch=32,
        max_new_tokens=20,
        critic_init="policy",
        scoring=ScorersConfig(judge=JudgeConfig(**judge)),
    )
    return work_of("ppo_max", config, StageInputs(SHAPE, AMOUNTS, scorer_heads=()))


def test_a_judge_in_the_place_of_a_scorer() -> None:
    elsewhere, here = _ppo({"gold_accuracy": 0.9}), _ppo(LOCAL)
    told = told_characters("helpfulness", "score")
    # A prompt of 10 tokens with an answer of 20 and its end, and what the judge is told: passed to
    # sample a rating of at most two tokens, and with it for their probabilities.
    asked = 31 + -(-told // 3)
    assert here.forward_tokens - elsewhere.forward_tokens == 7 * 32 * (asked + asked + 2)
    assert here.sampled_tokens - elsewhere.sampled_tokens == 7 * 32 * 2
    weights = FLOAT_BYTES * SHAPE.policy_parameters
    for name, phase in elsewhere.phases.items():
        assert here.phases[name].frozen - phase.frozen == weights
    assert here.phases.keys() - elsewhere.phases.keys() == {"judging"}
    judging = here.phases["judging"]
    assert judging.frozen == here.phases["sampling"].frozen
    # At most 64 at once, which is one batch: 64 (asked + 2) is below 32,768.
    assert judging.cache == key_value_cache(SHAPE, 64 * (asked + 2))


def test_thoughts_before_a_rating_are_sampled() -> None:
    thinking = _ppo({**LOCAL, "chain_of_thought": True, "max_thought_tokens": 30})
    assert thinking.sampled_tokens - _ppo(LOCAL).sampled_tokens == 7 * 32 * 30
    assert thinking.phases["thinking"].cache > 0


def test_a_judge_of_harm_sees_every_answer() -> None:
    judge = JudgeConfig(**LOCAL, rubric="harmlessness")
    harmless = HarmlessConfig(judge=judge, categories=("harmful",))
    inputs = StageInputs(SHAPE, AMOUNTS)
    plain, asked = (
        work_of("evaluate", EvaluateConfig(max_new_tokens=20, harmless=each), inputs)
        for each in (None, harmless)
    )
    told = told_characters("harmlessness", "score")
    shown = 31 + -(-told // 3)
    assert asked.forward_tokens - plain.forward_tokens == 12 * (shown + shown + 2)
    assert asked.sampled_tokens - plain.sampled_tokens == 12 * 2
    weights = FLOAT_BYTES * SHAPE.policy_parameters
    assert asked.phases["judging"].frozen == 2 * weights  # beside the policy
