"""Shared-prefix packing: a prompt once, its responses behind it, each seeing the prompt and itself.

A row is `prompt, response_1, ..., response_k`. Position ids restart after the prompt for every
response, and the attention mask lets a response token see the prompt and the earlier tokens of its
own response only, so every hidden state equals that of the unpacked `prompt + response` (tested).
One pass over a preference pair then costs prompt + chosen + rejected tokens, and the prompt's last
hidden state, which the Advantage Model's e(x) reads, comes for free.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class LowerStates:
    """What the first `depth` layers of a model make of a row (T, H) or of a batch (B, T, H).

    owner: the last of those layers. A model may use the values only if it holds this very module.
    """

    values: Tensor
    owner: nn.Module
    depth: int


@dataclass(frozen=True)
class Candidates:
    """Token ids of a prompt and its responses, each response ending in the end token.

    lower: states of the packed row, where frozen lower layers have run already.
    """

    prompt: list[int]
    responses: tuple[list[int], ...]
    lower: LowerStates | None = field(default=None, compare=False, repr=False)

    @property
    def num_tokens(self) -> int:
        """Length of the packed row."""
        return len(self.prompt) + sum(map(len, self.responses))

    def exchanged(self) -> Candidates:
        """A pair with its two responses, and their states, in the other order."""
        first, second = self.responses
        lower = self.lower
        if lower is not None:
            parts = lower.values.split([len(self.prompt), len(first), len(second)])
            lower = replace(lower, values=torch.cat([parts[0], parts[2], parts[1]]))
        return Candidates(self.prompt, (second, first), lower)


@dataclass(frozen=True)
class PackedBatch:
    """B packed rows of T tokens holding R responses in all.

    input_ids, position_ids: (B, T). attention_mask: (B, 1, T, T) bool, True = may attend.
    response_row, response_start, response_end, prompt_end: (R,) where each response lies
    (`response_end` and `prompt_end` are the index of the last token, inclusive).
    lower: states (B, T, H) of all rows, or none where any row lacks them.
    """

    input_ids: Tensor
    position_ids: Tensor
    attention_mask: Tensor
    response_row: Tensor
    response_start: Tensor
    response_end: Tensor
    prompt_end: Tensor
    lower: LowerStates | None = None

    def response_positions(self) -> tuple[Tensor, Tensor, Tensor]:
        """Where response tokens lie, as (R, L) padded matrices.

        Returns `source` (index whose hidden state predicts the token: the prompt's last token for
        the first one, the token before it else), `target` (index of the token) and the bool
        `response_mask`, True for real tokens. Masked places hold a valid, meaningless index.
        """
        lengths = self.response_end - self.response_start + 1
        offset = torch.arange(int(lengths.max()))
        response_mask = offset < lengths[:, None]
        target = torch.where(response_mask, self.response_start[:, None] + offset, 0)
        source = torch.where(offset == 0, self.prompt_end[:, None], target - 1).clamp(min=0)
        return source, target, response_mask


def encode(
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[str],
    responses: Sequence[Sequence[str]],
    max_length: int | None = None,
) -> list[Candidates]:
    """Tokenise prompts and the responses to each; the end token is appended to every response.

    Too long a prompt loses its beginning (the last turns matter most), too long a response its
    end, so that prompt plus longest response fits `max_length`.
    """
    encoded = iter(token_ids(tokenizer, [text for texts in responses for text in texts]))
    rows = []
    for prompt, texts in zip(token_ids(tokenizer, prompts), responses, strict=True):
        answers = [[*next(encoded), tokenizer.eos_token_id] for _ in texts]
        if max_length is not None:
            answers = [ids[: max_length - 1] for ids in answers]
            longest = max(map(len, answers), default=0)
            prompt = prompt[-(max_length - longest) :]
        rows.append(Candidates(prompt, tuple(answers)))
    return rows


def token_ids(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> list[list[int]]:
    """Token ids of texts without special tokens; many in one call cost little more than one."""
    if not texts:
        return []
    ids: list[list[int]] = tokenizer(
        list(texts),
        add_special_tokens=False,
        return_attention_mask=False,
        return_token_type_ids=False,
    )["input_ids"]
    return ids


def pack(rows: Sequence[Candidates], pad_id: int) -> PackedBatch:
    """Pack rows of candidates, padded on the right to the longest row."""
    parts = [(row.prompt, *row.responses) for row in rows]
    tokens = torch.tensor([token for row in parts for part in row for token in part])
    row_of = torch.tensor([index for index, row in enumerate(parts) for _ in row])
    number = torch.tensor([number for row in parts for number in range(len(row))])
    length = torch.tensor([len(part) for row in parts for part in row])
    behind = torch.tensor(
        [len(row[0]) * (number > 0) for row in parts for number in range(len(row))]
    )
    first = length.cumsum(0) - length  # of all tokens, the one where each part begins
    row_length = torch.tensor([row.num_tokens for row in rows])
    row_first = row_length.cumsum(0) - row_length
    width = int(row_length.max())
    is_real = torch.arange(width) < row_length[:, None]

    def spread(values: Tensor, padding: int) -> Tensor:
        return values.new_full((len(rows), width), padding).masked_scatter_(is_real, values)

    part_of = torch.arange(len(length)).repeat_interleave(length)
    position = torch.arange(len(tokens)) + (behind - first)[part_of]
    start = (first - row_first[row_of])[number > 0]
    return PackedBatch(
        spread(tokens, pad_id),
        spread(position, 0),
        _visible(spread(number[part_of], -1)),
        row_of[number > 0],
        start,
        start + length[number > 0] - 1,
        behind[number > 0] - 1,
        _lower(rows, width),
    )


def _lower(rows: Sequence[Candidates], width: int) -> LowerStates | None:
    """The rows' states padded with zeros; rows of a batch have the same owner."""
    found = [row.lower for row in rows if row.lower is not None]
    if len(found) < len(rows):
        return None
    first = found[0].values
    values = torch.zeros(len(rows), width, first.shape[-1], dtype=first.dtype)
    for index, lower in enumerate(found):
        values[index, : len(lower.values)] = lower.values
    return LowerStates(values, found[0].owner, found[0].depth)


def _visible(segment: Tensor) -> Tensor:
    """(B, 1, T, T) bool mask from segment ids (B, T): 0 prompt, j response j, -1 padding.

    A padding token sees itself, so that no softmax runs over nothing.
    """
    width = segment.shape[1]
    causal = torch.ones(width, width, dtype=torch.bool).tril()
    query, key = segment[:, :, None], segment[:, None, :]
    allowed = causal & ((key == 0) | (key == query)) & (query >= 0)
    return (allowed | torch.eye(width, dtype=torch.bool))[:, None]
