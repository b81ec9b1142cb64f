"""Attention over packed rows: each row for itself, each of its responses for itself.

The first response continues its prompt, so that both are one causal pass; every further response is
a pass of its tokens over the prompt and over themselves. Nothing is computed for padding, of which
there is none, or between rows. It is an attention function of transformers, for any model that
takes one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedConfig, PreTrainedModel

from trimtab.models.nets.precision import attention_dtype, own_precision

_NAME = "trimtab_packed"
# Of each row, the tokens of its prompt and of each of its responses.
Lengths = Sequence[tuple[int, ...]]


def further_mask(lengths: Lengths, dtype: torch.dtype) -> Tensor:
    """(1, 1, r, p + r) for the longest prompt p and further response r: what to add to scores.

    Zeros for the prompt, then a triangle. A shorter prompt's is its end, a shorter response's its
    beginning.
    """
    prompt = max(row[0] for row in lengths)
    response = max((part for row in lengths for part in row[2:]), default=0)
    mask = torch.zeros(response, prompt + response, dtype=dtype)
    mask[:, prompt:] = torch.full((response, response), -torch.inf, dtype=dtype).triu(1)
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
    **options: Any,
) -> tuple[Tensor, None]:
    """query (1, heads, N, d), key and value (1, fewer or as many heads, N, d) -> (1, N, heads, d).

    attention_mask: `further_mask`. Raises ValueError for attention that is cut or bent otherwise.
    """
    _check_plain(module, packed_lengths, options)
    dtype = attention_dtype(value.dtype)
    query, key, value = (each.to(dtype) for each in (query, key, value))
    with own_precision():
        whole = _attend_rows(query, key, value, attention_mask, dropout, scaling, packed_lengths)
    return whole.transpose(1, 2).contiguous(), None


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
