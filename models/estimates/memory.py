"""Memory of one trainer process: what its models, optimisers, activations and caches hold.

In bytes; numbers are float32, but for what a trainer's `precision` makes narrower, and linear maps
that a GPU stores narrow as they are not trained. Tensors that grow with the model or the batch and
the buckets of ZeRO count; what a process takes beside them (`trimtab.models.estimates.machine`) and
the allocator's slack do not. tests/models/training/test_live_bytes.py compares it with the bytes
that live. In resident memory, SFT and a reward model of 26 million parameters peaked 7 to 10 %
below it where every tensor had pages of its own, and 27 to 39 % above it on the C library's heap,
in which rows of many lengths leave holes.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from math import ceil

from trimtab.models.config.training import Optimiser, Precision, TrainConfig, TrainerConfig
from trimtab.models.estimates.shapes import LayerShape, ModelShape
from trimtab.models.nets import counts

FLOAT_BYTES = 4
# `auto` is that of a CPU: `work_of` says what it is on a machine with GPUs.
PRODUCT_BYTES: dict[Precision, int] = {"auto": FLOAT_BYTES, "float32": FLOAT_BYTES, "bfloat16": 2}
# AdamW keeps two moments a parameter (a fused step has no master copy or temporaries).
ADAM_BYTES = 2 * FLOAT_BYTES


@dataclass(frozen=True)
class Memory:
    """Bytes of one process in one phase of its work.

    weights: of trained models, with any saved copy. gradients: with ZeRO's buckets of them. frozen:
    weights of models that only run. activations: what a backward pass needs, or the working set of
    a forward pass. cache: keys and values of generation. All of these are on the device; host: what
    ZeRO's `offload` keeps in the host's memory instead.
    """

    weights: int = 0
    gradients: int = 0
    optimiser: int = 0
    frozen: int = 0
    activations: int = 0
    cache: int = 0
    host: int = 0

    @property
    def total(self) -> int:
        """All of it on one device, without what is in the host's memory."""
        held = self.weights + self.gradients + self.optimiser + self.frozen
        return held + self.activations + self.cache

    @property
    def resident(self) -> Memory:
        """Of a model that is trained what stays between two steps."""
        return replace(self, gradients=0, activations=0)

    @property
    def transient(self) -> Memory:
        """Of a model that is trained what is there in a step alone."""
        return Memory(gradients=self.gradients, activations=self.activations)

    def __add__(self, other: Memory) -> Memory:
        return Memory(*(getattr(self, name) + getattr(other, name) for name in _FIELDS))


_FIELDS = [field.name for field in fields(Memory)]


def largest(*memories: Memory) -> Memory:
    """The one that takes most of a device; of equals the first."""
    return max(memories, key=lambda memory: memory.total)


