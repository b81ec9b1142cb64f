"""One more token for each row of a batch at fixed shapes and addresses, as CUDA graphs need it.

A step of decoding is hundreds of launches, each of which takes the host longer than the GPU; as a
CUDA graph [https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs] they are one. A graph
has the shapes and addresses it was recorded with. So keys and values lie in buffers with room for
all tokens, the place that a step writes to is a number on the device, and a mask says what has been
written. The pass is the model's own, so that it serves every architecture whose layers attend to
all tokens or to a window of them.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import Cache, StaticLayer
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from trimtab.models.nets import counts
from trimtab.models.nets.decoding_steps import ModelSteps, padded
from trimtab.models.nets.fused import with_forward
from trimtab.models.nets.precision import NarrowLinear, attention_dtype

# Masked attention copies a mask whose rows do not begin at multiples of 16 numbers.
ALIGNMENT = 64
_FULL, _WINDOW = "full_attention", "sliding_attention"  # transformers' names
# Families whose RMSNorm is a product of the normed input with `weight`.
_NORMS = {f"{family}RMSNorm" for family in ("Llama", "Mistral", "Qwen2", "Qwen3")}


def has_static_steps(model: PreTrainedModel) -> bool:
    """Whether all layers of a model attend to all tokens or to a window, by the mask they get."""
    return bool(model._supports_attention_backend) and _layer_kinds(model) <= {_FULL, _WINDOW}


class StaticSteps:
    """B rows whose tokens the model has processed so far, with room for `room` more.

    A step changes nothing that it reads, so that it can be run again; `append` goes on.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        prompts: Sequence[list[int]],
        repeats: Sequence[int],
        pad_id: int,
        room: int,
    ) -> None:
        """prompts: each goes through the model once and has `repeats` rows, one after another."""
        self.model, self.kinds = model, _layer_kinds(model)
        width, device = max(map(len, prompts)), model.device
        self.width, self.num_rows = width, sum(repeats)
        self.length = _aligned(width + room)
        self.place = torch.full((1,), width - 1, device=device)
        self.slots = torch.arange(self.length, device=device)
        self.tokens = torch.zeros(self.num_rows, 1, dtype=torch.long, device=device)
        self.position = torch.zeros_like(self.tokens)
        # Only attention by `_attend` has a data type of its own.
        is_narrow = model.config.get_text_config()._attn_implementation == "sdpa"
        self.dtype = attention_dtype(model.dtype) if is_narrow else model.dtype
        shape = (self.num_rows, 1, 1, self.length)
        self.bias = torch.full(shape, -torch.inf, dtype=self.dtype, device=device)
        self.layers: list[_Layer] = []
        # Their keys and values, in float32, are in memory beside the buffers.
        at_once = max(1, counts.PASS_TOKENS // width)
        self._logits: list[Tensor] = []
        row = 0
        for start in range(0, len(prompts), at_once):
            end = start + at_once
            self._logits.append(self._fill(prompts[start:end], repeats[start:end], pad_id, row))
            row += sum(repeats[start:end])

    def _fill(
        self, prompts: Sequence[list[int]], repeats: Sequence[int], pad_id: int, row: int
    ) -> Tensor:
        """Process prompts whose rows begin at `row`; returns the logits (b, V) behind them."""
        tokens, mask, position = padded(prompts, pad_id, self.place.device)
        cache = DynamicCache()  # of all tokens, in layers with a window too
        logits = ModelSteps(self.model, cache, mask[:, :0]).run(tokens, mask, position)
        index = torch.arange(len(prompts)).repeat_interleave(torch.tensor(repeats)).to(mask.device)
        rows, places = slice(row, row + len(index)), slice(self.width - mask.shape[1], self.width)
        for number in range(len(cache.layers)):
            layer = cache.layers.pop(0)
            if number == len(self.layers):
                self.layers.append(_Layer(layer.keys, layer.values, self))
            self.layers[number].keys[rows, :, places] = layer.keys[index]
            self.layers[number].values[rows, :, places] = layer.values[index]
        self.bias[rows, 0, 0, places].masked_fill_(mask[index] == 1, 0.0)
        self.position[rows] = position[index, -1:]
        return logits[index]

    def first_logits(self) -> Tensor:
        """(B, V) behind the prompts; they are handed over, as they take much memory."""
        logits, self._logits = torch.cat(self._logits), []
        return logits

    def select(self, index: Tensor) -> None:
        """Keep the rows of `index` (b,), at new addresses."""
        for layer in self.layers:
            layer.keys, layer.values = layer.keys[index], layer.values[index]
        self.tokens, self.position = self.tokens[index], self.position[index]
        self.bias, self.num_rows = self.bias[index], len(index)

    def append(self, tokens: Tensor) -> None:
        """A token (B,) for each row, which the next step processes."""
        self.tokens.copy_(tokens[:, None])
        self.position.add_(1)
        self.place.add_(1)

    def reach(self, num_steps: int) -> int:
        """Of the slots, those that the first so many steps need, and what rounding adds."""
        return min(self.length, _aligned(self.width + num_steps))

    def step(self, reach: int) -> Tensor:
        """Process what was appended, attending to slots before `reach`; returns logits (B, V)."""
        self.bias.index_fill_(3, self.place, 0.0)
        for layer in self.layers:
            layer.reach = reach
        output = self.model(
            input_ids=self.tokens,
            attention_mask=self._mask(reach),
            position_ids=self.position,
            past_key_values=Cache(layers=self.layers),
            use_cache=True,
            logits_to_keep=1,
        )
        logits: Tensor = output.logits[:, -1]
        return logits

    def _mask(self, reach: int) -> Tensor | dict[str, Tensor]:
        """(B, 1, 1, reach), to be added to scores; of models with two kinds of layers, by kind."""
        masks = {_FULL: self.bias[..., :reach]}
        if _WINDOW in self.kinds:
            first = self.place - self.model.config.get_text_config().sliding_window
            behind = self.slots[:reach] <= first
            masks[_WINDOW] = masks[_FULL].masked_fill(behind, -torch.inf)
        return masks if len(self.kinds) > 1 else masks[next(iter(self.kinds))]


class _Layer(StaticLayer):
    """Keys and values (B, heads, L, d) of one layer."""

    def __init__(self, keys: Tensor, values: Tensor, steps: StaticSteps) -> None:
        super().__init__(max_cache_len=steps.length)
        self.keys, self.values = (
            torch.zeros(
                (steps.num_rows, held.shape[1], steps.length, held.shape[3]),
                dtype=steps.dtype,
                device=held.device,
            )
            for held in (keys, values)
        )
        self.place, self.reach, self.is_initialized = steps.place, steps.length, True

    def update(
        self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        self.keys.index_copy_(2, self.place, key_states.to(self.keys.dtype))
        self.values.index_copy_(2, self.place, value_states.to(self.values.dtype))
        return self.keys[:, :, : self.reach], self.values[:, :, : self.reach]

    def get_mask_sizes(self, *_: Any) -> tuple[int, int]:
        return self.reach, 0

    def get_seq_length(self) -> int:
        return self.reach


def _aligned(length: int) -> int:
    return -(-length // ALIGNMENT) * ALIGNMENT


def _layer_kinds(model: PreTrainedModel) -> set[str]:
    config = model.config.get_text_config()
    kinds = getattr(config, "layer_types", None)
    if kinds is None:
        kinds = [_FULL if getattr(config, "sliding_window", None) is None else _WINDOW]
    return set(kinds)


@contextmanager
def few_launches(model: PreTrainedModel) -> Iterator[None]:
    """A context in which one query's attention and a norm are one launch each, not 3 to 8, and a
    map whose weight is stored narrow hands on what it has computed without widening it."""
    forwards: dict[str, Callable[..., Tensor]] = dict.fromkeys(_NORMS, _norm)
    forwards[NarrowLinear.__name__] = _map_narrowly
    changed: list[tuple[nn.Module, Any]] = [
        (part, type(part)) for part in model.modules() if type(part).__name__ in forwards
    ]
    for part, kind in changed:
        part.__class__ = with_forward(kind, forwards[kind.__name__])
    ALL_ATTENTION_FUNCTIONS["sdpa"] = _attend
    try:
        yield
    finally:
        del ALL_ATTENTION_FUNCTIONS["sdpa"]  # transformers' own is there again
        for part, kind in changed:
            part.__class__ = kind


def _norm(self: Any, hidden: Tensor) -> Tensor:
    return F.rms_norm(hidden, hidden.shape[-1:], self.weight, self.variance_epsilon)


def _map_narrowly(self: Any, hidden: Tensor) -> Tensor:
    dtype = self.weight.dtype
    bias = None if self.bias is None else self.bias.to(dtype)
    return F.linear(hidden.to(dtype), self.weight, bias)


def _attend(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, **options: Any
) -> tuple[Tensor, None]:
    """query (B, heads, 1, d), key and value (B, fewer or as many heads, L, d) -> (B, 1, heads, d).

    Heads that share keys are queries of one head: kernels that take a mask know no others.
    """
    rows, heads, queries, size = query.shape
    if queries > 1 or mask is None:
        return sdpa_attention_forward(module, query, key, value, mask, **options)
    grouped = query.reshape(rows, key.shape[1], -1, size).to(key.dtype)
    scale = options.get("scaling")
    attended = F.scaled_dot_product_attention(grouped, key, value, attn_mask=mask, scale=scale)
    return attended.reshape(rows, 1, heads, -1).to(query.dtype), None


class Graphs:
    """CUDA graphs of functions that read and write fixed addresses; without them, the functions.

    Where one cannot be recorded, as its first call waits for the GPU or CUDA refuses it, that is
    said once, and from then on all run each time.
    """

    def __init__(self, device: torch.device, are_wanted: bool = True) -> None:
        self.are_used = are_wanted and device.type == "cuda"

    def replayed(self, *functions: Callable[[], None]) -> list[Replayed]:
        """The functions, which may leave tensors to those behind them, in one pool of memory."""
        pool = torch.cuda.graph_pool_handle() if self.are_used else None
        return [Replayed(function, self, pool) for function in functions]

    def give_up(self, error: RuntimeError) -> None:
        """Run functions as they are from now on."""
        self.are_used = False
        warnings.warn(
            f"decoding runs without CUDA graphs, several times slower: {error}", stacklevel=2
        )


class Replayed:
    """Runs its function once, records it at the second call, then replays it.

    A first run makes handles and workspaces that recording must not; and what one call needs is not
    recorded in vain.
    """

    def __init__(self, function: Callable[[], None], graphs: Graphs, pool: Any) -> None:
        self.function, self.graphs, self.pool = function, graphs, pool
        self.replay: Callable[[], None] | None = None
        self.has_run = False

    def __call__(self) -> None:
        """Run, record or replay."""
        if self.graphs.are_used and self.has_run and self.replay is None:
            try:
                self.replay = record(self.function, self.pool)
            except RuntimeError as error:
                self.graphs.give_up(error)
        if self.graphs.are_used and not self.has_run:
            self._run_first()
        elif self.graphs.are_used and self.replay is not None:
            self.replay()
        else:
            self.function()
        self.has_run = True

    def _run_first(self) -> None:
        """Where the function would wait for the GPU, it is run again from its beginning."""
        try:
            with refused_waiting():
                self.function()
        except RuntimeError as error:
            self.graphs.give_up(error)
            self.function()


def record(function: Callable[[], None], pool: Any) -> Callable[[], None]:
    """What replays the launches of the function, which is not run. Raises RuntimeError."""
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
    # Other threads (NCCL's watchdog, one that writes a checkpoint) go on meanwhile.
    try:
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            function()
    finally:  # where ending it raises, torch leaves the stream that it recorded
        torch.cuda.set_stream(stream)
    return graph.replay


@contextmanager
def refused_waiting() -> Iterator[None]:
    """A context in which torch raises RuntimeError where the host would wait for the GPU."""
    mode = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the mode does not know all such operations
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(mode)
