"""Attention over packed rows: each row for itself, each of its responses for itself.

The first response continues its prompt, so that both are one causal pass; every further response is
a pass of its tokens over the prompt and over themselves. Nothing is computed for padding, of which
there is none, or between rows. It is an attention function of transformers, for any model that
takes one.

A CPU takes one call of scaled_dot_product_attention for each of these passes. A GPU that attends in
bfloat16 takes one call of flash attention for sequences of varying length for all of them [Dao
2023]: a further response is a sequence with the response's queries and the keys of prompt and
response, and the kernel's causal mask counts from the last key back.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedConfig, PreTrainedModel

from trimtab.models.nets.precision import attention_dtype, own_precision

try:
    from torch.nn.attention import varlen

    # Before torch 2.11 it takes no window, in which a causal mask is given.
    _HAS_VARLEN = "window_size" in inspect.signature(varlen.varlen_attn).parameters
except ImportError:  # before torch 2.10
    _HAS_VARLEN = False

_NAME = "trimtab_packed"
# Of each row, the tokens of its prompt and of each of its responses.
Lengths = Sequence[tuple[int, ...]]


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

    Raises ValueError for a model that takes no attention function.
    """
    if isinstance(module, PreTrainedModel) and not module._supports_attention_backend:
        raise ValueError(
            f"{type(module).__name__} does not use transformers' attention functions "
            "(AttentionInterface), so that packed rows cannot be kept apart in it"
        )
    # Layers that were taken over from another model read that one's configuration.
    found = [getattr(part, "config", None) for part in module.modules()]
    configs = {id(config): config for config in found if isinstance(config, PreTrainedConfig)}
    before = {key: config._attn_implementation for key, config in configs.items()}
    for config in configs.values():
        config._attn_implementation = _NAME
    try:
        yield
    finally:
        for key, config in configs.items():
            config._attn_implementation = before[key]


def _attend(  # noqa: PLR0913 - transformers' signature
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor,
    dropout: float = 0.0,
    scaling: float | None = None,
    *,
    packed_lengths: Lengths,
    packed_sequences: Sequences | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """query (1, heads, N, d), key and value (1, fewer or as many heads, N, d) -> (1, N, heads, d).

    attention_mask: `further_mask`. packed_sequences: on the device; None: flash attention, where
    there is one, asks for them. Raises ValueError for attention that is cut or bent otherwise.
    """
    _check_plain(module, packed_lengths, options)
    dtype = attention_dtype(value.dtype)
    query, key, value = (each.to(dtype) for each in (query, key, value))
    with own_precision():
        if dropout == 0 and _has_flash(query):
            sequences = packed_sequences or sequences_of(tuple(packed_lengths), query.device)
            query, key, value = (each[0].transpose(0, 1) for each in (query, key, value))
            own = attend_sequences(query, key, value, sequences, scaling, varlen.varlen_attn)
            return own[None], None
        whole = _attend_rows(query, key, value, attention_mask, dropout, scaling, packed_lengths)
    return whole.transpose(1, 2).contiguous(), None


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


@dataclass(frozen=True)
class Sequences:
    """A batch as sequences: of each row prompt and first response, then every further response.

    query_ends, key_ends: (S + 1,) int32, where each begins and the last ends. longest_query,
    longest_key: tokens. key_index: (K,), whose keys they are; None: those of the N tokens in order.
    """

    query_ends: Tensor
    key_ends: Tensor
    longest_query: int
    longest_key: int
    key_index: Tensor | None


@lru_cache(maxsize=2)  # every layer of a pass asks for the same
def sequences_of(lengths: tuple[tuple[int, ...], ...], device: torch.device) -> Sequences:
    """The sequences of packed rows, on the device."""
    queries, keys, index, start = [], [], [], 0
    for prompt, first, *further in lengths:
        sizes = [prompt + first, *further]
        own = torch.arange(start, start + sum(sizes), device="cpu").split(sizes)
        index += [own[0], *(part for each in own[1:] for part in (own[0][:prompt], each))]
        queries += sizes
        keys += [prompt + first, *(prompt + each for each in further)]
        start += sum(sizes)

    def ends(sizes: list[int]) -> Tensor:
        total = torch.tensor([0, *sizes], device="cpu").cumsum(0)
        return total.to(torch.int32).to(device)

    repeats = sum(keys) > start
    return Sequences(
        ends(queries),
        ends(keys) if repeats else ends(queries),
        max(queries),
        max(keys),
        torch.cat(index).to(device) if repeats else None,
    )


@cache
def _shares_keys(kernel: Callable[..., Any]) -> bool:
    """Whether heads may share keys and values."""
    return "enable_gqa" in inspect.signature(kernel).parameters


def attend_sequences(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    sequences: Sequences,
    scaling: float | None,
    kernel: Callable[..., Any],
) -> Tensor:
    """query (N, heads, d), key and value (N, fewer or as many heads, d) -> (N, heads, d).

    kernel: `torch.nn.attention.varlen.varlen_attn`, or what computes the same.
    """
    options: dict[str, Any] = {"scale": scaling, "window_size": (-1, 0)}
    groups = query.shape[1] // key.shape[1]
    if groups > 1 and _shares_keys(kernel):
        options["enable_gqa"] = True
    elif groups > 1:  # before torch 2.13
        key, value = (each.repeat_interleave(groups, dim=1) for each in (key, value))
    if sequences.key_index is not None:
        key, value = key[sequences.key_index], value[sequences.key_index]
    attended: Tensor = kernel(
        query.contiguous(),
        key.contiguous(),
        value.contiguous(),
        sequences.query_ends,
        sequences.key_ends,
        sequences.longest_query,
        sequences.longest_key,
        **options,
    )
    return attended


def _attend_rows(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor,
    dropout: float,
    scaling: float | None,
    packed_lengths: Lengths,
) -> Tensor:
    """As `_attend`, heads before tokens: (1, heads, N, d)."""
    sizes = [size for row in packed_lengths for size in (row[0] + row[1], *row[2:])]
    parts = iter(zip(*(whole.split(sizes, dim=2) for whole in (query, key, value)), strict=True))
    longest = attention_mask.shape[-1] - attention_mask.shape[-2]
    attend = partial(
        F.scaled_dot_product_attention,
        dropout_p=dropout,
        scale=scaling,
        enable_gqa=key.shape[1] != query.shape[1],
    )
    outputs = []
    for prompt, _, *further in packed_lengths:
        own_query, own_key, own_value = next(parts)
        outputs.append(attend(own_query, own_key, own_value, is_causal=True))
        shared = own_key[:, :, :prompt], own_value[:, :, :prompt]
        for response in further:
            own_query, own_key, own_value = next(parts)
            keys, values = (torch.cat(p, 2) for p in zip(shared, (own_key, own_value), strict=True))
            mask = attention_mask[:, :, :response, longest - prompt : longest + response]
            outputs.append(attend(own_query, keys, values, attn_mask=mask))
    return torch.cat(outputs, 2)


AttentionInterface.register(_NAME, _attend)


def _check_plain(module: nn.Module, lengths: Lengths, options: dict[str, Any]) -> None:
    window = options.get("sliding_window")
    longest = max(row[0] + max(row[1:]) for row in lengths)
    if window is not None and window < longest:
        raise ValueError(f"the model attends to the last {window} tokens only, a row has {longest}")
    for name in ("softcap", "s_aux"):
        if options.get(name) is not None:
            raise ValueError(f"attention with {name} ({type(module).__name__}) is not supported")
