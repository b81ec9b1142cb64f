"""A stage's work, and the memory of the three things a process does: sample, score, train."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import ceil

from models import limits
from models.config.policy import ReviseConfig, SampleResponsesConfig
from models.config.training import TrainConfig, TrainerConfig
from models.estimates.amounts import Amounts
from models.estimates.memory import (
    FLOAT_BYTES,
    Memory,
    backward_set,
    forward_set,
    key_value_cache,
    sampling_set,
    trained,
    vocabulary_set,
)
from models.estimates.shapes import ModelShape

# Linear maps of a layer, each with an adapter.
ADAPTED_MAPS = 7


@dataclass(frozen=True)
class Setting:
    """What a stage's cost depends on beside its own configuration.

    scorer_heads: of each scorer that comes in, 1 for a reward model, 2 for an Advantage Model.
    num_behaviours: policies that wrote the comparisons, where an Advantage Model weighs by them.
    starts_as_reference: whether PPO's policy is at first its reference. sampled: how the answers
    that come in were sampled. revised: how the revisions that come in were made. num_policies: of a
    seed, whose answers come in.
    """

    shape: ModelShape
    amounts: Amounts
    scorer_heads: tuple[int, ...] = (1,)
    num_behaviours: int = 0
    num_judges: int = 0
    has_rehearsal: bool = False
    starts_as_reference: bool = False
    is_relabelled: bool = False
    sampled: tuple[SampleResponsesConfig, ...] = ()
    revised: ReviseConfig | None = None
    num_policies: int = 0

    def capped(self, prompt_tokens: int, new_tokens: int) -> tuple[int, int]:
        """A prompt cut to the context, and the row it makes with one answer and its end token."""
        prompt = min(prompt_tokens, self.shape.context - new_tokens)
        return prompt, min(prompt + new_tokens + 1, self.shape.context)

    @property
    def policy(self) -> int:
        """Bytes of a policy's weights."""
        return FLOAT_BYTES * self.shape.policy_parameters

    @property
    def scorers(self) -> list[int]:
        """Bytes of each incoming scorer's weights."""
        return [FLOAT_BYTES * self.shape.scorer_parameters(heads) for heads in self.scorer_heads]


@dataclass(frozen=True)
class Work:
    """A stage's work.

    examples: rows it takes in (pairs, dialogues, prompts). optimiser_steps: of the model that
    takes most. sampled_tokens: drawn one by one; forward_tokens: passed once without gradient,
    prompts of generation included; trained_tokens: passed forward and backward, a token counting
    for each model it trains. parameters: trained. phases: memory of one rank by name.
    """

    examples: int
    optimiser_steps: int = 0
    sampled_tokens: int = 0
    forward_tokens: int = 0
    trained_tokens: int = 0
    parameters: int = 0
    num_ranks: int = 1
    phases: Mapping[str, Memory] = field(default_factory=dict)

    @property
    def peak(self) -> tuple[str, Memory]:
        """The phase that needs most, by name; an empty one where no model runs."""
        return max(self.phases.items(), key=lambda item: item[1].total, default=("", Memory()))

    @property
    def needed(self) -> int:
        """Bytes at the peak of all ranks together."""
        return self.num_ranks * self.peak[1].total


def pass_tokens(limit: int, num_rows: int, row: int) -> int:
    """Most tokens of a micro batch of rows of at most `row`: the `limit`, or all, or one row."""
    return max(row, min(limit, num_rows * row))


def sampling_phase(setting: Setting, frozen: int, num_rows: int, prompt: int, row: int) -> Memory:
    """Generation with a key-value cache beside `frozen` bytes of weights."""
    shape = setting.shape
    at_once = min(num_rows, max(1, limits.CACHE_TOKENS // row))
    return Memory(
        frozen=frozen,
        activations=forward_set(shape, at_once * prompt) + sampling_set(shape, at_once),
        cache=key_value_cache(shape, at_once * row),
    )


def scoring_phase(
    setting: Setting, frozen: int, num_rows: int, row: int, responses: int = 0
) -> Memory:
    """Passes over rows of `row` tokens; `responses` of them need log-probabilities."""
    tokens = pass_tokens(limits.PASS_TOKENS, num_rows, row)
    logits = vocabulary_set(setting.shape, min(tokens, num_rows * responses))
    return Memory(frozen=frozen, activations=forward_set(setting.shape, tokens) + logits)


def training_phase(
    setting: Setting,
    num_parameters: int,
    config: TrainerConfig,
    num_rows: int,
    row: int,
    responses: int = 0,
    repeated: int = 0,
    passes: int = 1,
) -> Memory:
    """One micro batch of an optimiser step, on `passes` of the trunk over it.

    Of a row, `responses` tokens need log-probabilities and `repeated` further keys and values.
    """
    shape = setting.shape
    tokens = pass_tokens(config.micro_batch_tokens, num_rows, row)
    logits = passes * vocabulary_set(shape, min(tokens, num_rows * responses))
    kept = gradient_set(shape, config, passes * tokens, passes * ceil(tokens * repeated / row))
    learning = trained_parameters(shape, config, num_parameters)
    own = learning if config.lora is None else _heads(shape, num_parameters)
    frozen = num_parameters - own
    memory = trained(learning, kept + logits, config.optimiser)
    return replace(memory, frozen=FLOAT_BYTES * frozen)


def gradient_set(shape: ModelShape, config: TrainerConfig, tokens: int, repeated: int) -> int:
    """Bytes of a pass of the trained layers with gradient; `repeated` as in `kept_activations`."""
    upper = shape.upper(config.trainable_layers)
    has_dropout = isinstance(config, TrainConfig) and config.dropout > 0
    recomputed, precision = config.gradient_checkpointing, config.precision
    kept = backward_set(upper, tokens, repeated, recomputed, has_dropout, precision)
    if config.lora is None:
        return kept
    # Each map's input in the low rank.
    return kept + FLOAT_BYTES * tokens * upper.num_layers * ADAPTED_MAPS * config.lora.rank


def trained_parameters(shape: ModelShape, config: TrainerConfig, num_parameters: int) -> int:
    """How many learn of a model that has so many."""
    if config.lora is None:
        return num_parameters - shape.frozen_parameters(config.trainable_layers)
    adapters = shape.upper(config.trainable_layers).adapter_parameters(config.lora.rank)
    return adapters + _heads(shape, num_parameters)


def _heads(shape: ModelShape, num_parameters: int) -> int:
    """Of a scorer, what it has beyond the trunk; of a policy, nothing learns beyond adapters."""
    is_policy = num_parameters == shape.policy_parameters
    return 0 if is_policy else num_parameters - shape.trunk_parameters
