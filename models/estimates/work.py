"""A stage's work: the sum of what its process samples, passes and trains, each with its memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from math import ceil, prod
from typing import Any

from trimtab.models.config.policy import ReviseConfig, SampleResponsesConfig
from trimtab.models.config.sampling import VllmConfig
from trimtab.models.config.training import ModelConfig, TrainConfig, TrainerConfig
from trimtab.models.estimates.amounts import Amounts
from trimtab.models.estimates.memory import (
    FLOAT_BYTES,
    PRODUCT_BYTES,
    Memory,
    forward_set,
    kept_activations,
    key_value_cache,
    largest,
    partition_of,
    sampling_set,
    trained,
    vocabulary_set,
)
from trimtab.models.estimates.shapes import ModelShape, shape_of
from trimtab.models.nets import counts


@dataclass(frozen=True)
class StageInputs:
    """What a stage's cost depends on beside its configuration: model, data and inputs.

    scorer_shape: of the incoming scorers' model; None: the policy's.
    scorer_heads: heads of each scorer, 1 of a reward model, 2 of an Advantage Model; none of a
    reward from outside that is no model.
    num_behaviours: policies that wrote the pairs, where an Advantage Model weighs by them.
    num_heldout_models: reward models that score an evaluation, or PPO's answers, beside them.
    num_rehearsed: dialogues to rehearse, at most.
    starts_as_reference: whether PPO's policy is at first its reference.
    is_relabelled: whether relabelled pairs come in beside the raw ones.
    sampled, revised: the settings that each artifact of answers, and the revisions, came from.
    num_policies: policies of a seed whose answers a judge compares.
    has_gpus: whether stages run on GPUs, of Ampere or newer.
    is_narrow: whether they do and multiply in bfloat16, so that untrained maps are stored narrow.
    has_trunk: whether the frozen layers' output of all pairs comes in.
    """

    shape: ModelShape
    amounts: Amounts
    scorer_shape: ModelShape | None = None
    scorer_heads: tuple[int, ...] = (1,)
    num_behaviours: int = 0
    num_heldout_models: int = 0
    num_rehearsed: int = 0
    starts_as_reference: bool = False
    is_relabelled: bool = False
    sampled: tuple[SampleResponsesConfig, ...] = ()
    revised: ReviseConfig | None = None
    num_policies: int = 0
    has_gpus: bool = False
    is_narrow: bool = False
    has_trunk: bool = False

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

    def with_model(self, base: str, field: str = "sft.model.base") -> StageInputs:
        """The same with a model that only runs, which `field` names in the run's configuration."""
        shape = shape_of(ModelConfig(base=base), field, is_trained=False)
        return replace(self, shape=shape)

    @property
    def scorer_inputs(self) -> StageInputs:
        """The same with the incoming scorers' model in the policy's place."""
        return self if self.scorer_shape is None else replace(self, shape=self.scorer_shape)

    def scorer_work(self, work: Work) -> Work:
        """Work of the scorers' model, its tokens counted as those of the policy that cost as much:
        a stage's tokens are taken to be all of one model."""
        theirs, ours = self.scorer_inputs.shape.active_numbers, self.shape.active_numbers
        return replace(
            work,
            forward_tokens=work.forward_tokens * theirs // ours,
            trained_tokens=work.trained_tokens * theirs // ours,
        )

    def pairs(self, count: int) -> Rows:
        """Pairs as examples; at most all of one is its prompt and second response."""
        return Rows(count, self.pair_tokens, repeated_keys=self.pair_tokens)

    @property
    def policy_bytes(self) -> int:
        """Bytes of the weights of a policy that is not trained."""
        return self.frozen_bytes(self.shape.policy_parameters, self.shape.num_layers)

    @property
    def scorer_bytes(self) -> list[int]:
        """Bytes of each incoming scorer's weights, where it is not trained."""
        theirs = self.scorer_inputs
        sizes = map(theirs.shape.scorer_parameters, self.scorer_heads)
        return [theirs.frozen_bytes(size, theirs.shape.num_layers) for size in sizes]

    @property
    def heldout_bytes(self) -> int:
        """Bytes of the weights of all held-out reward models."""
        theirs = self.scorer_inputs
        size = theirs.frozen_bytes(theirs.shape.scorer_parameters(1), theirs.shape.num_layers)
        return self.num_heldout_models * size

    def frozen_bytes(self, num_parameters: int, num_layers: int) -> int:
        """Bytes of weights that are not trained, among them the linear maps of so many layers."""
        narrow = num_layers * self.shape.map_numbers * self.is_narrow
        return FLOAT_BYTES * num_parameters - (FLOAT_BYTES - PRODUCT_BYTES["bfloat16"]) * narrow


