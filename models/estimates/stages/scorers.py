"""The work of reward models, the Advantage Model and MetaRM, and of the states they read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from trimtab.models import chunk_sizes, counts
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
    work = _scorer(
        inputs,
        train,
        num_heads=num_heads,
        rows=_examples(config, inputs),
        num_scored=num_scored,
        terms=terms,
        further=further,
    )
    if train.lora is not None and head:
        work = work.beside(Memory(frozen=FLOAT_BYTES * head), "loading", "training")
    return work


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
    amounts, train = inputs.amounts, config.train
    pairs = _pairs(inputs, amounts.train_pairs)
    num_scored = amounts.held_out_pairs
    if config.expected_reward is None:
        work = _on_pairs(config, inputs, num_heads=2, num_scored=num_scored)
    else:
        work = _with_samples(config, config.expected_reward, inputs)
    if not inputs.num_behaviours:
        return work
    likelihoods = passing_work(
        inputs,
        inputs.policy_bytes + FLOAT_BYTES * inputs.shape.scorer_parameters(2),
        replace(pairs, logit_tokens=pairs.length),
        phase="likelihoods",
        times=1 + inputs.num_behaviours,
        at_once=counts.rows_of_rank(pairs.count, train.ranks),
    )
    return likelihoods + work


def _with_samples(
    config: AdvantageModelConfig, samples: ExpectedRewardConfig, inputs: StageInputs
) -> Work:
    """Answers before and after the training, and some prompts with theirs more in every step."""
    available = inputs.amounts.policy_prompts
    prompts = counts.num_taken(available, samples.num_prompts)
    held_out = counts.num_taken(available - prompts, samples.num_held_out)
    later = samples.model_copy(update={"num_responses": samples.held_out_responses})
    prompt, _ = inputs.prompt_and_row(samples.max_new_tokens)
    weights = FLOAT_BYTES * inputs.shape.scorer_parameters(2)
    first, second = _answered(samples, prompt, prompts), _answered(later, prompt, held_out)
    work = _on_pairs(
        config,
        inputs,
        num_heads=2,
        num_scored=inputs.amounts.held_out_pairs,
        further=[_answered(samples, prompt, samples.batch_size)],
    )
    # Samples pass once all is trained; before that to the layers that are, whose input is kept.
    passes, kept = 1, 0
    if config.train.trainable_layers is not None:
        passes, kept = 2, FLOAT_BYTES * first.tokens * inputs.shape.hidden_size
    work = work.beside(Memory(activations=kept), "training")
    work += Work(forward_tokens=passes * first.tokens) + passing_work(inputs, weights, second)
    for count, responses in ((prompts, samples.num_responses), (held_out, later.num_responses)):
        answers = Answers(count * responses, prompt, samples.max_new_tokens)
        frozen = inputs.policy_bytes + weights
        work += sampling_work(inputs, frozen, answers, vllm=samples.vllm)
    return work


def _answered(config: ExpectedRewardConfig | MetaRMConfig, prompt: int, count: int) -> Rows:
    """Rows of a prompt with its answers."""
    response = config.max_new_tokens + 1
    repeated = (config.num_responses - 1) * (prompt + response)
    return Rows(count, prompt + config.num_responses * response, repeated_keys=repeated)


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
    prompt, _ = inputs.prompt_and_row(config.max_new_tokens)
    meta = _answered(config, prompt, counts.num_taken(prompts, config.meta_batch))
    work = _scorer(
        inputs,
        train,
        num_heads=inputs.scorer_heads[0],
        rows=_pairs(inputs, amounts.train_pairs),
        num_scored=amounts.held_out_pairs,
    )
    answers = Answers(asked * config.num_responses, prompt, config.max_new_tokens)
    sampling = sampling_work(inputs, inputs.policy_bytes, answers, vllm=config.vllm)
    ascents = Work(
        forward_tokens=2 * asked * meta.length,
        trained_tokens=work.optimiser_steps * meta.tokens,
        phases=_ascent(inputs, config.train, work, meta),
    )
    return work + sampling + ascents


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
    bucket = chunk_sizes.BUCKET * (train.ranks > 1)
    beside = FLOAT_BYTES * max(inputs.shape.largest_parameter, bucket)
    activations = max(kept, min(beside, learning))
    return {
        "ascent": replace(descent, gradients=learning, activations=activations),
        "training": descent + Memory(weights=learning),
    }


def _pairs(inputs: StageInputs, count: int) -> Rows:
    """Pairs as examples; at most all of one is its prompt and second response."""
    return Rows(count, inputs.pair_tokens, repeated_keys=inputs.pair_tokens)


def _scorer(
    inputs: StageInputs,
    train: TrainConfig,
    *,
    num_heads: int,
    rows: Rows,
    num_scored: int,
    terms: int = 0,
    further: Sequence[Rows] = (),
) -> Work:
    """Training a scorer, with `terms` parameters of its loss, then scoring `num_scored` pairs."""
    parameters = inputs.shape.scorer_parameters(num_heads)
    weights = inputs.frozen_bytes(parameters, narrow_layers(inputs, train))
    scoring = passing_work(inputs, weights, Rows(num_scored, inputs.pair_tokens))
    return supervised_work(inputs, train, parameters + terms, rows, further=further) + scoring
