"""Attention over short packed rows, padded to rows of like length, with its gradient by hand.

On a CPU a call of scaled_dot_product_attention for each row takes longer than what it computes for
short ones. Here each group of like rows takes three products; what is padded, and pairs of tokens
that do not see each other, are computed with the others and masked. For pairs of 27 tokens that is
1.4 to 2.9 times as fast, for 48 about as fast (docs/explanation/performance.md).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd.function import once_differentiable

MOST_TOKENS = 48  # of a row, as its tokens see it on average
_SLACK = 1.5  # the longest row of a group to its shortest
_Integers = NDArray[np.int64]


@dataclass(frozen=True)
class _Group:
    """B rows, padded to T tokens.

    queries, keys: (B heads T,), of each padded row the indices into (N heads,) and (N key heads,).
    hidden: (B, 1, T, T), which keys a token does not see. shape: (B, heads, T, T).
    """

    queries: Tensor
    keys: Tensor
    hidden: Tensor
    shape: tuple[int, int, int, int]

    def padded(self, states: list[Tensor]) -> Iterator[Tensor]:
        """The group's queries, keys and values, (B heads, T, d) each, of all (N heads, d)."""
        for part, index in zip(states, (self.queries, self.keys, self.keys), strict=True):
            yield part.index_select(0, index).view(-1, self.shape[-1], part.shape[-1])

    def weights(self, queries: Tensor, keys: Tensor, scaling: float) -> Tensor:
        """(B heads, T, T), of each token's keys."""
        scores = torch.bmm(queries, keys.transpose(1, 2)).view(self.shape)
        return scores.mul_(scaling).masked_fill_(self.hidden, -torch.inf).softmax(-1).flatten(0, 1)


def are_short(lengths: tuple[tuple[int, ...], ...]) -> bool:
    """Whether rows of such lengths, as `attend_short_rows` takes them, are quicker for it."""
    sizes = list(map(sum, lengths))
    return sum(size * size for size in sizes) <= MOST_TOKENS * sum(sizes)


def attend_short_rows(
    query: Tensor, key: Tensor, value: Tensor, lengths: tuple[tuple[int, ...], ...], scaling: float
) -> Tensor:
    """query (1, heads, N, d), key and value (1, fewer or as many heads, N, d) -> (1, N, heads, d).

    lengths: of each row, the tokens of its prompt and of each of its responses.
    """
    attended: Tensor = _ShortRows.apply(query, key, value, lengths, scaling)
    return attended[None]


class _ShortRows(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, lengths: Any, scaling: float
    ) -> Tensor:
        ctx.save_for_backward(query, key, value)
        heads, num_tokens, width = query.shape[1:]
        ctx.sizes, ctx.scaling = (lengths, heads, key.shape[1]), scaling
        groups, places = _groups(*ctx.sizes)
        states, attended = _rows_of_heads(query, key, value), []
        for group in groups:
            queries, keys, values = group.padded(states)
            attended.append(torch.bmm(group.weights(queries, keys, scaling), values))
        return _unpadded(attended, places).view(num_tokens, heads, width)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """What was padded is padded again, and weights computed again: rows would keep more."""
        groups, places = _groups(*ctx.sizes)
        _, heads, key_heads = ctx.sizes
        num_tokens, _, width = gradients[0].shape
        sizes = [len(group.queries) for group in groups]
        flat = gradients[0].new_zeros(sum(sizes), width)
        flat.index_copy_(0, places.long(), gradients[0].reshape(-1, width))
        states = _rows_of_heads(*ctx.saved_tensors)
        of_parts: list[list[Tensor]] = [[], [], []]
        for group, part in zip(groups, flat.split(sizes), strict=True):
            queries, keys, values = group.padded(states)
            weights = group.weights(queries, keys, ctx.scaling)
            gradient = part.view(queries.shape)
            of_weights = torch.bmm(gradient, values.transpose(1, 2))
            of_scores = torch.ops.aten._softmax_backward_data(
                of_weights, weights, -1, weights.dtype
            ).mul_(ctx.scaling)
            of_parts[0].append(torch.bmm(of_scores, keys))
            of_parts[1].append(torch.bmm(of_scores.transpose(1, 2), queries))
            of_parts[2].append(torch.bmm(weights.transpose(1, 2), gradient))
        of_query, *of_others = (
            _unpadded(parts, places).view(num_tokens, heads, width) for parts in of_parts
        )
        if key_heads != heads:
            of_others = [part.unflatten(1, (key_heads, -1)).sum(2) for part in of_others]
        return *(part.transpose(0, 1)[None] for part in (of_query, *of_others)), None, None


def _rows_of_heads(*states: Tensor) -> list[Tensor]:
    """(1, heads, N, d) -> (N heads, d)."""
    return [part[0].transpose(0, 1).reshape(-1, part.shape[-1]) for part in states]


def _unpadded(parts: list[Tensor], places: Tensor) -> Tensor:
    rows = [part.flatten(0, 1) for part in parts]
    return (rows[0] if len(rows) == 1 else torch.cat(rows)).index_select(0, places)


@lru_cache(maxsize=1)  # every layer of a pass asks for the same, and what is kept lives on
def _groups(
    lengths: tuple[tuple[int, ...], ...], heads: int, key_heads: int
) -> tuple[list[_Group], Tensor]:
    """The groups, and where each of (N heads,) lies in their padded rows, one group after another.

    A row is padded by its last token.
    """
    part, prompt_part = parts_of(lengths)
    size = np.array([sum(row) for row in lengths])
    start, order = size.cumsum() - size, np.argsort(size, kind="stable")
    head = np.arange(heads)[:, None]
    places = np.empty((len(part), heads), dtype=np.int64)
    groups: list[_Group] = []
    first = before = 0
    while first < len(order):
        end = first + int(
            np.searchsorted(size[order[first:]], _SLACK * size[order[first]], "right")
        )
        rows, first = order[first:end], end
        length = int(size[rows].max())
        place = np.arange(length)
        is_token = place < size[rows, None]
        token = start[rows, None] + np.minimum(place, size[rows, None] - 1)
        sees = part[token][:, None] == part[token][..., None]
        sees |= part[token][:, None] == prompt_part[token][..., None]
        sees &= is_token[:, None] & (place <= place[:, None])
        groups.append(
            _Group(
                _flat(token[:, None] * heads + head),
                _flat(token[:, None] * key_heads + head * key_heads // heads),
                torch.from_numpy(~sees)[:, None],
                (len(rows), heads, length, length),
            )
        )
        place_in_group = np.arange(len(groups[-1].queries)).reshape(len(rows), heads, length)
        places[token[is_token]] = before + place_in_group.transpose(0, 2, 1)[is_token]
        before += place_in_group.size
    return groups, _flat(places)


def parts_of(lengths: tuple[tuple[int, ...], ...]) -> tuple[_Integers, _Integers]:
    """(N,) the part that each token is of, of all rows' prompts and responses, and its prompt's."""
    size = np.array([part for row in lengths for part in row])
    num_parts = np.array([len(row) for row in lengths])
    prompt = (num_parts.cumsum() - num_parts).repeat(num_parts)
    return np.arange(len(size)).repeat(size), prompt.repeat(size)


def _flat(indices: _Integers) -> Tensor:
    return torch.from_numpy(indices.reshape(-1).astype(np.int32))