@dataclass(frozen=True)
class Work:
    """A stage's work, or a part of it.

    examples: rows it takes in (pairs, dialogues, prompts). optimiser_steps: of the model that
    takes most. sampled_tokens: drawn one by one; forward_tokens: passed once without gradient,
    prompts of generation included; trained_tokens: passed forward and backward, a token counting
    for each model it trains. sampling_steps: tokens that the batches of sampling draw one after
    another. passed_logits, trained_logits: tokens whose log-probabilities are taken. parameters:
    trained. phases: memory of one rank by name.
    """

    examples: int = 0
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

    def __add__(self, other: Work) -> Work:
        """One part after the other; of phases of one name the larger counts."""
        phases = dict(self.phases)
        for name, memory in other.phases.items():
            phases[name] = largest(phases.get(name, memory), memory)
        sums = {name: getattr(self, name) + getattr(other, name) for name in _AMOUNTS}
        return Work(**sums, num_ranks=max(self.num_ranks, other.num_ranks), phases=phases)

    def times(self, number: int) -> Work:
        """The same part so many times, one after another."""
        return replace(self, **{name: number * getattr(self, name) for name in _AMOUNTS})

    def beside(self, memory: Memory, *names: str) -> Work:
        """The same work with `memory` held in its phases: those of these names, or all."""
        phases = {
            name: phase + memory if not names or name in names else phase
            for name, phase in self.phases.items()
        }
        return replace(self, phases=phases)

    @property
    def peak(self) -> tuple[str, Memory]:
        """The phase that needs most of a device, by name; an empty one where no model runs."""
        return max(self.phases.items(), key=lambda item: item[1].total, default=("", Memory()))

    @property
    def needed(self) -> int:
        """Bytes at the peak of all ranks together, where devices and host share one memory."""
        return self.num_ranks * max((m.total + m.host for m in self.phases.values()), default=0)


_AMOUNTS = [item.name for item in fields(Work) if item.name not in {"num_ranks", "phases"}]


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


@dataclass(frozen=True)
class Answers:
    """`count` answers of at most `max_new_tokens` to prompts of at most `prompt` tokens each."""

    count: int
    prompt: int
    max_new_tokens: int


def sampling_work(
    inputs: StageInputs,
    frozen: int,
    answers: Answers,
    *,
    phase: str = "sampling",
    num_ranks: int = 1,
    at_once: int | None = None,
    vllm: VllmConfig | None = None,
) -> Work:
    """Generation with a key-value cache beside `frozen` bytes of weights.

    Prompts are cut to what their answers leave of the context. num_ranks: that share the answers.
    at_once: most answers that a judge is asked for together; None: those of a policy, which are in
    at least as many batches as it has ranks. vllm: it samples, of which the trainer has nothing.
    """
    shape, count, max_new_tokens = inputs.shape, answers.count, answers.max_new_tokens
    prompt = min(answers.prompt, counts.prompt_room(shape.context, max_new_tokens))
    longest = prompt + max_new_tokens
    at_least = counts.least_sampling_batches(num_ranks) if at_once is None else 1
    together = min(count, at_once or count)
    repeats, rest = divmod(count, max(1, together))
    batches, last = (
        counts.decoding_batch_sizes(size, longest, counts.CACHE_TOKENS, at_least)
        for size in (together, rest)
    )
    rows = max(batches, default=0)
    memory = Memory(
        frozen=frozen,
        activations=forward_set(shape, rows * prompt) + sampling_set(shape, rows),
        cache=key_value_cache(shape, rows * longest, "bfloat16" if inputs.is_narrow else "float32"),
    )
    if vllm is not None:
        memory = Memory(frozen=frozen + vllm_memory(vllm, shape, FLOAT_BYTES))
    return Work(
        sampled_tokens=count * max_new_tokens,
        forward_tokens=count * prompt,
        sampling_steps=(repeats * len(batches) + len(last)) * max_new_tokens,
        num_ranks=num_ranks,
        phases={phase: memory},
    )


