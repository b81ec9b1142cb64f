"""The work of stages that run the supervised loop; a function a stage, mirroring its trainer."""

from __future__ import annotations

from dataclasses import replace
from math import ceil

from models.config import (
    AdvantageModelConfig,
    LowerStatesConfig,
    MetaRMConfig,
    RewardModelConfig,
    SFTConfig,
)
from models.config_parts import TrainConfig
from models.planning.memory import FLOAT_BYTES, Memory
from models.planning.work import (
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
    return ceil(min(train.batch_size, examples) / train.num_ranks)


def training(
    train: TrainConfig,
    setting: Setting,
    num_parameters: int,
    examples: int,
    row: int,
    responses: int = 0,
    repeated: int = 0,
) -> Memory:
    """What one of the stage's ranks holds while it trains; see `training_phase`."""
    whole = training_phase(
        setting,
        num_parameters,
        train,
        _rows_of_a_rank(train, examples),
        row,
        responses,
        repeated,
    )
    return whole if train.zero is None else whole.part(train.zero.stage, train.num_ranks)


def sft(config: SFTConfig, setting: Setting) -> Work:
    """Supervised fine-tuning; the loss is on response tokens, of which a row may consist."""
    count, row = setting.amounts.demonstrations, setting.amounts.dialogue_tokens
    train, parameters = config.train, setting.shape.policy_parameters
    return Work(
        examples=count,
        num_ranks=train.num_ranks,
        optimiser_steps=num_steps(train, count),
        trained_tokens=train.num_epochs * count * row,
        parameters=trained_parameters(setting.shape, train, parameters),
        phases={"training": training(train, setting, parameters, count, row, row)},
    )


def pair_row(setting: Setting) -> int:
    """Tokens of a packed pair; prompt and longer answer are cut to the context."""
    return min(setting.amounts.pair_tokens, 2 * setting.shape.context)


def _scorer_work(
    train: TrainConfig, setting: Setting, num_heads: int, num_pairs: int, num_scored: int
) -> Work:
    """Training a scorer on `num_pairs`, then scoring `num_scored`."""
    row, parameters = pair_row(setting), setting.shape.scorer_parameters(num_heads)
    return Work(
        examples=num_pairs,
        num_ranks=train.num_ranks,
        optimiser_steps=num_steps(train, num_pairs),
        forward_tokens=num_scored * row,
        trained_tokens=train.num_epochs * num_pairs * row,
        parameters=trained_parameters(setting.shape, train, parameters),
        phases={
            # At most all of a pair is its prompt and second response.
            "training": training(train, setting, parameters, num_pairs, row, repeated=row),
            "scoring": scoring_phase(setting, FLOAT_BYTES * parameters, num_scored, row),
        },
    )


def lower_states(config: LowerStatesConfig, setting: Setting) -> Work:
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

    On raw pairs it is a member, which scores those it was trained on as well.
    """
    pairs = setting.amounts.train_pairs
    if config.fold is not None:
        pairs -= pairs // config.num_folds
    scored = setting.amounts.held_out_pairs if setting.is_relabelled else setting.amounts.pairs
    return _scorer_work(config.train, setting, 1, pairs, scored)


def advantage_model(config: AdvantageModelConfig, setting: Setting) -> Work:
    """The Advantage Model: two heads in one pass."""
    amounts = setting.amounts
    return _scorer_work(config.train, setting, 2, amounts.train_pairs, amounts.held_out_pairs)


def meta_rm(config: MetaRMConfig, setting: Setting) -> Work:
    """MetaRM: samples of the current policy, then an ascent before each descent.

    A copy of the weights is kept meanwhile, and of an ascent in several parts a sum of gradients.
    """
    shape, train, amounts = setting.shape, config.train, setting.amounts
    prompts = min(config.num_prompts, amounts.policy_prompts)
    answers = prompts * config.num_responses
    prompt, row = setting.capped(amounts.prompt_tokens, config.max_new_tokens)
    meta_row = prompt + config.num_responses * (config.max_new_tokens + 1)
    base = _scorer_work(
        train, setting, setting.scorer_heads, amounts.train_pairs, amounts.held_out_pairs
    )
    descent = base.phases["training"]
    meta_prompts = min(config.meta_batch, prompts)
    with_copy = replace(descent, weights=2 * descent.weights)
    rows = ceil(meta_prompts / train.num_ranks)
    at_once = pass_tokens(train.micro_batch_tokens, rows, meta_row)
    repeated = (config.num_responses - 1) * (prompt + config.max_new_tokens + 1)
    ascent = gradient_set(shape, train, at_once, at_once // meta_row * repeated)
    return replace(
        base,
        sampled_tokens=answers * config.max_new_tokens,
        forward_tokens=base.forward_tokens + answers * prompt + 2 * prompts * meta_row,
        trained_tokens=base.trained_tokens + base.optimiser_steps * meta_prompts * meta_row,
        phases={
            **base.phases,
            "sampling": sampling_phase(
                setting, setting.policy + setting.scorer, answers, prompt, row
            ),
            "ascent": replace(
                with_copy,
                gradients=(1 if at_once == rows * meta_row else 2) * descent.gradients,
                activations=ascent,
            ),
            "training": with_copy,
        },
    )
