"""Attention over packed rows: each row for itself, each of its responses for itself.

The first response continues its prompt, so that both are one causal pass; every further response is
a pass of its tokens over the prompt and over themselves. Nothing is computed for padding, of which
there is none, or between rows. It is an attention function of transformers, for any model that
takes one, with sliding windows and with scores that are soft-capped [Gemma 2, arXiv 2408.00118].

Four kernels compute it; the first is the reference of the others:

- One call of scaled_dot_product_attention for each of these passes: wherever the others do not run.
- Some products of short rows at once, padded (`short_rows`): on a CPU.
- One call of flash attention for sequences of varying length [Dao 2023], on a GPU that attends in
  bfloat16: a further response is a sequence with the response's queries and the keys of prompt and
  response, and the kernel's causal mask counts from the last key back.
- One compiled call of FlexAttention [Dong et al. 2024, arXiv 2412.05496], on a GPU in float32 or
  with soft-capped scores: its mask is a function of two tokens' places.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from typing import Any
from weakref import WeakSet

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.attention.flex_attention import _DEFAULT_SPARSE_BLOCK_SIZE, BlockMask
from transformers import AttentionInterface, PreTrainedConfig, PreTrainedModel
from transformers.integrations.flex_attention import flex_attention_forward

from trimtab.models.nets.device import move_to_device
from trimtab.models.nets.freezing import find_layers
from trimtab.models.nets.fused import compiles_kernels
from trimtab.models.nets.precision import attention_dtype, own_precision
from trimtab.models.nets.short_rows import are_short, attend_short_rows, parts_of

try:
    from torch.nn.attention import varlen

    # Before torch 2.11 it takes no window, in which a causal mask is given.
    _HAS_VARLEN = "window_size" in inspect.signature(varlen.varlen_attn).parameters
except ImportError:  # before torch 2.10
    _HAS_VARLEN = False

_NAME = "trimtab_packed"
_LAYER_TYPES = {"full_attention", "sliding_attention"}
# Tokens from which on FlexAttention is compiled (estimated): below, a call a pass is quicker.
FLEX_TOKENS = 2048
# Of each row, the tokens of its prompt and of each of its responses.
Lengths = Sequence[tuple[int, ...]]
_packable: WeakSet[PreTrainedModel] = WeakSet()  # that were checked


def further_mask(lengths: Lengths, dtype: torch.dtype, device: torch.device) -> Tensor:
    """(1, 1, r, p + r) for the longest prompt p and further response r: what to add to scores.

    Zeros for the prompt, then a triangle. A shorter prompt's is its end, a shorter response's its
    beginning.
    """
    prompt = max(row[0] for row in lengths)
    response = max((part for row in lengths for part in row[2:]), default=0)
    mask = torch.zeros(response, prompt + response, dtype=dtype, device=device)
    mask[:, prompt:].fill_(-torch.inf).triu_(1)
    return mask[None, None]


@contextmanager
def packed_attention(module: nn.Module) -> Iterator[None]:
    """A context with packed attention for a trunk or a layer, which must get `packed_lengths`.

    Raises ValueError as `check_packable`.
    """
    if isinstance(module, PreTrainedModel) and module not in _packable:
        check_packable(module)
        _packable.add(module)
    # Layers that were taken over from another model read that one's configuration.
    candidates = [getattr(part, "config", None) for part in module.modules()]
    configs = {id(config): config for config in candidates if isinstance(config, PreTrainedConfig)}
    before = {key: config._attn_implementation for key, config in configs.items()}
    for config in configs.values():
        config._attn_implementation = _NAME
    try:
        yield
    finally:
        for key, config in configs.items():
            config._attn_implementation = before[key]


def check_packable(model: PreTrainedModel) -> None:
    """Raise ValueError where rows that lie one behind another would not be kept apart in a model.

    It looks at modules and configuration only, so that a model on the meta device will do.
    """
    name, config = type(model).__name__, model.config
    if not model._supports_attention_backend:
        raise ValueError(
            f"{name} does not use transformers' attention functions (AttentionInterface), so that "
            "packed rows cannot be kept apart in it"
        )
    kinds = set(getattr(config, "layer_types", None) or ()) - _LAYER_TYPES
    if kinds:
        raise ValueError(
            f"{name} has layers of the types {', '.join(sorted(kinds))}, in which packed rows "
            f"cannot be kept apart; allowed: {', '.join(sorted(_LAYER_TYPES))}"
        )
    for part in (find_layers(model) or model).modules():
        if getattr(part, "is_causal", None) is False:
            raise ValueError(
                f"{name} is not causal ({type(part).__name__}): packed attention looks back only"
            )
        if isinstance(getattr(part, "sinks", None), Tensor):
            raise ValueError(
                f"{name} has attention sinks ({type(part).__name__}.sinks), for which there is no "
                "packed attention"
            )


@torch.compiler.disable  # where layers are compiled
def _attend(  # noqa: PLR0913 - transformers' signature
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor,
    dropout: float = 0.0,
    scaling: float | None = None,
    *,
    packed_lengths: Lengths | None = None,
    packed_sequences: Sequences | None = None,
    softcap: float | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """query (1, heads, N, d), key and value (1, fewer or as many heads, N, d) -> (1, N, heads, d).

    attention_mask: `further_mask`. packed_sequences: on the device; None: flash attention, where
    there is one, asks for them. softcap: scores s become softcap tanh(s / softcap).
    """
    if packed_lengths is None:
        raise ValueError(
            f"the model hands no arguments of its own to attention functions "
            f"({type(module).__name__}), so that packed rows cannot be kept apart in it"
        )
    dtype = attention_dtype(value.dtype)
    query, key, value = (states.to(dtype) for states in (query, key, value))
    lengths = tuple(packed_lengths)
    longest = max(row[0] + max(row[1:]) for row in lengths)
    window = options["sliding_window"] if "sliding_window" in options else _window_of(module)
    if window is not None and window >= longest:
        window = None
    with own_precision():
        is_plain = dropout == 0 and softcap is None and query.shape[-1] == value.shape[-1]
        if is_plain and _has_flash(query):
            sequences = packed_sequences or move_to_device(sequences_of(lengths))
            query, key, value = (states[0].transpose(0, 1) for states in (query, key, value))
            kernel = varlen.varlen_attn
            attended = attend_sequences(query, key, value, sequences, scaling, kernel, window)
            return attended[None], None
        if dropout == 0 and _has_flex(query):
            mask = block_mask(lengths, window, query.device)
            attended, _ = flex_attention_forward(
                module, query, key, value, mask, scaling=scaling, softcap=softcap
            )
            return attended, None
        if is_plain and window is None and _is_wide_on_cpu(query) and are_short(lengths):
            scale = query.shape[-1] ** -0.5 if scaling is None else scaling
            return attend_short_rows(query, key, value, lengths, scale), None
        attended = _attend_rows(
            query, key, value, attention_mask, dropout, scaling, lengths, window, softcap
        )
    return attended.transpose(1, 2).contiguous(), None


AttentionInterface.register(_NAME, _attend)


def _window_of(module: nn.Module) -> int | None:
    """The window of a layer whose model leaves it to its masks (Phi-3.5-MoE, Qwen2-MoE)."""
    config: Any = getattr(module, "config", None)
    kinds = getattr(config, "layer_types", None)
    if kinds and kinds[module.layer_idx] != "sliding_attention":
        return None
    window: int | None = getattr(config, "sliding_window", None)
    return window


def _has_flash(query: Tensor) -> bool:
    """Whether flash attention takes these queries: it needs a GPU, and narrow products."""
    return (
        query.is_cuda
        and query.dtype in (torch.bfloat16, torch.float16)
        and query.shape[-1] <= 256
        and query.shape[-1] % 8 == 0
        and torch.version.hip is None
        and _HAS_VARLEN
        and torch.cuda.get_device_capability(query.device) >= (8, 0)
    )


def _is_wide_on_cpu(query: Tensor) -> bool:
    return query.device.type == "cpu" and query.dtype in (torch.float32, torch.float64)


def _has_flex(query: Tensor) -> bool:
    """Whether FlexAttention is compiled for these queries: for few it would take longer."""
    is_large = query.shape[2] >= FLEX_TOKENS and query.shape[-1] >= 16
    return is_large and compiles_kernels(query.device)


@dataclass(frozen=True)
class Sequences:
    """A batch as sequences: of each row prompt and first response, then every further response.

    query_ends, key_ends: (S + 1,) int32, where each begins and the last ends. longest_query,
    longest_key: tokens. key_index: (K,) int32, whose keys they are; None: those of the N tokens in
    order. uses: (K,) int32, where in `key_index` each token is, token by token; first_use: (N,)
    int32, where in `uses` each token's begin.
    """

    query_ends: Tensor
    key_ends: Tensor
    longest_query: int
    longest_key: int
    key_index: Tensor | None = None
    uses: Tensor | None = None
    first_use: Tensor | None = None


@lru_cache(maxsize=2)  # every layer of a pass asks for the same
def sequences_of(lengths: tuple[tuple[int, ...], ...]) -> Sequences:
    """The sequences of packed rows, on the host."""
    queries, keys, index, start = [], [], [], 0
    for prompt, first, *further in lengths:
        sizes = [prompt + first, *further]
        tokens = np.split(np.arange(start, start + sum(sizes)), np.cumsum(sizes)[:-1])
        shared = tokens[0][:prompt]
        index += [tokens[0], *(part for response in tokens[1:] for part in (shared, response))]
        queries += sizes
        keys += [prompt + first, *(prompt + size for size in further)]
        start += sum(sizes)
    ends = [np.cumsum([0, *sizes]) for sizes in (queries, keys)]
    if queries == keys:  # no row has a further response
        starts = _whole_numbers(ends[0])
        return Sequences(starts, starts, max(queries), max(keys))
    key_index = np.concatenate(index)
    counts = np.bincount(key_index)
    arrays = [*ends, key_index, np.argsort(key_index, kind="stable"), np.cumsum(counts) - counts]
    query_ends, key_ends, *indices = map(_whole_numbers, arrays)
    return Sequences(query_ends, key_ends, max(queries), max(keys), *indices)


def _whole_numbers(array: Any) -> Tensor:
    return torch.from_numpy(array.astype(np.int32))


def attend_sequences(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    sequences: Sequences,
    scaling: float | None,
    kernel: Callable[..., Any],
    window: int | None = None,
) -> Tensor:
    """query (N, heads, d), key and value (N, fewer or as many heads, d) -> (N, heads, d).

    kernel: `torch.nn.attention.varlen.varlen_attn`, or what computes the same; also that of torch
    2.11, which has no `enable_gqa`, passes on keys and values of fewer heads.
    """
    options: dict[str, Any] = {} if key.shape[1] == query.shape[1] else _shared_heads(kernel)
    if sequences.key_index is not None:
        key, value = _RepeatedKeys.apply(key, value, sequences)
    attended: Tensor = kernel(
        query.contiguous(),
        key.contiguous(),
        value.contiguous(),
        sequences.query_ends,
        sequences.key_ends,
        sequences.longest_query,
        sequences.longest_key,
        scale=scaling,
        window_size=(-1 if window is None else window - 1, 0),
        **options,
    )
    return attended


@cache
def _shared_heads(kernel: Callable[..., Any]) -> dict[str, bool]:
    """How a kernel is told that heads share keys and values, from torch 2.13 on."""
    return {"enable_gqa": True} if "enable_gqa" in inspect.signature(kernel).parameters else {}


class _RepeatedKeys(torch.autograd.Function):
    """Keys and values (N, heads, d) of every sequence, (K, heads, d): a prompt's repeated.

    Of an index autograd would add up the gradient by sorting it. Here a token's uses are known: one
    launch adds them, each token's in order, so that the result is the same each time.
    """

    @staticmethod
    def forward(ctx: Any, key: Tensor, value: Tensor, sequences: Sequences) -> tuple[Tensor, ...]:
        ctx.sequences, index = sequences, sequences.key_index
        assert index is not None
        return key.index_select(0, index), value.index_select(0, index)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        uses, first_use = ctx.sequences.uses, ctx.sequences.first_use
        return *(
            F.embedding_bag(uses, gradient.flatten(1), first_use, mode="sum").view(
                -1, *gradient.shape[1:]
            )
            for gradient in gradients
        ), None


@lru_cache(maxsize=4)  # layers with a window and those without ask for one each
def block_mask(
    lengths: tuple[tuple[int, ...], ...], window: int | None, device: torch.device
) -> BlockMask:
    """Which of the N tokens of packed rows attend to which, as FlexAttention takes it.

    A token sees its row's prompt and its own response up to itself, of these the last `window`.
    """
    row_starts = np.cumsum([0, *map(sum, lengths)])
    positions: list[Any] = []
    for prompt, *responses in lengths:
        positions += [np.arange(prompt), *(prompt + np.arange(size) for size in responses)]
    part, prompt_part, position = move_to_device(
        tuple(map(_whole_numbers, (*parts_of(lengths), np.concatenate(positions))))
    )

    def sees(_: Tensor, __: Tensor, query: Tensor, key: Tensor) -> Tensor:
        seen = (part[key] == part[query]) | (part[key] == prompt_part[query])
        seen = seen & (key <= query)
        return seen if window is None else seen & (position[query] - position[key] < window)

    # A block of queries meets the blocks from its first row's beginning up to itself.
    size = _DEFAULT_SPARSE_BLOCK_SIZE
    blocks = torch.arange(-(-row_starts[-1] // size), dtype=torch.int32, device="cpu")
    row = np.searchsorted(row_starts, blocks.numpy() * size, side="right") - 1
    first = torch.from_numpy(row_starts[row] // size).to(torch.int32)
    block_index = (first[:, None] + blocks).clamp(max=len(blocks) - 1)
    return BlockMask.from_kv_blocks(
        (blocks - first + 1)[None, None],
        block_index[None, None],
        mask_mod=sees,
        seq_lengths=(int(row_starts[-1]),) * 2,
    ).to(device)


def _attend_rows(  # noqa: PLR0913 - the parts of `_attend`
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor,
    dropout: float,
    scaling: float | None,
    packed_lengths: Lengths,
    window: int | None = None,
    softcap: float | None = None,
) -> Tensor:
    """As `_attend`, heads before tokens: (1, heads, N, d)."""
    sizes = [size for row in packed_lengths for size in (row[0] + row[1], *row[2:])]
    parts = iter(zip(*(states.split(sizes, dim=2) for states in (query, key, value)), strict=True))
    longest = attention_mask.shape[-1] - attention_mask.shape[-2]
    is_plain = window is None and softcap is None
    attend = partial(
        F.scaled_dot_product_attention if softcap is None else partial(_attend_capped, softcap),
        dropout_p=dropout,
        scale=scaling,
        enable_gqa=key.shape[1] != query.shape[1],
    )
    outputs = []
    for prompt, first, *further in packed_lengths:
        own_query, own_key, own_value = next(parts)
        if is_plain:
            outputs.append(attend(own_query, own_key, own_value, is_causal=True))
        else:
            mask = _window_mask(own_query, prompt + first, window)
            outputs.append(attend(own_query, own_key, own_value, attn_mask=mask))
        shared = own_key[:, :, :prompt], own_value[:, :, :prompt]
        for response in further:
            own_query, own_key, own_value = next(parts)
            keys, values = (torch.cat(p, 2) for p in zip(shared, (own_key, own_value), strict=True))
            if is_plain:
                mask = attention_mask[:, :, :response, longest - prompt : longest + response]
            else:
                mask = _window_mask(own_query, prompt + response, window)
            outputs.append(attend(own_query, keys, values, attn_mask=mask))
    return torch.cat(outputs, 2)


def _window_mask(query: Tensor, num_keys: int, window: int | None) -> Tensor:
    """(q, k) what to add to scores of the last q of k tokens, which see `window` each."""
    places = torch.arange(num_keys, device=query.device)
    distance = places[num_keys - query.shape[2] :, None] - places
    is_hidden = distance < 0
    if window is not None:
        is_hidden |= distance >= window
    return query.new_zeros(distance.shape).masked_fill(is_hidden, -torch.inf)


def _attend_capped(  # noqa: PLR0913 - torch's signature
    softcap: float,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor,
    dropout_p: float,
    scale: float | None,
    enable_gqa: bool,
) -> Tensor:
    """scaled_dot_product_attention of soft-capped scores."""
    if enable_gqa:
        groups = query.shape[1] // key.shape[1]
        key, value = (states.repeat_interleave(groups, 1) for states in (key, value))
    scores = query @ key.transpose(2, 3) * (query.shape[-1] ** -0.5 if scale is None else scale)
    weights = (softcap * torch.tanh(scores / softcap) + attn_mask).softmax(-1)
    return F.dropout(weights, dropout_p) @ value
