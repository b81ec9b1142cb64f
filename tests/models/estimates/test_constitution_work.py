"""The work of Constitutional AI's stages: sums by hand."""

from __future__ import annotations

from typing import Any

import pytest

from tests.models.estimates.conftest import AMOUNTS, SHAPE, TRAIN
from trimtab.models.config.judge import ChatModelConfig, JudgeConfig, JudgePreferencesConfig
from trimtab.models.config.policy import ConstitutionalSFTConfig, ReviseConfig
from trimtab.models.estimates.memory import FLOAT_BYTES
from trimtab.models.estimates.shapes import PlanError
from trimtab.models.estimates.stages import work_of
from trimtab.models.estimates.work import StageInputs, Work
from trimtab.models.judge.constitutions import MAX_CHARACTERS
from trimtab.models.judge.rubrics import load_questions

HERE = "smollm2-135m-instruct"
POLICY = FLOAT_BYTES * SHAPE.policy_parameters


def _revise(judge: dict[str, Any], **more: Any) -> ReviseConfig:
    lengths = {"max_new_tokens": 20, "max_critique_tokens": 30, "max_revision_tokens": 40}
    return ReviseConfig(judge=ChatModelConfig(**judge), **{**lengths, **more})


def _work(stage: str, config: Any, **inputs: Any) -> Work:
    return work_of(stage, config, StageInputs(SHAPE, AMOUNTS, **inputs))


@pytest.mark.parametrize("judge", [{"gold_accuracy": 0.9}, {"endpoint": {"model": "m"}}])
def test_a_judge_elsewhere_leaves_the_policy_s_answers(judge: dict[str, Any]) -> None:
    work = _work("revise", _revise(judge, max_prompts=30))
    # 30 of 40 prompts of 10 tokens, answered in 20.
    assert (work.examples, work.sampled_tokens, work.forward_tokens) == (30, 600, 300)
    assert set(work.phases) == {"sampling"}


@pytest.mark.parametrize("critique", [True, False])
def test_a_judge_here_reads_a_draft_once_or_twice_a_step(critique: bool) -> None:
    work = _work("revise", _revise({"local_model": HERE}, num_revisions=3, critique=critique))
    texts = load_questions()
    told = "".join(texts[name] for name in ("principle", "revise", "revise answer"))
    # A prompt, a draft as long as a revision, and a token for three characters of what it is told.
    asked = 10 + 40 + -(-(len(told) + MAX_CHARACTERS) // 3)
    steps = 3 * 40
    if critique:
        first = asked + -(-len(texts["revise critique"]) // 3)
        assert work.sampled_tokens == 40 * 20 + steps * (30 + 40)
        assert work.forward_tokens == 40 * 10 + steps * (first + first + 30)
    else:
        assert work.sampled_tokens == 40 * 20 + steps * 40
        assert work.forward_tokens == 40 * 10 + steps * asked
    assert work.phases["revising"].frozen == POLICY
    assert work.phases["revising"].cache > work.phases["sampling"].cache


def test_a_judge_of_unknown_size_is_named() -> None:
    with pytest.raises(PlanError, match=r"constitution\.revise\.judge\.local_model is 'some/model"):
        _work("revise", _revise({"local_model": "some/model"}))


def test_a_judge_reads_a_principle_as_well() -> None:
    """Of at most 500 characters, behind a sentence of 51: 184 tokens more, or one less where both
    round up together."""
    forward = []
    for constitution in (None, "harmlessness"):
        judge = JudgeConfig(local_model=HERE, constitution=constitution)
        work = _work("judge_preferences", JudgePreferencesConfig(judge=judge, max_pairs=10))
        forward.append(work.forward_tokens)
    assert MAX_CHARACTERS == 500
    assert (forward[1] - forward[0]) / (2 * 10) in (183, 184)


def test_sft_on_revisions_and_on_what_is_mixed_in() -> None:
    config = ConstitutionalSFTConfig(train=TRAIN, helpful_per_revision=1.5)
    revised = _revise({"local_model": HERE}, max_prompts=30)
    work = _work("constitutional_sft", config, revised=revised)
    # 30 revisions and 45 demonstrations, each at most a prompt of 10, 40 tokens and its end.
    assert (work.examples, work.optimiser_steps) == (75, 2 * 5)
    assert work.trained_tokens == 2 * 75 * 51
    assert work.parameters == SHAPE.policy_parameters
    # There are 100 demonstrations; gold's revisions are as short as they are, of 25 tokens with 10
    # of the prompt: no more than 10 + 25 + 1.
    config = ConstitutionalSFTConfig(train=TRAIN, helpful_per_revision=9)
    work = _work("constitutional_sft", config, revised=_revise({"gold_accuracy": 1.0}))
    assert work.examples == 40 + 100
    assert work.trained_tokens == 2 * 140 * 36
