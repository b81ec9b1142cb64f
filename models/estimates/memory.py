"""Memory of one trainer process: what its models, optimisers, activations and caches hold.

All of it in bytes; float32, but for what a trainer's `precision` makes narrower, and linear maps
that a GPU stores narrow as they are not trained. Counted are
tensors that grow with the model or the batch, and the buckets of ZeRO; what a process takes beside
them (`trimtab.models.estimates.machine`) is not, nor is the allocator's slack. What is said here is
held against the bytes that live (tests/models/training/test_live_bytes.py). Training SFT and a
reward model of 26 million parameters peaked 7 to 10 % below what is said here when every tensor had
pages of its own, and 27 to 39 % above on the C library's ordinary heap, which rows of many lengths
leave holes in (growth of resident memory).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil

from trimtab.models import chunk_sizes
from trimtab.models.config.training import Optimiser, Precision
from trimtab.models.estimates.shapes import LayerShape, ModelShape

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

    def partitioned(
        self, zero_stage: int, num_devices: int, offload: bool = False, *, is_narrow: bool = False
    ) -> Memory:
        """What a device holds under ZeRO [Rajbhandari et al. 2020, figure 1].

        Stage 1 splits the optimiser's state over the devices, 2 the gradients too, 3 the weights
        too, those of frozen models included. DeepSpeed's optimiser has a copy of its part of the
        weights, beside the moments, and a bucket in which gradients are added up. In a step its
        part of the gradients is there twice, while there are no activations; under stage 2 it is
        all along, as those of a micro batch are added to those before. Under stage 3 some weights
        are whole at a time. Every device works on a micro batch of its own. With `offload` the
        optimiser's state, and under stage 3 the parts of weights, are in the host's memory; parts
        of gradients, which DeepSpeed moves there too, are counted on the device all the same.
        is_narrow (stages 2 and 3): weights are bfloat16; the optimiser's copy, and the part of the
        gradients, under stage 2 once even in a step, are float32. While a bucket is added up it is
        there narrow and wide, under stage 3 cut into parts besides.
        """
        share = [num_devices if zero_stage >= stage else 1 for stage in range(4)]
        with_copy = self.optimiser * (ADAM_BYTES + FLOAT_BYTES) // ADAM_BYTES
        twice = 2 if zero_stage == 2 and not is_narrow else 1
        copied = 0 if zero_stage == 2 and is_narrow else ceil(self.gradients / num_devices)
        width, number = (2, FLOAT_BYTES // 2) if is_narrow else (1, FLOAT_BYTES)
        live = number * (chunk_sizes.ZERO_LIVE + chunk_sizes.ZERO_PREFETCH)
        gathered = min(self.weights // width, live) if zero_stage == 3 else 0
        wide = FLOAT_BYTES * is_narrow * (2 if zero_stage == 3 else 1)
        bucket = (number + wide) * chunk_sizes.ZERO_BUCKET
        found = replace(
            self,
            optimiser=ceil(with_copy / share[1]),
            gradients=ceil(twice * self.gradients / share[2]) + bucket,
            weights=ceil(self.weights / width / share[3]),
            frozen=ceil(self.frozen / width / share[3]),
            activations=max(self.activations, copied),
        )
        if offload:
            found = found.offloaded(zero_stage)
        return replace(found, weights=found.weights + gathered)

    def offloaded(self, zero_stage: int) -> Memory:
        """The optimiser's state in the host's memory, under stage 3 weights too."""
        if zero_stage < 3:
            return replace(self, optimiser=0, host=self.host + self.optimiser)
        moved = self.optimiser + self.weights + self.frozen
        return replace(self, optimiser=0, weights=0, frozen=0, host=self.host + moved)

    def loading(
        self, zero_stage: int, num_devices: int, offload: bool = False, *, is_narrow: bool = False
    ) -> Memory:
        """What a device holds while the models that are whole here are loaded.

        Stages 1 and 2 of ZeRO copy what is trained into one buffer. Under stage 3 each parameter
        is taken apart by itself, and then the parts are copied: once into a buffer, and once for
        the optimiser, which has its gradients, and a first buffer for them, at once. is_narrow:
        weights are narrowed one by one before that, this rank's part staying as it was until the
        optimiser has it.
        """
        apart = ceil(self.weights / num_devices) if zero_stage else 0
        if zero_stage < 3 and not is_narrow:
            copies = 2 if zero_stage else 1
            return Memory(weights=copies * self.weights, frozen=self.frozen)
        if zero_stage < 3:
            whole = Memory(weights=self.weights, frozen=self.frozen)
            copying = Memory(weights=self.weights, optimiser=apart, frozen=self.frozen // 2)
            starting = Memory(
                weights=self.weights // 2,
                gradients=apart,
                optimiser=2 * apart,
                frozen=self.frozen // 2,
            )
            return max(whole, copying, starting, key=lambda memory: memory.total)
        part = self.partitioned(3, num_devices, is_narrow=is_narrow)
        width = 2 if is_narrow else 1
        parts = Memory(frozen=ceil((self.weights + self.frozen) / width / num_devices))
        copying = Memory(
            weights=apart // width,
            gradients=part.gradients + (0 if is_narrow else apart),
            optimiser=(1 + is_narrow) * apart,
            frozen=part.frozen,
        )
        if offload:
            parts, copying = parts.offloaded(3), copying.offloaded(3)
        taking_apart = replace(parts, weights=self.weights, frozen=self.frozen + parts.frozen)
        return max(taking_apart, copying, key=lambda memory: memory.total)


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
    shape: ModelShape,
    tokens: int,
    repeated_keys: int = 0,
    is_recomputed: bool = False,
    has_dropout: bool = False,
    precision: Precision = "float32",
    has_narrow_weights: bool = False,
) -> int:
    """Bytes that autograd keeps of the trunk for `tokens`.

    Of each layer and beside the layers what the shape says, wide numbers in float32 and narrow ones
    in the products' precision (a CPU attends in float32); with dropout also by what the outputs of
    attention and feed-forward part are multiplied, 2 h. Narrow products keep a narrow copy of their
    weights, if these are not narrow themselves. `repeated_keys` tokens have further keys and
    values: a prompt's for every response but its first, and that response's own.
    Recomputed (gradient checkpointing), all layers keep their input, h, and one at a time the rest.
    """
    hidden, product = shape.hidden_size, PRODUCT_BYTES[precision]
    is_narrow = product < FLOAT_BYTES
    keys = product * 2 * shape.num_kv_heads * shape.head_dim

    has_copies = is_narrow and not has_narrow_weights

    def whole(layer: LayerShape) -> int:
        narrow = layer.kept_narrow + 2 * hidden * has_dropout
        copies = product * (layer.parameters - 2 * hidden) * has_copies
        kept = FLOAT_BYTES * layer.kept_wide + product * narrow
        return tokens * kept + repeated_keys * keys + copies

    if is_recomputed:
        inputs = FLOAT_BYTES * shape.num_layers * tokens * hidden
        layers = inputs + max(map(whole, shape.layers))
    else:
        layers = sum(map(whole, shape.layers))
    return layers + FLOAT_BYTES * tokens * shape.kept_once


def forward_set(shape: ModelShape, tokens: int) -> int:
    """Bytes of one layer's working set in a forward pass without gradient.

    The residual stream, its normalised form, attention's output and a sum, gate, its activation
    and up; the rotary cosines and sines, a token's id and its place (two floats wide each).
    """
    layer = 4 * shape.hidden_size + shape.feed_forward_numbers
    return FLOAT_BYTES * tokens * (layer + 2 * shape.head_dim + 4)


def backward_set(
    shape: ModelShape,
    tokens: int,
    repeated_keys: int = 0,
    is_recomputed: bool = False,
    has_dropout: bool = False,
    precision: Precision = "float32",
    has_narrow_weights: bool = False,
) -> int:
    """Bytes of a pass with gradient: what autograd keeps, and one layer's gradients on the way."""
    kept = kept_activations(
        shape, tokens, repeated_keys, is_recomputed, has_dropout, precision, has_narrow_weights
    )
    return kept + forward_set(shape, tokens)


def vocabulary_set(shape: ModelShape, response_tokens: int) -> int:
    """Bytes of the logits of response tokens, so many at once."""
    at_once = min(response_tokens, max(1, chunk_sizes.LOGITS_AT_ONCE // shape.vocab_size))
    return FLOAT_BYTES * at_once * shape.vocab_size


def key_value_cache(shape: ModelShape, tokens: int, precision: Precision = "float32") -> int:
    """Bytes of the keys and values of `tokens` in every layer."""
    return (
        PRODUCT_BYTES[precision]
        * tokens
        * 2
        * shape.num_layers
        * shape.num_kv_heads
        * shape.head_dim
    )


def sampling_set(shape: ModelShape, num_rows: int) -> int:
    """Bytes of drawing one token for each of `num_rows`."""
    return FLOAT_BYTES * chunk_sizes.SAMPLING_ROWS * num_rows * shape.vocab_size
