"""The work of reward models, the Advantage Model and MetaRM, and of the states they read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from trimtab.models.config.reward import (
    POLICY,
    AdvantageModelConfig,
    EmbeddingsConfig,
    ExpectedRewardConfig,
    ExternalRewardModelConfig,
    MetaRMConfig,
    PairLossConfig,
    RewardModelConfig,
    TrunkCacheConfig,
)
from trimtab.models.config.training import ModelConfig, TrainConfig
from trimtab.models.estimates.memory import FLOAT_BYTES, Memory, partition_of
from trimtab.models.estimates.shapes import PlanError, shape_of
from trimtab.models.estimates.work import (
    Answers,
    Rows,
    StageInputs,
    Work,
    narrow_layers,
    passing_work,
    sampling_work,
    supervised_work,
    training_memory,
)
from trimtab.models.nets import counts


def trunk_cache(config: TrunkCacheConfig | EmbeddingsConfig, inputs: StageInputs) -> Work:
    """One pass of the lower layers over all pairs; the head's parameters are loaded too."""
    pairs = Rows(inputs.amounts.pairs, inputs.pair_tokens)
    weights = FLOAT_BYTES * inputs.shape.policy_parameters
    return Work(examples=pairs.count) + passing_work(inputs, weights, pairs, phase="lower layers")


def embeddings(config: EmbeddingsConfig, inputs: StageInputs) -> Work:
    """Nothing of a sentence encoder; of a language model one pass, which the cached trunk of a
    policy may save."""
    if not config.is_language_model:
        return Work(examples=inputs.amounts.pairs)
    if config.encoder != POLICY:
        inputs = replace(inputs, shape=shape_of(ModelConfig(base=config.encoder), is_trained=False))
    return trunk_cache(config, inputs)


def external_reward_model(config: ExternalRewardModelConfig, inputs: StageInputs) -> Work:
    """One pass over all pairs of a model of its own; nothing is known of one that is not here."""
    try:
        shape = shape_of(ModelConfig(base=config.model), "ensemble.reward_models", is_trained=False)
    except PlanError:
        return Work(examples=inputs.amounts.pairs)
    inputs = replace(inputs, shape=shape)
    pairs = Rows(inputs.amounts.pairs, inputs.pair_tokens)
    frozen = inputs.frozen_bytes(shape.scorer_parameters(1), shape.num_layers)
    return Work(examples=pairs.count) + passing_work(inputs, frozen, pairs)


def reward_model(config: RewardModelConfig, inputs: StageInputs) -> Work:
    """One reward model; cross-fitted, its own fold is left out of training.

    Of some categories of pairs it is taken to train on all: how many they are is not known before.
    On raw pairs it is a member, which scores those it was trained on as well. The pairs of
    validation, which `score_every` scores again and again, are taken to be all that is held out.
    """
    held_out = inputs.amounts.held_out_pairs
    num_scored = held_out if inputs.is_relabelled else inputs.amounts.pairs
    work = _on_pairs(config, inputs, num_heads=1, num_scored=num_scored)
    if config.score_every is not None:
        again = work.optimiser_steps // config.score_every * held_out
        work += Work(forward_tokens=again * inputs.pair_tokens)
    return work


def _on_pairs(
    config: PairLossConfig,
    inputs: StageInputs,
    *,
    num_heads: int,
    num_scored: int,
    further: Sequence[Rows] = (),
) -> Work:
    """Training a scorer on pairs with the terms of its loss, then scoring `num_scored` pairs;
    `further` rows as in `supervised_work`.
    """
    train, shape, term = config.train, inputs.shape, config.contrastive
    # The policy's head for the imitation term: none where it is the embedding; adapters leave it.
    head = shape.policy_parameters - shape.trunk_parameters if config.imitation_coef > 0 else 0
    terms = head if train.lora is None else 0
    if term is not None and term.kind == "swav":
        terms += term.num_prototypes * shape.hidden_size
    parameters = shape.scorer_parameters(num_heads) + terms
    work = supervised_work(inputs, train, parameters, _examples(config, inputs), further=further)
    if train.lora is not None:
        work = work.beside(Memory(frozen=FLOAT_BYTES * head))
    return work + _scoring(inputs, train, num_heads, num_scored)


