"""Steps, tokens and phases of each stage, by hand on small numbers."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any, Literal

import pytest

from tests.models.estimates.conftest import AMOUNTS, HIDDEN, SHAPE, TRAIN
from trimtab.models.config.data import ComparisonsConfig
from trimtab.models.config.policy import RLOO, DPOConfig, PPOConfig, RehearsalConfig
from trimtab.models.config.reporting import EvaluateConfig
from trimtab.models.config.reward import (
    AdvantageModelConfig,
    MetaRMConfig,
    RewardModelConfig,
    TrunkCacheConfig,
)
from trimtab.models.config.sampling import VllmConfig
from trimtab.models.config.training import LoraConfig, SFTConfig, ZeroConfig
from trimtab.models.estimates.memory import FLOAT_BYTES, Partition, key_value_cache
from trimtab.models.estimates.stages import work_of
from trimtab.models.estimates.stages.sampling import num_rehearsed
from trimtab.models.estimates.work import StageInputs, Work
from trimtab.models.nets import counts

POLICY, TRUNK = SHAPE.policy_parameters, SHAPE.trunk_parameters

STARTS = {"starts_as_reference": True}


def _work(stage: str, config: Any, **more: Any) -> Work:
    return work_of(stage, config, StageInputs(SHAPE, AMOUNTS, **more))


def test_sft() -> None:
    work = _work("sft", SFTConfig(train=TRAIN))
    assert work.optimiser_steps == 14  # 2 epochs of 7 batches, the last of 4
    assert work.trained_tokens == 2 * 100 * 25
    assert work.parameters == POLICY
    assert work.peak[1].optimiser == 8 * POLICY


def test_reward_models_and_folds() -> None:
    work = _work("reward_model", RewardModelConfig(train=TRAIN))
    assert work.optimiser_steps == 6  # 37 pairs: 3 batches an epoch
    assert (work.trained_tokens, work.forward_tokens) == (2 * 37 * 42, 50 * 42)
    assert work.parameters == TRUNK + HIDDEN
    # Folds of 37 over 2 hold 19 and 18: a member trains on at most 19.
    crossed = _work("reward_model", RewardModelConfig(train=TRAIN, fold=1, num_folds=2))
    assert (crossed.examples, crossed.optimiser_steps) == (19, 4)
    assert crossed.forward_tokens == (50 - 37 + 19) * 42  # of training pairs the larger fold
    advantage = _work("advantage_model", AdvantageModelConfig(train=TRAIN))
    assert advantage.parameters == TRUNK + 2 * HIDDEN
    # Every second of the 6 steps all that is held out is scored.
    curve = _work("reward_model", RewardModelConfig(train=TRAIN, score_every=2))
    assert curve.forward_tokens - work.forward_tokens == 3 * (50 - 37) * 42
    # Only a member, which is trained on raw pairs, scores them after training: it votes on them.
    final = _work("reward_model", RewardModelConfig(train=TRAIN), is_relabelled=True)
    assert final.forward_tokens == advantage.forward_tokens == (50 - 37) * 42


def test_ranks_hold_the_whole_or_with_zero_a_part() -> None:
    whole = _work(
        "reward_model", RewardModelConfig(train=TRAIN.model_copy(update={"num_ranks": 4}))
    )
    zero = {"num_ranks": 4, "zero": ZeroConfig(stage=3)}
    apart = _work("reward_model", RewardModelConfig(train=TRAIN.model_copy(update=zero)))
    held, part = (work.phases["training"] for work in (whole, apart))
    # All weights may be whole at once of so small a model; gradients are added up in a bucket.
    assert part.weights == held.weights / 4 + held.weights
    assert part.gradients == held.gradients / 4 + FLOAT_BYTES * counts.ZERO_BUCKET
    assert part.optimiser == 1.5 * held.optimiser / 4
    assert part.activations == max(held.activations, held.gradients / 4)
    assert whole.needed == 4 * held.total
    assert apart.phases["loading"] == Partition(3, 4).loading(held, SHAPE.largest_parameter)
    # Scoring comes after training: the first rank alone holds the whole.
    assert apart.phases["scoring"] == whole.phases["scoring"]


@pytest.mark.parametrize("stage", [2, 3])
def test_what_is_offloaded_leaves_the_device(stage: Literal[2, 3]) -> None:
    kept, moved = ({"num_ranks": 4, "zero": ZeroConfig(stage=stage, offload=on)} for on in (0, 1))
    reward_models = [
        _work("reward_model", RewardModelConfig(train=TRAIN.model_copy(update=ranks)))
        for ranks in (kept, moved)
    ]
    policies = [_work("ppo_max", _ppo(**ranks), scorer_heads=(2,)) for ranks in (kept, moved)]
    for here, there in (reward_models, policies):
        for name in here.phases.keys() - {"loading"}:
            before, after = here.phases[name], there.phases[name]
            assert after.total + after.host == before.total
            assert (after.gradients, after.activations) == (before.gradients, before.activations)
    training = reward_models[1].phases["training"]
    own = TRUNK + HIDDEN  # twelve bytes a parameter of Adam's, and four of weights under stage 3
    assert training.host == (12 if stage == 2 else 16) * own / 4
    update = policies[1].phases["policy update"]
    both = POLICY + TRUNK + 2 * HIDDEN
    # Under stage 3 weights of policy and critic, and of reference and scorer, too.
    assert update.host == (12 * both if stage == 2 else 12 * both + 8 * both) / 4
    # Where device and host share one memory, nothing is won.
    assert policies[0].needed == policies[1].needed


def test_the_trunk_passes_all_pairs_once_and_keeps_nothing_in_memory() -> None:
    work = _work("trunk_cache", TrunkCacheConfig(trainable_layers=6))
    assert (work.examples, work.forward_tokens, work.trained_tokens) == (50, 50 * 42, 0)
    assert work.phases["lower layers"].frozen == FLOAT_BYTES * POLICY
    scoring = _work("reward_model", RewardModelConfig(train=TRAIN)).phases["scoring"]
    assert work.phases["lower layers"].activations == scoring.activations


def test_micro_batches_bound_activations() -> None:
    """As many tokens as the limit says; one pair of 42 where even one is longer than that."""
    full, one, two = (
        _work(
            "reward_model",
            RewardModelConfig(train=TRAIN.model_copy(update={"micro_batch_tokens": tokens})),
        ).phases["training"]
        for tokens in (84, 20, 42)
    )
    assert full.activations == 2 * one.activations == 2 * two.activations
    # All rows of a batch of 16, where the limit is larger.
    most, more = (
        _work(
            "reward_model",
            RewardModelConfig(train=TRAIN.model_copy(update={"micro_batch_tokens": tokens})),
        ).phases["training"]
        for tokens in (16 * 42, 10_000)
    )
    assert more.activations == most.activations == 16 * one.activations


def test_sampling_stages() -> None:
    work = _work("comparisons", ComparisonsConfig(num_responses=3, max_new_tokens=20))
    assert (work.sampled_tokens, work.forward_tokens) == (50 * 3 * 20, 50 * 3 * 10)
    # All 150 answers would fit into the cache at once, but there are two batches at least: prompt
    # 10, answer 20.
    assert work.phases["sampling"].cache == key_value_cache(SHAPE, 75 * 30)
    work = _work("rehearsal", RehearsalConfig(max_new_tokens=20), scorer_heads=(2,))
    assert (work.sampled_tokens, work.forward_tokens) == (40 * 20, 40 * (10 + 31))
    assert work.phases["scoring"].frozen == FLOAT_BYTES * (TRUNK + 2 * HIDDEN)


def test_long_prompts_are_cut_to_the_context_and_the_cache() -> None:
    lengths = {"prompt_tokens": 9000, "dialogue_tokens": 9000, "pair_tokens": 18000}
    long = StageInputs(SHAPE, replace(AMOUNTS, pair_prompts=500, **lengths))
    work = work_of("comparisons", ComparisonsConfig(num_responses=2, max_new_tokens=192), long)
    assert work.forward_tokens == 1000 * (SHAPE.context - 192)
    # 32,768 tokens of cache hold four rows of 8,192.
    assert work.phases["sampling"].cache == key_value_cache(SHAPE, 4 * 8192)


def test_evaluation_passes_every_answer_under_all_models() -> None:
    work = _work("evaluate", EvaluateConfig(max_new_tokens=20), num_heldout_models=3)
    # Prompt once to sample; policy, reference, scorer and three judges on 31 tokens.
    assert work.forward_tokens == 12 * (10 + 6 * 31)
    assert work.phases["likelihoods"].frozen == 2 * FLOAT_BYTES * POLICY


def _ppo(**changes: Any) -> PPOConfig:
    config = PPOConfig(
        num_steps=5,
        critic_pretrain_steps=2,
        rollout_batch=32,
        train_batch=12,
        num_epochs=2,
        max_new_tokens=20,
        rehearsal_batch=4,
        rehearsal_coef=0.0,
    )
    return config.model_copy(update=changes)


def test_ppo_steps_and_tokens() -> None:
    work = _work("ppo_max", _ppo(), scorer_heads=(2,))
    # 7 rounds of 32 answers; an epoch is 3 train batches (12, 12, 8); the critic takes all.
    assert work.optimiser_steps == 7 * 2 * 3
    assert work.sampled_tokens == 7 * 32 * 20
    assert work.forward_tokens == 7 * 32 * (10 + 3 * 31)
    assert work.trained_tokens == (7 + 5) * 2 * 32 * 31
    # 40 prompts bound a larger rollout batch.
    assert _work("ppo_max", _ppo(rollout_batch=64)).examples == 7 * 40


def test_responses_to_one_prompt_share_it_and_no_critic_is_held() -> None:
    changes = {"objective": RLOO, "critic_pretrain_steps": 0, "num_steps": 7}
    work = _work("ppo_max", _ppo(**changes), scorer_heads=(2,))
    with_critic = _work("ppo_max", _ppo(), scorer_heads=(2,))
    # 8 prompts of 10 tokens a round, each with 4 answers of 21; sampled they are counted alone.
    row = 10 + 4 * 21
    assert (work.examples, work.sampled_tokens) == (7 * 32, 7 * 32 * 20)
    assert work.forward_tokens == 7 * (32 * 10 + 3 * 8 * row)
    assert work.trained_tokens == 7 * 2 * 8 * row  # the policy alone
    assert work.optimiser_steps == with_critic.optimiser_steps == 7 * 2 * 3
    assert work.parameters == POLICY
    assert work.phases.keys() == with_critic.phases.keys() - {"critic update"}
    memory = work.phases["policy update"]
    assert (memory.weights, memory.optimiser) == (4 * POLICY, 8 * POLICY)
    assert memory.frozen == 4 * (POLICY + TRUNK + 2 * HIDDEN)  # reference and scorer
    assert work.phases["saving"].optimiser == 8 * POLICY
    # Rollouts of 16 prompts, and of all 40 that there are.
    assert _work("ppo_max", _ppo(**changes, rollout_batch=64)).examples == 7 * 64
    assert _work("ppo_max", _ppo(**changes, rollout_batch=400)).examples == 7 * 4 * 40


def test_held_out_scorers_pass_every_answer_and_stay_in_memory() -> None:
    plain, watched = (
        _work("ppo_max", _ppo(), scorer_heads=(2,), num_heldout_models=count) for count in (0, 2)
    )
    assert watched.forward_tokens - plain.forward_tokens == 2 * 7 * 32 * 31
    assert watched.peak[1].frozen - plain.peak[1].frozen == 2 * 4 * (TRUNK + HIDDEN)
    assert watched.trained_tokens == plain.trained_tokens


def test_ppo_nll_terms_add_to_policy_updates() -> None:
    plain = _work("ppo_max", _ppo()).trained_tokens
    rehearsed = _work("ppo_max", _ppo(rehearsal_coef=0.01), num_rehearsed=6).trained_tokens
    assert rehearsed - plain == 5 * 6 * 4 * 31  # 5 policy rounds of 6 updates, 4 answers each
    with_ptx = _work("ppo_max", _ppo(ptx_coef=0.1)).trained_tokens
    assert with_ptx - plain == 5 * 6 * 4 * 25  # demonstrations of 25 tokens
    assert _work("ppo_max", _ppo(rehearsal_coef=0.01)).trained_tokens == plain


def test_ppo_counts_the_passes_that_measure_what_is_lost() -> None:
    by_risk = {"risk_every": 2, "rehearsal_coef": 0.01, "rehearsal_weights": "risk"}
    plain = _work("ppo_max", _ppo(rehearsal_coef=0.01), num_rehearsed=50)
    # The reference once; the policy before its steps 1, 3 and 5. Rows of 31 tokens, 21 answers'.
    for changes in (by_risk, by_risk | {"rehearsal_coef": 0.0, "kl_weights": "risk"}):
        work = _work("ppo_max", _ppo(**changes), num_rehearsed=50)
        assert work.forward_tokens - plain.forward_tokens == (1 + 3) * 50 * 31
        assert work.passed_logits - plain.passed_logits == (1 + 3) * 50 * 21
        # 50 rows at once, of which a rollout has 32.
        assert work.phases["scoring"].total > plain.phases["scoring"].total
    unrehearsed = _work("ppo_max", _ppo(**by_risk | {"rehearsal_coef": 0.0}), num_rehearsed=50)
    assert unrehearsed.forward_tokens == plain.forward_tokens
    config = RehearsalConfig(prompts="policy", max_prompts=30, num_clusters=4, per_cluster=7)
    assert num_rehearsed(config, AMOUNTS) == 28
    assert num_rehearsed(config.model_copy(update={"max_prompts": 20}), AMOUNTS) == 20


def test_ppo_holds_four_models_and_two_optimisers() -> None:
    work = _work("ppo_max", _ppo(), scorer_heads=(2,))
    critic = TRUNK + 2 * HIDDEN  # a copy of the Advantage Model
    name, memory = work.peak
    assert name == "policy update"
    assert memory.weights == 4 * (POLICY + critic)
    assert memory.optimiser == 8 * (POLICY + critic)
    assert memory.frozen == 4 * (POLICY + critic)  # reference and scorer
    assert memory.gradients == 4 * POLICY  # never of both at once
    own_critic = _work("ppo_max", _ppo(critic_init="policy"), scorer_heads=(2,))
    assert work.parameters - own_critic.parameters == HIDDEN


def test_vllm_holds_a_policy_and_its_cache_beside_all_else() -> None:
    plain, work = (
        _work("ppo_max", _ppo(precision=precision, vllm=vllm), scorer_heads=(2,))
        for precision, vllm in (("float32", None), ("bfloat16", VllmConfig(cache_gib=0.5)))
    )
    for name, phase in work.phases.items():
        # With a head of its own; it starts with the first answers.
        beside = 0 if name == "loading" else 2 * (TRUNK + SHAPE.vocab_size * HIDDEN) + 2**29
        assert phase.frozen == plain.phases[name].frozen + beside
    assert work.phases["sampling"].cache == 0 < plain.phases["sampling"].cache
    # The policy passes what was sampled once more.
    assert work.forward_tokens - plain.forward_tokens == 7 * 32 * 31
    own, its = (
        _work("rehearsal", RehearsalConfig(vllm=vllm), scorer_heads=(2,)).phases
        for vllm in (None, VllmConfig(cache_gib=0.5))
    )
    held = 4 * (TRUNK + SHAPE.vocab_size * HIDDEN) + 2**29
    assert its["sampling"].total == its["sampling"].frozen == own["sampling"].frozen + held
    assert its["scoring"] == own["scoring"]  # its process has ended


def test_auto_is_counted_as_bfloat16_on_gpus_and_as_float32_elsewhere() -> None:
    """Of trainers, whose settings hold the precision or have them in a field."""
    for stage, automatic, make in (
        ("ppo_max", _ppo(), lambda precision: _ppo(precision=precision)),
        (
            "reward_model",
            RewardModelConfig(train=TRAIN),
            lambda precision: RewardModelConfig(
                train=TRAIN.model_copy(update={"precision": precision})
            ),
        ),
    ):
        for has_gpus, precision in ((True, "bfloat16"), (False, "float32")):
            found, expected = (
                _work(stage, config, has_gpus=has_gpus) for config in (automatic, make(precision))
            )
            assert found == expected
        wide, narrow = (_work(stage, automatic, has_gpus=has_gpus) for has_gpus in (False, True))
        assert narrow.peak[1].activations != wide.peak[1].activations


def test_on_gpus_what_is_not_trained_has_maps_of_two_bytes() -> None:
    maps = SHAPE.num_layers * sum(map(prod, SHAPE.layers[0].maps))

    def frozen(stage: str, config: Any, phase: str, **more: Any) -> tuple[int, int]:
        found = (_work(stage, config, has_gpus=on, **more).phases[phase].frozen for on in (0, 1))
        wide, narrow = found
        return wide, wide - narrow

    # Reference and scorer; a policy alone; a policy that is sampled beside the scorer in training.
    assert frozen("ppo_max", _ppo(), "policy update", scorer_heads=(2,))[1] == 2 * 2 * maps
    assert frozen("rehearsal", RehearsalConfig(), "sampling")[1] == 2 * maps
    assert frozen("meta_rm", MetaRMConfig(), "sampling")[1] == 2 * maps
    # What keeps float32 by its own setting, and the trained model beside a DPO reference.
    assert frozen("ppo_max", _ppo(precision="float32"), "scoring", scorer_heads=(2,))[1] == 0
    wide, less = frozen("dpo", DPOConfig(train=TRAIN), "reference")
    assert (wide, less) == (2 * 4 * POLICY, 2 * maps)
    # Under adapters, but not while they are added; no copies for products then. Under ZeRO all of
    # a model is narrow, but for its head where it multiplies.
    adapted = TRAIN.model_copy(update={"lora": LoraConfig(rank=2)})
    config = SFTConfig(train=adapted)
    assert frozen("sft", config, "training") == (4 * POLICY, 2 * maps)
    first = SHAPE.layers[0].maps[0]
    assert frozen("sft", config, "loading")[1] == -2 * prod(first)  # a copy of one
    parted = SFTConfig(train=adapted.model_copy(update={"zero": ZeroConfig(stage=2)}))
    assert frozen("sft", parted, "training")[1] == 2 * POLICY
    own, copied = (
        _work("sft", each, has_gpus=True).phases["training"].activations
        for each in (config, parted)
    )
    assert copied - own == FLOAT_BYTES * SHAPE.vocab_size * HIDDEN
    # A reference and a scorer that adapted models have in common with them are held once.
    shared = frozen(
        "ppo_max", _ppo(lora=LoraConfig(rank=8)), "scoring", scorer_heads=(2,), **STARTS
    )
    critic = TRUNK + 2 * HIDDEN
    assert shared == (4 * (POLICY + critic), 2 * 2 * maps)


def test_ranks_of_ppo_share_out_rows_and_with_zero_hold_parts() -> None:
    whole = _work("ppo_max", _ppo(num_ranks=4), scorer_heads=(2,))
    apart = _work("ppo_max", _ppo(num_ranks=4, zero=ZeroConfig(stage=3)), scorer_heads=(2,))
    assert whole.num_ranks == apart.num_ranks == 4
    # Of 32 answers 8 are sampled by each, of 12 in a step 3.
    assert whole.phases["sampling"].cache == key_value_cache(SHAPE, 8 * 30)
    held, part = (work.phases["policy update"] for work in (whole, apart))
    # Weights that are whole at a time; gradients, and a bucket, of the critic too.
    live = FLOAT_BYTES * (counts.ZERO_LIVE + counts.ZERO_PREFETCH)
    assert part.weights == held.weights / 4 + min(held.weights, live)
    assert part.gradients == held.weights / 4 + 2 * FLOAT_BYTES * counts.ZERO_BUCKET
    assert part.frozen == held.frozen / 4
    assert part.activations == max(held.activations, POLICY)
    # The whole policy samples; then critic, reference and scorer are whole one after another.
    assert apart.phases["sampling"].frozen == held.frozen / 4 + 4 * POLICY
    assert apart.phases["scoring"].frozen == held.frozen / 4 + 4 * (TRUNK + 2 * HIDDEN)
    split = _work("ppo_max", _ppo(num_ranks=4, zero=ZeroConfig(stage=2)), scorer_heads=(2,))
    assert split.phases["sampling"].frozen == held.frozen


def test_adapters_need_no_copy_of_what_they_leave_alone() -> None:
    config = _ppo(lora=LoraConfig(rank=8))
    work = _work("ppo_max", config, scorer_heads=(2,), starts_as_reference=True)
    adapters, heads = SHAPE.adapter_parameters(8), 2 * HIDDEN
    memory = work.phases["policy update"]
    assert work.parameters == 2 * adapters + heads
    assert (memory.weights, memory.optimiser) == (4 * work.parameters, 8 * work.parameters)
    # Policy and critic; the reference is the one without adapters, the scorer the other.
    assert memory.frozen == 4 * (POLICY + TRUNK) + 4 * heads
    later = _work("ppo_max", config, scorer_heads=(2,)).phases["policy update"]
    assert later.frozen - memory.frozen == 4 * POLICY


def test_meta_rm() -> None:
    config = MetaRMConfig(
        train=TRAIN, num_prompts=64, num_responses=5, meta_batch=8, max_new_tokens=20
    )
    work = _work("meta_rm", config, scorer_heads=(2,))
    meta_row = 10 + 5 * 21
    assert work.sampled_tokens == 40 * 5 * 20  # there are only 40 prompts
    assert work.forward_tokens == (50 - 37) * 42 + 40 * 5 * 10 + 2 * 40 * meta_row
    assert work.trained_tokens == 2 * 37 * 42 + 6 * 8 * meta_row
    name, memory = work.peak
    scorer = 4 * (TRUNK + 2 * HIDDEN)
    assert name == "training"
    # The weights before the ascent are kept, in the place of the ascent's gradients.
    assert (memory.weights, memory.gradients) == (2 * scorer, scorer)
    ascent = work.phases["ascent"]
    assert (ascent.weights, ascent.gradients) == (scorer, scorer)
    assert work.phases["loading"].total == scorer
    term = _work("meta_rm", config.model_copy(update={"update": "term"}), scorer_heads=(2,))
    assert term.trained_tokens == work.trained_tokens
    assert "ascent" not in term.phases
    assert term.phases["training"].weights == scorer


def test_gradient_checkpointing_leaves_activations_of_one_layer() -> None:
    train = TRAIN.model_copy(update={"gradient_checkpointing": True})
    whole = _work("meta_rm", MetaRMConfig(train=TRAIN)).peak[1]
    less = _work("meta_rm", MetaRMConfig(train=train)).peak[1]
    assert less.activations < whole.activations / 4
    assert less.total - less.activations == whole.total - whole.activations
    whole = _work("ppo_max", _ppo()).phases["critic update"]
    less = _work("ppo_max", _ppo(gradient_checkpointing=True)).phases["critic update"]
    assert less.activations < whole.activations / 4


@pytest.mark.parametrize(
    ("stage", "examples"), [("strength", 50), ("relabel", 37), ("audit", 50), ("head_to_head", 12)]
)
def test_stages_without_a_model(stage: str, examples: int) -> None:
    work = _work(stage, None)
    assert work.examples == examples
    assert work.peak[1].total == 0
