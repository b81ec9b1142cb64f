"""What PPO-max is compared with: steps, tokens and phases by hand on small numbers."""

from __future__ import annotations

from typing import Any

from tests.models.estimates.conftest import AMOUNTS, SHAPE, TRAIN
from trimtab.models.config.policy import (
    CPLConfig,
    DPOConfig,
    HIRConfig,
    RejectionSamplingConfig,
    RestConfig,
    SampleResponsesConfig,
)
from trimtab.models.config.reporting import EvaluateConfig
from trimtab.models.config.training import LoraConfig, ZeroConfig
from trimtab.models.estimates.memory import key_value_cache
from trimtab.models.estimates.stages import work_of
from trimtab.models.estimates.work import StageInputs, Work
from trimtab.models.nets import counts

POLICY = SHAPE.policy_parameters
# AMOUNTS: 37 training pairs of at most 42 tokens, 40 prompts of 10 for policies, 12 to evaluate on.
ANSWERS = SampleResponsesConfig(num_prompts=24, num_responses=4, max_new_tokens=20)


def _work(stage: str, config: Any, **more: Any) -> Work:
    return work_of(stage, config, StageInputs(SHAPE, AMOUNTS, **more))


def test_answers_are_sampled_alone_and_scored_behind_one_prompt() -> None:
    work = _work("sample_responses", ANSWERS, scorer_heads=(2,))
    assert (work.examples, work.sampled_tokens) == (24, 24 * 4 * 20)
    # A prompt of 10 a sample; then with four answers of 21 each.
    assert work.forward_tokens == 24 * 4 * 10 + 24 * (10 + 4 * 21)
    # In two batches; prompt 10, answer 20.
    assert work.phases["sampling"].cache == key_value_cache(SHAPE, 24 * 4 * 30) / 2
    assert work.phases["scoring"].frozen == 4 * SHAPE.scorer_parameters(2)
    # There are 40 prompts.
    more = ANSWERS.model_copy(update={"num_prompts": 90})
    assert _work("sample_responses", more).examples == 40


def test_dpo_passes_the_reference_once_and_holds_one_model_while_it_trains() -> None:
    work = _work("dpo", DPOConfig(train=TRAIN))
    assert work.optimiser_steps == 6  # 37 pairs: 3 batches an epoch
    assert (work.forward_tokens, work.trained_tokens) == (37 * 42, 2 * 37 * 42)
    training = work.phases["training"]
    assert (training.weights, training.optimiser, training.frozen) == (4 * POLICY, 8 * POLICY, 0)
    assert work.phases["reference"].frozen == 2 * 4 * POLICY
    without = _work("cpl", CPLConfig(train=TRAIN))
    assert (without.forward_tokens, set(without.phases)) == (0, {"loading", "training"})
    assert without.phases["training"] == training


def test_a_loss_without_a_reference_passes_and_holds_none() -> None:
    without = _work("cpl", CPLConfig(train=TRAIN))
    for loss in ("simpo", "orpo"):
        assert _work("dpo", DPOConfig(loss=loss, train=TRAIN)) == without


def test_kto_passes_mismatched_answers_in_every_epoch_under_both_models() -> None:
    plain, kto = (_work("dpo", DPOConfig(loss=loss, train=TRAIN)) for loss in ("ipo", "kto"))
    # Two epochs of 37 rows, under the policy and under the reference.
    assert kto.forward_tokens == plain.forward_tokens + 2 * 2 * 37 * 42
    assert (kto.trained_tokens, kto.phases) == (plain.trained_tokens, plain.phases)