def _examples(config: PairLossConfig, inputs: StageInputs) -> Rows:
    """What a scorer is trained on: pairs, or rankings with each response once."""
    num_pairs, rankings = inputs.amounts.train_pairs, inputs.amounts.train_rankings
    if isinstance(config, RewardModelConfig) and config.fold is not None:
        # Folds are equal up to one: the smallest leaves most to train on.
        num_pairs, rankings = (count - count // config.num_folds for count in (num_pairs, rankings))
    found, ranked = _pairs(inputs, num_pairs), 2
    if config.ranking == "k_wise":
        ranked = inputs.amounts.ranked
        length = -(-ranked * found.length // 2)
        found = Rows(
            rankings,
            length,
            repeated_keys=(ranked - 1) * found.length,
            all_tokens=min(rankings * length, found.tokens),
        )
    # All but one of a row's responses may be preferred to another; none is longer than its share.
    preferred = found.length * (ranked - 1) // ranked if config.imitation_coef > 0 else 0
    passes = 1 if config.contrastive is None else 2
    return replace(found, logit_tokens=preferred, passes=passes)


def advantage_model(config: AdvantageModelConfig, inputs: StageInputs) -> Work:
    """The Advantage Model: two heads in one pass; first, one by one, the policies it weighs by."""
    pairs, samples = _pairs(inputs, inputs.amounts.train_pairs), config.expected_reward
    further = [] if samples is None else [_answered(samples, inputs, samples.batch_size)]
    num_scored = inputs.amounts.held_out_pairs
    work = _on_pairs(config, inputs, num_heads=2, num_scored=num_scored, further=further)
    if samples is not None:
        work = _with_samples(samples, config.train, inputs, work)
    if not inputs.num_behaviours:
        return work
    likelihoods = passing_work(
        inputs,
        inputs.policy_bytes + FLOAT_BYTES * inputs.shape.scorer_parameters(2),
        replace(pairs, logit_tokens=pairs.length),
        phase="likelihoods",
        times=1 + inputs.num_behaviours,
        at_once=counts.rows_of_rank(pairs.count, config.train.ranks),
    )
    return likelihoods + work


def _with_samples(
    config: ExpectedRewardConfig, train: TrainConfig, inputs: StageInputs, work: Work
) -> Work:
    """Answers before and after the training, whose steps have some prompts with theirs besides."""
    available = inputs.amounts.policy_prompts
    first = _answered(config, inputs, counts.num_taken(available, config.num_prompts))
    later = config.model_copy(update={"num_responses": config.held_out_responses})
    held_out = counts.num_taken(available - first.count, config.num_held_out)
    second = _answered(later, inputs, held_out)
    # Samples pass once all is trained; before that to the layers that are, whose input is kept.
    passes, kept = 1, 0
    if train.trainable_layers is not None:
        passes, kept = 2, FLOAT_BYTES * first.tokens * inputs.shape.hidden_size
    weights = FLOAT_BYTES * inputs.shape.scorer_parameters(2)
    work = work.beside(Memory(activations=kept), "training")
    work += Work(forward_tokens=passes * first.tokens) + passing_work(inputs, weights, second)
    for sampling, rows in ((config, first), (later, second)):
        work += _sampling(sampling, inputs, rows.count, inputs.policy_bytes + weights)
    return work


def _answered(config: ExpectedRewardConfig | MetaRMConfig, inputs: StageInputs, count: int) -> Rows:
    """Rows of a prompt with its answers."""
    prompt, _ = inputs.prompt_and_row(config.max_new_tokens)
    response = config.max_new_tokens + 1
    repeated = (config.num_responses - 1) * (prompt + response)
    return Rows(count, prompt + config.num_responses * response, repeated_keys=repeated)


def _sampling(
    config: ExpectedRewardConfig | MetaRMConfig, inputs: StageInputs, prompts: int, frozen: int
) -> Work:
    """The answers to so many prompts, beside `frozen` bytes of weights."""
    count = prompts * config.num_responses
    answers = Answers(count, inputs.amounts.prompt_tokens, config.max_new_tokens)
    return sampling_work(inputs, frozen, answers, vllm=config.vllm)


def meta_rm(config: MetaRMConfig, inputs: StageInputs) -> Work:
    """MetaRM: samples of the current policy, then an ascent before each descent.

    The ascent has whole gradients, in whose place the weights are kept during the descent; under
    stages 2 and 3 of ZeRO each rank's part of them.
    """
    amounts, train = inputs.amounts, config.train
    available = amounts.prompts_of(config.prompts)
    prompts = counts.num_taken(available, config.num_prompts)
    others = counts.num_taken(available - prompts, config.num_held_out)
    asked = prompts + others
    meta = _answered(config, inputs, counts.num_taken(prompts, config.meta_batch))
    num_heads = inputs.scorer_heads[0]
    parameters = inputs.shape.scorer_parameters(num_heads)
    learning = supervised_work(inputs, train, parameters, _pairs(inputs, amounts.train_pairs))
    ascents = Work(
        forward_tokens=2 * asked * meta.length,
        trained_tokens=learning.optimiser_steps * meta.tokens,
        phases=_ascent(inputs, train, learning, meta),
    )
    scoring = _scoring(inputs, train, num_heads, amounts.held_out_pairs)
    return learning + scoring + _sampling(config, inputs, asked, inputs.policy_bytes) + ascents


def _ascent(inputs: StageInputs, train: TrainConfig, base: Work, meta: Rows) -> dict[str, Memory]:
    """What a rank holds in the ascent on a meta batch, and in the descent behind it."""
    descent, learning = base.phases["training"], FLOAT_BYTES * base.parameters
    parameters = inputs.shape.scorer_parameters(inputs.scorer_heads[0])
    kept = training_memory(inputs, parameters, train, meta).activations
    partition = partition_of(train)
    if partition.stage > 1:
        # The gradient is taken, and under stage 3 copied, part by part. Masters stay as they are,
        # but for float32 parameters under stage 3, which are their own masters.
        part = learning // train.ranks
        held = part * (partition.stage == 3 and not partition.is_narrow)
        ascent = replace(descent, activations=max(kept, part + held))
        return {"ascent": ascent, "training": descent + Memory(weights=held)}
    # One parameter's, or a bucket's, once there are no activations.
    bucket = counts.BUCKET * (train.ranks > 1)
    beside = FLOAT_BYTES * max(inputs.shape.largest_parameter, bucket)
    activations = max(kept, min(beside, learning))
    return {
        "ascent": replace(descent, gradients=learning, activations=activations),
        "training": descent + Memory(weights=learning),
    }


def _pairs(inputs: StageInputs, count: int) -> Rows:
    """Pairs as examples; at most all of one is its prompt and second response."""
    return Rows(count, inputs.pair_tokens, repeated_keys=inputs.pair_tokens)


def _scoring(inputs: StageInputs, train: TrainConfig, num_heads: int, num_pairs: int) -> Work:
    """What a scorer that was trained scores."""
    parameters = inputs.shape.scorer_parameters(num_heads)
    weights = inputs.frozen_bytes(parameters, narrow_layers(inputs, train))
    return passing_work(inputs, weights, Rows(num_pairs, inputs.pair_tokens))