def policy_sampling(config: Any, inputs: StageInputs, num_answers: int, frozen: int) -> Work:
    """A policy's answers as a stage of `config` samples them, beside `frozen` bytes of weights."""
    answers = Answers(num_answers, inputs.amounts.prompt_tokens, config.max_new_tokens)
    ranks = getattr(config, "ranks", 1)
    return sampling_work(inputs, frozen, answers, num_ranks=ranks, vllm=config.vllm)


def vllm_memory(config: VllmConfig, shape: ModelShape, number_bytes: int) -> int:
    """Bytes on a rank's device: a policy with an untied head, of so many bytes a number; cache."""
    parameters = shape.trunk_parameters + shape.vocab_size * shape.hidden_size
    return number_bytes * parameters + int(config.cache_gib * 2**30)


def passing_work(
    inputs: StageInputs,
    frozen: int,
    rows: Rows,
    *,
    phase: str = "scoring",
    times: int = 1,
    at_once: int | None = None,
) -> Work:
    """Passes over rows without gradient, so many times, beside `frozen` bytes of weights.

    at_once: rows that are there together; None: all.
    """
    count = counts.num_taken(rows.count, at_once)
    tokens = counts.most_micro_batch_tokens(count, rows.length, counts.PASS_TOKENS)
    logits = vocabulary_set(inputs.shape, min(tokens, count * rows.logit_tokens))
    memory = Memory(frozen=frozen, activations=forward_set(inputs.shape, tokens) + logits)
    return Work(
        forward_tokens=times * rows.tokens,
        passed_logits=times * rows.count * rows.logit_tokens,
        phases={phase: memory},
    )


def supervised_work(
    inputs: StageInputs,
    train: TrainConfig,
    num_parameters: int,
    rows: Rows,
    *,
    parts: Sequence[int] | None = None,
    further: Sequence[Rows] = (),
) -> Work:
    """The supervised loop over rows, or over `parts` of so many of them, one after another.

    further: rows that each optimiser step passes besides.
    """
    steps = counts.optimiser_steps(train, [rows.count] if parts is None else parts, rows.length)
    step = replace(rows, count=counts.num_taken(rows.count, train.batch_size))
    trained_tokens = train.num_epochs * rows.passes * rows.tokens
    learner = largest(
        *(training_memory(inputs, num_parameters, train, part) for part in (step, *further))
    )
    return Work(
        examples=rows.count,
        num_ranks=train.ranks,
        optimiser_steps=steps,
        trained_tokens=trained_tokens + steps * sum(part.tokens for part in further),
        trained_logits=trained_tokens * min(rows.logit_tokens, rows.length) // rows.length
        + steps * sum(part.count * part.logit_tokens for part in further),
        parameters=trained_parameters(inputs.shape, train, num_parameters),
        phases=trainer_phases(inputs, train, [learner], {"training": learner.transient}),
    )


def trainer_phases(
    inputs: StageInputs,
    config: TrainerConfig,
    learners: Sequence[Memory],
    working: Mapping[str, Memory],
    others: int = 0,
    shared: int = 0,
) -> dict[str, Memory]:
    """What a rank holds while models are loaded, and in each phase of its work with them.

    learners: `training_memory` of each model that is trained, in the order of loading: weights and
    optimiser stay throughout. working: what each phase takes besides. others: bytes of models that
    only run, which are loaded first. shared: bytes of these that are the learners' as well.
    """
    partition = partition_of(config)
    running = partition.running_part(others)
    loading = running + partition.loading(learners[-1], inputs.shape.largest_parameter)
    for learner in learners[:-1]:
        loading += partition.loaded(learner)
    if narrow := narrow_layers(inputs, config):
        # Wide until they have adapters, which they are given map by map: the layers of the model
        # that is loaded last, and where lower layers are shared those of all.
        wide = narrow * inputs.shape.map_numbers
        wide *= 1 if config.trainable_layers is None else len(learners)
        map_numbers = prod(inputs.shape.layers[0].maps[0])
        loading += Memory(frozen=PRODUCT_BYTES["bfloat16"] * (wide + map_numbers))
    held = sum((learner.resident for learner in learners), Memory(frozen=-shared))
    phases = {}
    for name, more in working.items():
        phase = running + partition.working_part(held + more)
        if partition.stage == 3:  # room for the gradients of all learners is kept
            part = ceil(held.weights / partition.num_devices)
            phase = replace(phase, gradients=part + len(learners) * partition.bucket)
        phases[name] = phase
    return {"loading": loading, **phases}


