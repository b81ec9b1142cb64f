"""The work of stages that run the supervised loop; a function a stage, mirroring its trainer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil

from models import limits
from models.config.reward import (
    AdvantageModelConfig,
    MetaRMConfig,
    RewardModelConfig,
    TrunkCacheConfig,
)
from models.config.training import SFTConfig, TrainConfig
from models.estimates.memory import FLOAT_BYTES, Memory
from models.estimates.work import (
    Setting,
    Work,
    gradient_set,
    pass_tokens,
    sampling_phase,
    scoring_phase,
    trained_parameters,
    training_phase,
)


def num_steps(train: TrainConfig, examples: int) -> int:
    """Optimiser steps of all epochs."""
    return train.num_epochs * ceil(examples / train.batch_size)


def _rows_of_a_rank(train: TrainConfig, examples: int) -> int:
    return ceil(min(train.batch_size, examples) / train.ranks)


@dataclass(frozen=True)
class Examples:
    """What a stage is trained on: `count` rows of at most `row` tokens, `tokens` of all together.

    Of a row, `responses` tokens need log-probabilities and `repeated` further keys and values. It
    goes `passes` times through the trunk in a step.
    """

    count: int
    row: int
    tokens: int
    responses: int = 0
    repeated: int = 0
    passes: int = 1


def loading_and_training(
    train: TrainConfig, setting: Setting, num_parameters: int, examples: Examples
) -> dict[str, Memory]:
    """What one of the stage's ranks holds while the model is loaded, and while it trains."""
    whole = training_phase(
        setting,
        num_parameters,
        train,
        _rows_of_a_rank(train, examples.count),
        examples.row,
        examples.responses,
        examples.repeated,
        examples.passes,
    )
    if train.ranks > 1:
        # Gradients are added up in a bucket, when there are no activations.
        bucket = min(whole.gradients, FLOAT_BYTES * limits.BUCKET)
        whole = replace(whole, activations=max(whole.activations, bucket))
    if train.zero is None:
        return {"loading": whole.loading(0, 1), "training": whole}
    stage, ranks = train.zero.stage, train.ranks
    return {"loading": whole.loading(stage, ranks), "training": whole.part(stage, ranks)}


def sft(config: SFTConfig, setting: Setting) -> Work:
    """Supervised fine-tuning; the loss is on response tokens, of which a row may consist."""
    if not config.fine_tune:
        return Work(examples=0, phases={"loading": Memory(frozen=setting.policy)})
    count, row = setting.amounts.demonstrations, setting.amounts.dialogue_tokens
    train, parameters = config.train, setting.shape.policy_parameters
    return Work(
        examples=count,
        num_ranks=train.ranks,
        optimiser_steps=num_steps(train, count),
        trained_tokens=train.num_epochs * count * row,
        parameters=trained_parameters(setting.shape, train, parameters),
        phases=loading_and_training(
            train, setting, parameters, Examples(count, row, count * row, responses=row)
        ),
    )


def pair_row(setting: Setting) -> int:
    """Tokens of a packed pair; prompt and longer answer are cut to the context."""
    return min(setting.amounts.pair_tokens, 2 * setting.shape.context)


def _pairs(setting: Setting, count: int) -> Examples:
    """Pairs as examples; at most all of one is its prompt and second response."""
    row = pair_row(setting)
    return Examples(count, row, count * row, repeated=row)


def _scorer_work(
    train: TrainConfig,
    setting: Setting,
    num_heads: int,
    examples: Examples,
    num_scored: int,
    further: int = 0,
) -> Work:
    """Training a scorer on `examples`, with `further` parameters, then scoring `num_scored`."""
    row, parameters = pair_row(setting), setting.shape.scorer_parameters(num_heads)
    trained = parameters + further
    return Work(
        examples=examples.count,
        num_ranks=train.ranks,
        optimiser_steps=num_steps(train, examples.count),
        forward_tokens=num_scored * row,
        trained_tokens=train.num_epochs * examples.passes * examples.tokens,
        parameters=trained_parameters(setting.shape, train, trained),
        phases={
            **loading_and_training(train, setting, trained, examples),
            "scoring": scoring_phase(setting, FLOAT_BYTES * parameters, num_scored, row),
        },
    )


def trunk_cache(config: TrunkCacheConfig, setting: Setting) -> Work:
    """One pass of the lower layers over all pairs; the head's parameters are loaded too."""
    row, pairs = pair_row(setting), setting.amounts.pairs
    kept = FLOAT_BYTES * pairs * row * setting.shape.hidden_size
    scoring = scoring_phase(setting, setting.policy, pairs, row)
    return Work(
        examples=pairs,
        forward_tokens=pairs * row,
        phases={"lower layers": replace(scoring, activations=scoring.activations + kept)},
    )


