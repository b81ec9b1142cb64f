"""A stage's work, and the memory of the three things a process does: sample, score, train."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, prod

from trimtab.models import chunk_sizes, counts
from trimtab.models.config.policy import ReviseConfig, SampleResponsesConfig
from trimtab.models.config.sampling import VllmConfig
from trimtab.models.config.training import TrainConfig, TrainerConfig
from trimtab.models.estimates.amounts import Amounts
from trimtab.models.estimates.memory import (
    FLOAT_BYTES,
    PRODUCT_BYTES,
    Memory,
    backward_set,
    forward_set,
    key_value_cache,
    sampling_set,
    trained,
    vocabulary_set,
)
from trimtab.models.estimates.shapes import ModelShape


@dataclass(frozen=True)
class StageInputs:
    """What a stage's cost depends on beside its own configuration: model, data and inputs.

    Of the inputs:
    scorer_heads: heads of each scorer, 1 of a reward model, 2 of an Advantage Model.
    num_behaviours: policies that wrote the pairs, where an Advantage Model weighs by them.
    num_heldout_models: held-out reward models that an evaluation is scored by.
    has_rehearsal: whether there are dialogues to rehearse.
    starts_as_reference: whether PPO's policy is at first its reference.
    is_relabelled: whether pairs come relabelled, besides the raw ones.
    sampled: how each artifact of answers was sampled.
    revised: how revisions were made.
    num_policies: policies of a seed whose answers a judge compares.
    has_gpus: whether stages run on GPUs, which are taken to be of Ampere or newer.
    is_narrow: whether they do and multiply in bfloat16: what is not trained is then stored narrow.
    """

    shape: ModelShape
    amounts: Amounts
    scorer_heads: tuple[int, ...] = (1,)
    num_behaviours: int = 0
    num_heldout_models: int = 0
    has_rehearsal: bool = False
    starts_as_reference: bool = False
    is_relabelled: bool = False
    sampled: tuple[SampleResponsesConfig, ...] = ()
    revised: ReviseConfig | None = None
    num_policies: int = 0
    has_gpus: bool = False
    is_narrow: bool = False

    def prompt_and_row(self, max_new_tokens: int) -> tuple[int, int]:
        """Most tokens of a prompt, and of the row it makes with one answer and its end token."""
        context = self.shape.context
        room = counts.prompt_room(context, max_new_tokens)
        prompt = min(self.amounts.prompt_tokens, room)
        return prompt, min(prompt + max_new_tokens + 1, context)

    @property
    def pair_tokens(self) -> int:
        """Most tokens of a packed pair; prompt and longer answer are cut to the context."""
        return min(self.amounts.pair_tokens, 2 * self.shape.context)

    @property
    def policy_bytes(self) -> int:
        """Bytes of the weights of a policy that is not trained."""
        return self.frozen_bytes(self.shape.policy_parameters, self.shape.num_layers)

    @property
    def scorer_bytes(self) -> list[int]:
        """Bytes of each incoming scorer's weights, where it is not trained."""
        layers = self.shape.num_layers
        heads = map(self.shape.scorer_parameters, self.scorer_heads)
        return [self.frozen_bytes(parameters, layers) for parameters in heads]

    def frozen_bytes(self, num_parameters: int, num_layers: int) -> int:
        """Bytes of weights that are not trained, among them the linear maps of so many layers."""
        narrow = num_layers * self.shape.map_numbers * self.is_narrow
        return FLOAT_BYTES * num_parameters - (FLOAT_BYTES - PRODUCT_BYTES["bfloat16"]) * narrow


@dataclass(frozen=True)
class Work:
    """A stage's work.

    examples: rows it takes in (pairs, dialogues, prompts). optimiser_steps: of the model that
    takes most. sampled_tokens: drawn one by one; forward_tokens: passed once without gradient,
    prompts of generation included; trained_tokens: passed forward and backward, a token counting
    for each model it trains. sampling_steps: tokens that batches of sampling draw one after
    another, of all batches. passed_logits, trained_logits: of the tokens passed and trained those
    whose log-probabilities are taken. parameters: trained. phases: memory of one rank by name.
    """

    examples: int
    optimiser_steps: int = 0
    sampled_tokens: int = 0
    forward_tokens: int = 0
    trained_tokens: int = 0
    sampling_steps: int = 0
    passed_logits: int = 0
    trained_logits: int = 0
    parameters: int = 0
    num_ranks: int = 1
    phases: Mapping[str, Memory] = field(default_factory=dict)

    @property
    def peak(self) -> tuple[str, Memory]:
        """The phase that needs most of a device, by name; an empty one where no model runs."""
        return max(self.phases.items(), key=lambda item: item[1].total, default=("", Memory()))

    @property
    def needed(self) -> int:
        """Bytes at the peak of all ranks together, where devices and host share one memory."""
        return self.num_ranks * max((m.total + m.host for m in self.phases.values()), default=0)