@dataclass(frozen=True)
class Partition:
    """What a device holds under ZeRO [Rajbhandari et al. 2020, figure 1].

    Stage 1 splits the optimiser's state over the devices, 2 the gradients too, 3 the weights
    too, those of frozen models included; 0 is without ZeRO. Every device works on a micro batch of
    its own. With `offload` the optimiser's state, and under stage 3 the parts of weights, are in
    the host's memory; parts of gradients, which DeepSpeed moves there too, are counted on the
    device all the same. is_narrow (stages 2 and 3): weights are bfloat16; the optimiser's copy, and
    the part of the gradients, under stage 2 once even in a step, are float32.
    """

    stage: int = 0
    num_devices: int = 1
    offload: bool = False
    is_narrow: bool = False

    @property
    def bucket(self) -> int:
        """Bytes in which gradients are added up: narrow and wide, under stage 3 cut into parts
        besides."""
        number = FLOAT_BYTES // self.width
        wide = FLOAT_BYTES * self.is_narrow * (2 if self.stage == 3 else 1)
        return (number + wide) * counts.ZERO_BUCKET

    @property
    def width(self) -> int:
        """How many of its weights take the bytes of a float32."""
        return 2 if self.is_narrow else 1

    def working_part(self, memory: Memory) -> Memory:
        """A device's part of `memory`, that of models in training.

        DeepSpeed's optimiser has a copy of its part of the weights, beside the moments, and a
        bucket of gradients. In a step its part of the gradients is there twice, while there are no
        activations; under stage 2 it is all along, as those of a micro batch are added to those
        before. Under stage 3 some weights are whole at a time.
        """
        if self.stage == 0:
            return memory
        share = [self.num_devices if self.stage >= stage else 1 for stage in range(4)]
        with_copy = memory.optimiser * (ADAM_BYTES + FLOAT_BYTES) // ADAM_BYTES
        is_once = self.stage == 2 and self.is_narrow
        twice = 2 if self.stage == 2 and not self.is_narrow else 1
        copied = 0 if is_once else ceil(memory.gradients / self.num_devices)
        live = counts.ZERO_LIVE + counts.ZERO_PREFETCH
        gathered = min(memory.weights, FLOAT_BYTES * live) // self.width if self.stage == 3 else 0
        part = replace(
            memory,
            optimiser=ceil(with_copy / share[1]),
            gradients=ceil(twice * memory.gradients / share[2]) + self.bucket,
            weights=ceil(memory.weights / self.width / share[3]),
            frozen=ceil(memory.frozen / self.width / share[3]),
            activations=max(memory.activations, copied),
        )
        return self._offloaded(part) + Memory(weights=gathered)

    def running_part(self, weights: int) -> Memory:
        """A device's part of models that only run; narrow under stage 3 alone."""
        if self.stage < 3:
            return Memory(frozen=weights)
        part = Memory(frozen=ceil(weights / self.width / self.num_devices))
        return self._offloaded(part)

    def _offloaded(self, memory: Memory) -> Memory:
        """The optimiser's state in the host's memory, under stage 3 weights too."""
        if not self.offload:
            return memory
        if self.stage < 3:
            return replace(memory, optimiser=0, host=memory.host + memory.optimiser)
        moved = memory.optimiser + memory.weights + memory.frozen
        return replace(memory, optimiser=0, weights=0, frozen=0, host=memory.host + moved)

    def loading(self, memory: Memory, largest_parameter: int) -> Memory:
        """What a device holds while a model in training, whole here, is loaded.

        Stages 1 and 2 of ZeRO copy what is trained into one buffer. Under stage 3 each parameter
        is taken apart by itself, and then the parts are copied: once into a buffer, and once for
        the optimiser, which has its gradients, and a bucket for them, at once. Then each parameter
        is gathered once more, while the two threads that gather may still hold one before each.
        Narrow weights are narrowed one by one before that, this rank's part staying as it was until
        the optimiser has it.

        largest_parameter: numbers of the largest matrix.
        """
        apart = ceil(memory.weights / self.num_devices)
        undivided = Memory(weights=memory.weights, frozen=memory.frozen)
        if self.stage < 3 and not self.is_narrow:
            return undivided + Memory(weights=memory.weights * (self.stage > 0))
        if self.stage < 3:
            half = memory.frozen // 2
            copying = Memory(weights=memory.weights, optimiser=apart, frozen=half)
            starting = Memory(memory.weights // 2, apart, 2 * apart, frozen=half)
            return largest(undivided, copying, starting)
        part = replace(self, offload=False).working_part(memory)
        copying = Memory(
            weights=apart // self.width,
            gradients=part.gradients,
            optimiser=(1 + self.is_narrow) * apart,
            frozen=part.frozen,
        )
        gathered = Memory(weights=3 * FLOAT_BYTES * largest_parameter // self.width)
        taking_apart = undivided + self.running_part(memory.weights + memory.frozen)
        return largest(taking_apart, self._offloaded(copying) + gathered)

    def loaded(self, memory: Memory) -> Memory:
        """What a device holds of a model in training until it works: no moments yet."""
        part = self.working_part(memory)
        if self.stage == 0:
            return Memory(weights=memory.weights, frozen=memory.frozen)
        narrow = memory.weights // self.width
        loaded = Memory(
            weights=ceil(narrow / self.num_devices) if self.stage == 3 else narrow,
            gradients=part.gradients if self.stage == 3 else 0,
            optimiser=ceil(memory.weights / self.num_devices),
        )
        return self._offloaded(loaded) + Memory(frozen=part.frozen)


def partition_of(config: TrainerConfig) -> Partition:
    """How a trainer's models are partitioned over its ranks."""
    zero = config.zero
    if zero is None:
        return Partition(num_devices=config.ranks)
    is_narrow = zero.stage > 1 and config.precision != "float32"
    return Partition(zero.stage, config.ranks, zero.offload, is_narrow)


def trained(num_parameters: int, activations: int = 0, optimiser: Optimiser = "adamw") -> Memory:
    """A model under AdamW in its backward pass: 16 bytes a parameter and the activations.

    With moments of 8 bits 10 bytes; what they are scaled by, and small parameters, do not count.
    """
    return Memory(
        weights=FLOAT_BYTES * num_parameters,
        gradients=FLOAT_BYTES * num_parameters,
        optimiser=(ADAM_BYTES if optimiser == "adamw" else 2) * num_parameters,
        activations=activations,
    )


def kept_activations(
    shape: ModelShape, config: TrainerConfig, tokens: int, repeated_keys: int = 0
) -> int:
    """Bytes that autograd keeps of the trunk for `tokens`.

    Of each layer and beside the layers what the shape says, wide numbers in float32 and narrow ones
    in the products' precision (a CPU attends in float32); with dropout also by what the outputs of
    attention and feed-forward part are multiplied, 2 h. Narrow products keep a narrow copy of their
    weights, if these are not narrow themselves. `repeated_keys` tokens have further keys and
    values: a prompt's for every response but its first, and that response's own.
    Recomputed (gradient checkpointing), all layers keep their input, h, and one at a time the rest.
    """
    hidden, product = shape.hidden_size, PRODUCT_BYTES[config.precision]
    keys = product * 2 * shape.num_kv_heads * shape.head_dim
    has_copies = product < FLOAT_BYTES and not partition_of(config).is_narrow
    has_dropout = isinstance(config, TrainConfig) and config.dropout > 0

    def layer_bytes(layer: LayerShape) -> int:
        narrow = layer.kept_narrow + 2 * hidden * has_dropout
        copies = product * (layer.parameters - 2 * hidden) * has_copies
        token_bytes = FLOAT_BYTES * layer.kept_wide + product * narrow
        return tokens * token_bytes + repeated_keys * keys + copies

    if config.gradient_checkpointing:
        inputs = FLOAT_BYTES * shape.num_layers * tokens * hidden
        layers = inputs + max(map(layer_bytes, shape.layers))
    else:
        layers = sum(map(layer_bytes, shape.layers))
    return layers + FLOAT_BYTES * tokens * shape.kept_once


def forward_set(shape: ModelShape, tokens: int) -> int:
    """Bytes of one layer's working set in a forward pass without gradient.

    The residual stream, its normalised form, attention's output and a sum, gate, its activation
    and up; the rotary cosines and sines, a token's id and its place (two floats wide each).
    """
    layer = 4 * shape.hidden_size + shape.feed_forward_numbers
    return FLOAT_BYTES * tokens * (layer + 2 * shape.head_dim + 4)


def vocabulary_set(shape: ModelShape, response_tokens: int) -> int:
    """Bytes of the logits of response tokens, so many at once."""
    at_once = min(response_tokens, max(1, counts.LOGITS_AT_ONCE // shape.vocab_size))
    return FLOAT_BYTES * at_once * shape.vocab_size


def key_value_cache(shape: ModelShape, tokens: int, precision: Precision = "float32") -> int:
    """Bytes of the keys and values of `tokens` in every layer."""
    numbers = 2 * shape.num_layers * shape.num_kv_heads * shape.head_dim
    return PRODUCT_BYTES[precision] * tokens * numbers


def sampling_set(shape: ModelShape, num_rows: int) -> int:
    """Bytes of drawing one token for each of `num_rows`."""
    return FLOAT_BYTES * counts.SAMPLING_ROWS * num_rows * shape.vocab_size