def training_memory(
    inputs: StageInputs, num_parameters: int, config: TrainerConfig, rows: Rows
) -> Memory:
    """One micro batch of a rank in an optimiser step on such rows, before ZeRO parts it."""
    shape, passes = inputs.shape, rows.passes
    count = counts.rows_of_rank(rows.count, config.ranks)
    tokens = counts.most_micro_batch_tokens(count, rows.length, config.micro_batch_tokens)
    logits = passes * vocabulary_set(shape, min(tokens, count * rows.logit_tokens))
    if logits and partition_of(config).is_narrow:  # the head in float32, as it multiplies
        logits += FLOAT_BYTES * shape.vocab_size * shape.hidden_size
    repeated_keys = passes * ceil(tokens * rows.repeated_keys / rows.length)
    activations = _gradient_set(inputs, config, passes * tokens, repeated_keys) + logits
    learning = trained_parameters(shape, config, num_parameters)
    frozen = untrained_parameters(shape, config, num_parameters)
    memory = trained(learning, activations, config.optimiser)
    if config.ranks > 1:
        # Gradients are added up in a bucket, when there are no activations.
        bucket = min(memory.gradients, FLOAT_BYTES * counts.BUCKET)
        memory = replace(memory, activations=max(memory.activations, bucket))
    return replace(memory, frozen=inputs.frozen_bytes(frozen, narrow_layers(inputs, config)))


def narrow_layers(inputs: StageInputs, config: TrainerConfig) -> int:
    """How many layers of a model under training are stored narrow: those under adapters."""
    has_narrow = inputs.is_narrow and config.lora is not None and config.zero is None
    return inputs.shape.upper(config.trainable_layers).num_layers * has_narrow


def _gradient_set(
    inputs: StageInputs, config: TrainerConfig, tokens: int, repeated_keys: int
) -> int:
    """Bytes of a pass of the trained layers with gradient: what autograd keeps (`repeated_keys` as
    in `Rows`), and one layer's gradients on the way."""
    upper = inputs.shape.upper(config.trainable_layers)
    size = kept_activations(upper, config, tokens, repeated_keys) + forward_set(upper, tokens)
    if config.lora is None:
        return size
    if narrow := narrow_layers(inputs, config):  # no copy of weights is made
        passed = 1 if config.gradient_checkpointing else narrow
        size -= PRODUCT_BYTES["bfloat16"] * passed * upper.map_numbers
    # Each linear map's input in the low rank.
    maps = sum(len(layer.maps) for layer in upper.layers)
    return size + FLOAT_BYTES * tokens * maps * config.lora.rank


def trained_parameters(shape: ModelShape, config: TrainerConfig, num_parameters: int) -> int:
    """How many learn of a model that has so many.

    Under adapters these, and what a scorer has beyond the trunk; of a policy nothing beyond them.
    """
    if config.lora is None:
        return num_parameters - shape.frozen_parameters(config.trainable_layers)
    is_policy = num_parameters == shape.policy_parameters
    heads = 0 if is_policy else num_parameters - shape.trunk_parameters
    return _adapter_parameters(shape, config) + heads


def untrained_parameters(shape: ModelShape, config: TrainerConfig, num_parameters: int) -> int:
    """How many of them do not learn; adapters are beside them."""
    total = num_parameters + _adapter_parameters(shape, config)
    return total - trained_parameters(shape, config, num_parameters)


def _adapter_parameters(shape: ModelShape, config: TrainerConfig) -> int:
    """How many adapters add to a model."""
    if config.lora is None:
        return 0
    return shape.upper(config.trainable_layers).adapter_parameters(config.lora.rank)