@dataclass(frozen=True)
class Rows:
    """Packed rows that pass through a model: `count` of at most `length` tokens each.

    logit_tokens: tokens of a row whose log-probabilities are taken. repeated_keys: tokens of a row
    that have further keys and values, as in `kept_activations`. passes: how often a step
    passes a row through the trunk. all_tokens: of all rows together, if not count * length.
    """

    count: int
    length: int
    logit_tokens: int = 0
    repeated_keys: int = 0
    passes: int = 1
    all_tokens: int | None = None

    @property
    def tokens(self) -> int:
        """Most tokens of all rows together."""
        return self.count * self.length if self.all_tokens is None else self.all_tokens


def supervised_work(
    inputs: StageInputs,
    train: TrainConfig,
    num_parameters: int,
    rows: Rows,
    parts: Sequence[int] | None = None,
) -> Work:
    """The supervised loop over rows, or over `parts` of so many of them, one after another."""
    parts = [rows.count] if parts is None else parts
    step = replace(rows, count=counts.num_taken(rows.count, train.batch_size))
    trained_tokens = train.num_epochs * rows.passes * rows.tokens
    return Work(
        examples=rows.count,
        num_ranks=train.ranks,
        optimiser_steps=counts.optimiser_steps(train, parts),
        trained_tokens=trained_tokens,
        trained_logits=trained_tokens * min(rows.logit_tokens, rows.length) // rows.length,
        parameters=trained_parameters(inputs.shape, train, num_parameters),
        phases=supervised_memory(inputs, train, num_parameters, step),
    )


def supervised_memory(
    inputs: StageInputs, train: TrainConfig, num_parameters: int, step: Rows
) -> dict[str, Memory]:
    """What one of the loop's ranks holds while the model is loaded, and in a step on such rows."""
    own = replace(step, count=counts.rows_of_rank(step.count, train.ranks))
    whole = training_memory(inputs, num_parameters, train, own)
    if train.ranks > 1:
        # Gradients are added up in a bucket, when there are no activations.
        bucket = min(whole.gradients, FLOAT_BYTES * chunk_sizes.BUCKET)
        whole = replace(whole, activations=max(whole.activations, bucket))
    zero, ranks = train.zero, train.ranks
    if zero is None:
        loading = whole.loading(0, 1)
        if narrow_layers(inputs, train):  # which they become once adapters are added
            frozen = untrained_parameters(inputs.shape, train, num_parameters)
            narrow = PRODUCT_BYTES["bfloat16"] * prod(inputs.shape.layers[0].maps[0])
            loading = replace(loading, frozen=FLOAT_BYTES * frozen + narrow)
        return {"loading": loading, "training": whole}
    is_narrow = has_narrow_weights(train)
    return {
        "loading": whole.loading(zero.stage, ranks, zero.offload, is_narrow=is_narrow),
        "training": whole.partitioned(zero.stage, ranks, zero.offload, is_narrow=is_narrow),
    }


def has_narrow_weights(config: TrainerConfig) -> bool:
    """Whether what a trainer learns is bfloat16 on its devices, as under stages 2 and 3 of ZeRO."""
    return config.zero is not None and config.zero.stage > 1 and config.precision != "float32"


def sampling_memory(
    inputs: StageInputs,
    frozen: int,
    num_prompts: int,
    prompt: int,
    max_new_tokens: int,
    *,
    at_least: int | None = None,
    vllm: VllmConfig | None = None,
) -> Memory:
    """Generation with a key-value cache beside `frozen` bytes of weights.

    prompt: most tokens of one of the prompts. at_least: batches; None: as one rank samples. vllm:
    it samples, of which the trainer has nothing.
    """
    if vllm is not None:
        return Memory(frozen=frozen + vllm_memory(vllm, inputs.shape, FLOAT_BYTES))
    shape, longest = inputs.shape, prompt + max_new_tokens
    at_once = max(_batch_sizes(num_prompts, longest, at_least), default=0)
    return Memory(
        frozen=frozen,
        activations=forward_set(shape, at_once * prompt) + sampling_set(shape, at_once),
        cache=key_value_cache(
            shape, at_once * longest, "bfloat16" if inputs.is_narrow else "float32"
        ),
    )


def sampling_steps(
    num_prompts: int, prompt: int, max_new_tokens: int, *, at_least: int | None = None
) -> int:
    """Tokens that the batches of `sampling_memory` draw one after another."""
    sizes = _batch_sizes(num_prompts, prompt + max_new_tokens, at_least)
    return len(sizes) * max_new_tokens