def reward_model(config: RewardModelConfig, setting: Setting) -> Work:
    """One reward model; cross-fitted, its own fold is left out of training.

    Of some categories of pairs it is taken to train on all: how many they are is not known before.
    On raw pairs it is a member, which scores those it was trained on as well.
    """
    train, shape, term = config.train, setting.shape, config.contrastive
    examples = _examples(config, setting)
    scored = setting.amounts.held_out_pairs if setting.is_relabelled else setting.amounts.pairs
    # The policy's head for the imitation term: none where it is the embedding; adapters leave it.
    head = shape.policy_parameters - shape.trunk_parameters if config.imitation_coef > 0 else 0
    learning = head if train.lora is None else 0
    if term is not None and term.kind == "swav":
        learning += term.num_prototypes * shape.hidden_size
    work = _scorer_work(train, setting, 1, examples, scored, learning)
    if train.lora is None or not head:
        return work
    with_head = {
        name: replace(work.phases[name], frozen=work.phases[name].frozen + FLOAT_BYTES * head)
        for name in ("loading", "training")
    }
    return replace(work, phases={**work.phases, **with_head})


def _examples(config: RewardModelConfig, setting: Setting) -> Examples:
    """What a reward model is trained on: pairs, or rankings with each response once."""
    pairs, rankings = setting.amounts.train_pairs, setting.amounts.train_rankings
    if config.fold is not None:
        pairs, rankings = (count - count // config.num_folds for count in (pairs, rankings))
    found, ranked = _pairs(setting, pairs), 2
    if config.ranking == "k_wise":
        ranked = setting.amounts.ranked
        row = ceil(ranked * found.row / 2)
        tokens = min(rankings * row, found.tokens)
        found = Examples(rankings, row, tokens, repeated=(ranked - 1) * found.row)
    # All but one of a row's responses may be preferred to another; none is longer than its share.
    preferred = found.row * (ranked - 1) // ranked if config.imitation_coef > 0 else 0
    passes = 1 if config.contrastive is None else 2
    return replace(found, responses=preferred, passes=passes)


def advantage_model(config: AdvantageModelConfig, setting: Setting) -> Work:
    """The Advantage Model: two heads in one pass; first, one by one, the policies it weighs by."""
    amounts = setting.amounts
    examples = _pairs(setting, amounts.train_pairs)
    work = _scorer_work(config.train, setting, 2, examples, amounts.held_out_pairs)
    if not setting.num_behaviours:
        return work
    row, parameters = pair_row(setting), setting.shape.scorer_parameters(2)
    frozen = setting.policy + FLOAT_BYTES * parameters
    pairs = ceil(amounts.train_pairs / config.train.ranks)
    weighed = (1 + setting.num_behaviours) * amounts.train_pairs * row
    likelihoods = scoring_phase(setting, frozen, pairs, row, row)
    return replace(
        work,
        forward_tokens=work.forward_tokens + weighed,
        phases={"likelihoods": likelihoods, **work.phases},
    )


def meta_rm(config: MetaRMConfig, setting: Setting) -> Work:
    """MetaRM: samples of the current policy, then an ascent before each descent.

    The ascent has whole gradients, in whose place the weights are kept during the descent.
    """
    shape, train, amounts = setting.shape, config.train, setting.amounts
    prompts = min(config.num_prompts, amounts.policy_prompts)
    answers = prompts * config.num_responses
    prompt, row = setting.capped(amounts.prompt_tokens, config.max_new_tokens)
    meta_row = prompt + config.num_responses * (config.max_new_tokens + 1)
    examples = _pairs(setting, amounts.train_pairs)
    heads = setting.scorer_heads[0]
    base = _scorer_work(train, setting, heads, examples, amounts.held_out_pairs)
    descent = base.phases["training"]
    meta_prompts = min(config.meta_batch, prompts)
    learning = FLOAT_BYTES * base.parameters
    rows = ceil(meta_prompts / train.ranks)
    at_once = pass_tokens(train.micro_batch_tokens, rows, meta_row)
    repeated = (config.num_responses - 1) * (prompt + config.max_new_tokens + 1)
    ascent = gradient_set(shape, train, at_once, ceil(at_once * repeated / meta_row))
    # One parameter's, or a bucket's, once there are no activations.
    beside = FLOAT_BYTES * max(shape.largest_parameter, limits.BUCKET * (train.ranks > 1))
    return replace(
        base,
        sampled_tokens=answers * config.max_new_tokens,
        forward_tokens=base.forward_tokens + answers * prompt + 2 * prompts * meta_row,
        trained_tokens=base.trained_tokens + base.optimiser_steps * meta_prompts * meta_row,
        phases={
            **base.phases,
            "sampling": sampling_phase(
                setting, setting.policy + sum(setting.scorers), answers, prompt, row
            ),
            "ascent": replace(
                descent, gradients=learning, activations=max(ascent, min(beside, learning))
            ),
            "training": replace(descent, weights=descent.weights + learning),
        },
    )