def test_zero_and_lora_reach_the_plan() -> None:
    zero = TRAIN.model_copy(update={"num_ranks": 4, "zero": ZeroConfig(stage=3)})
    apart = _work("dpo", DPOConfig(train=zero)).phases["training"]
    # A quarter of four bytes a parameter each; weights that are whole at a time, and a bucket.
    assert apart.weights == POLICY + 4 * POLICY
    assert apart.gradients == POLICY + 4 * counts.ZERO_BUCKET
    # Whole, with the parts of all, while it is loaded.
    assert _work("dpo", DPOConfig(train=zero)).phases["loading"].total >= 4 * POLICY + POLICY
    assert _work("cpl", CPLConfig(train=TRAIN)).phases["loading"].total == 4 * POLICY
    lora = TRAIN.model_copy(update={"lora": LoraConfig(rank=8)})
    work = _work("cpl", CPLConfig(train=lora))
    assert work.parameters == SHAPE.adapter_parameters(8)
    assert work.phases["training"].frozen == 4 * POLICY


def test_rejection_sampling_learns_one_answer_a_prompt() -> None:
    config = RejectionSamplingConfig(train=TRAIN)
    once = _work("rejection_sampling", config, sampled=(ANSWERS,))
    assert (once.examples, once.optimiser_steps) == (24, 2 * 2)
    assert once.trained_tokens == 2 * 24 * 31
    # Of two samples of 24 prompts each there are at most 40.
    twice = _work("rejection_sampling", config, sampled=(ANSWERS, ANSWERS))
    assert (twice.examples, twice.optimiser_steps) == (40, 2 * 3)


def test_rest_learns_what_each_threshold_leaves() -> None:
    config = RestConfig(train=TRAIN, thresholds=(0.5, 0.75))
    work = _work("rest", config, sampled=(ANSWERS,))
    # Of 96 answers 48 and 24: 3 and 2 batches of 16, twice.
    assert (work.examples, work.optimiser_steps) == (48, 2 * (3 + 2))
    assert work.trained_tokens == 2 * (48 + 24) * 31
    # How many answers a value leaves is not known beforehand.
    values = config.model_copy(update={"threshold_kind": "value"})
    assert _work("rest", values, sampled=(ANSWERS,)).optimiser_steps == 2 * (6 + 6)


def test_hir_learns_every_answer_behind_every_instruction() -> None:
    config = HIRConfig(train=TRAIN, instructions=("bad", "fair enough", "good"))
    work = _work("hir", config, sampled=(ANSWERS, ANSWERS))
    assert (work.examples, work.optimiser_steps) == (2 * 96, 2 * 12)
    # A prompt of 10, then thrice at most two words of two tokens and an answer of 21.
    assert work.trained_tokens == 2 * 192 * (10 + 3 * (4 + 21))


def test_rehearsal_adds_to_every_update() -> None:
    # Dialogues of at most 25 tokens. DPO has 6 updates; ReST 2 * (2 + 1) on 24 and 12 answers.
    rehearses = {"train": TRAIN, "rehearsal_coef": 0.1, "rehearsal_batch": 5}
    rest = RestConfig(**rehearses, thresholds=(0.75, 0.875))
    for stage, config in (("dpo", DPOConfig(**rehearses)), ("rest", rest)):
        plain = _work(stage, config, sampled=(ANSWERS,))
        again = _work(stage, config, sampled=(ANSWERS,), num_rehearsed=6)
        assert again.trained_tokens - plain.trained_tokens == 6 * 5 * 25
        off = config.model_copy(update={"rehearsal_coef": 0.0})
        assert _work(stage, off, sampled=(ANSWERS,), num_rehearsed=6) == plain
        assert again.phases.keys() == plain.phases.keys()
        assert again.peak[1].total >= plain.peak[1].total


def test_the_best_of_n_answers_costs_n_of_them() -> None:
    work = _work(
        "evaluate", EvaluateConfig(max_new_tokens=20, num_candidates=5), num_heldout_models=3
    )
    assert work.sampled_tokens == 12 * 5 * 20
    # Sampled one by one; scorer and three judges on all of a prompt; two likelihoods of the best.
    assert work.forward_tokens == 12 * (5 * 10 + 4 * (10 + 5 * 21) + 2 * 31)
    assert work.phases["sampling"].cache == key_value_cache(SHAPE, 12 * 5 * 30) / 2