def _batch_sizes(num_prompts: int, longest: int, at_least: int | None) -> list[int]:
    at_least = counts.least_sampling_batches(1) if at_least is None else at_least
    return counts.decoding_batch_sizes(num_prompts, longest, chunk_sizes.CACHE_TOKENS, at_least)


def vllm_memory(config: VllmConfig, shape: ModelShape, bytes_each: int) -> int:
    """Bytes on a rank's device: the policy with a head of its own, and the cache."""
    parameters = shape.trunk_parameters + shape.vocab_size * shape.hidden_size
    return bytes_each * parameters + int(config.cache_gib * 2**30)


def scoring_memory(inputs: StageInputs, frozen: int, rows: Rows) -> Memory:
    """Passes over rows without gradient, beside `frozen` bytes of weights."""
    tokens = counts.most_micro_batch_tokens(rows.count, rows.length, chunk_sizes.PASS_TOKENS)
    logits = vocabulary_set(inputs.shape, min(tokens, rows.count * rows.logit_tokens))
    return Memory(frozen=frozen, activations=forward_set(inputs.shape, tokens) + logits)


def training_memory(
    inputs: StageInputs, num_parameters: int, config: TrainerConfig, rows: Rows
) -> Memory:
    """One micro batch of an optimiser step; rows: of one rank in a step."""
    shape, passes = inputs.shape, rows.passes
    tokens = counts.most_micro_batch_tokens(rows.count, rows.length, config.micro_batch_tokens)
    logits = passes * vocabulary_set(shape, min(tokens, rows.count * rows.logit_tokens))
    repeated_keys = passes * ceil(tokens * rows.repeated_keys / rows.length)
    if logits and has_narrow_weights(config):  # the head in float32, as it multiplies
        logits += FLOAT_BYTES * shape.vocab_size * shape.hidden_size
    kept = gradient_set(inputs, config, passes * tokens, repeated_keys)
    learning = trained_parameters(shape, config, num_parameters)
    memory = trained(learning, kept + logits, config.optimiser)
    frozen = untrained_parameters(shape, config, num_parameters)
    return replace(memory, frozen=inputs.frozen_bytes(frozen, narrow_layers(inputs, config)))


def narrow_layers(inputs: StageInputs, config: TrainerConfig) -> int:
    """How many layers of a model under training are stored narrow: those under adapters."""
    has_narrow = inputs.is_narrow and config.lora is not None and config.zero is None
    return inputs.shape.upper(config.trainable_layers).num_layers * has_narrow


def gradient_set(
    inputs: StageInputs, config: TrainerConfig, tokens: int, repeated_keys: int
) -> int:
    """Bytes of a pass of the trained layers with gradient; `repeated_keys` as in `Rows`."""
    upper = inputs.shape.upper(config.trainable_layers)
    kept = backward_set(
        upper,
        tokens,
        repeated_keys,
        is_recomputed=config.gradient_checkpointing,
        has_dropout=isinstance(config, TrainConfig) and config.dropout > 0,
        precision=config.precision,
        has_narrow_weights=has_narrow_weights(config),
    )
    if config.lora is None:
        return kept
    if narrow := narrow_layers(inputs, config):  # no copy of weights is made
        passed = 1 if config.gradient_checkpointing else narrow
        kept -= PRODUCT_BYTES["bfloat16"] * passed * upper.map_numbers
    # Each linear map's input in the low rank.
    maps = sum(len(layer.maps) for layer in upper.layers)
    return kept + FLOAT_BYTES * tokens * maps * config.lora.rank


def trained_parameters(shape: ModelShape, config: TrainerConfig, num_parameters: int) -> int:
    """How many learn of a model that has so many."""
    if config.lora is None:
        return num_parameters - shape.frozen_parameters(config.trainable_layers)
    adapters = shape.upper(config.trainable_layers).adapter_parameters(config.lora.rank)
    return adapters + _heads(shape, num_parameters)


def untrained_parameters(shape: ModelShape, config: TrainerConfig, num_parameters: int) -> int:
    """How many of them do not learn; adapters are beside them."""
    if config.lora is None:
        return shape.frozen_parameters(config.trainable_layers)
    return num_parameters - _heads(shape, num_parameters)


def _heads(shape: ModelShape, num_parameters: int) -> int:
    """Of a scorer, what it has beyond the trunk; of a policy, nothing learns beyond adapters."""
    is_policy = num_parameters == shape.policy_parameters
    return 0 if is_policy else num_parameters - shape.trunk_parameters
