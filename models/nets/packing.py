"""Shared-prefix packing: a prompt once, its responses behind it, each seeing the prompt and itself.

A row is `prompt, response_1, ..., response_k`. Position ids restart after the prompt for every
response, and attention lets a response token see the prompt and the earlier tokens of its own
response only, so every hidden state equals that of the unpacked `prompt + response` (tested). One
pass over a preference pair then costs prompt + chosen + rejected tokens, and the prompt's last
hidden state, which the Advantage Model's e(x) reads, comes for free. The rows of a batch lie one
behind another: none is padded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from trimtab.models.nets.attention import Sequences, sequences_of
from trimtab.models.nets.device import current_device, move_to_device

Integers = NDArray[np.int64]


@dataclass(frozen=True)
class TrunkActivations:
    """The output (N, H) of the first `depth` layers of a model, for the tokens of a row or batch.

    owner: the last of those layers. A model may use the values only if it holds this very module.
    """

    values: Tensor
    owner: nn.Module
    depth: int


@dataclass(frozen=True)
class Candidates:
    """Token ids of a prompt and its responses, each response ending in the end token.

    lower: output of frozen lower layers for the packed row, if it is known already. category: of
    the prompt, if it is known: whose head scores it where a scorer has one for each category.
    """

    prompt: list[int]
    responses: tuple[list[int], ...]
    lower: TrunkActivations | None = field(default=None, compare=False, repr=False)
    category: str | None = field(default=None, compare=False)

    @property
    def num_tokens(self) -> int:
        """Length of the packed row."""
        return len(self.prompt) + sum(map(len, self.responses))

    def swapped(self) -> Candidates:
        """A pair with its two responses, and their states, in the other order."""
        first, second = self.responses
        lower = self.lower
        if lower is not None:
            parts = self.lower_parts()
            lower = replace(lower, values=torch.cat([parts[0], parts[2], parts[1]]))
        return replace(self, responses=(second, first), lower=lower)

    def lower_parts(self) -> Sequence[Tensor]:
        """The states of the prompt, then those of each response."""
        assert self.lower is not None
        return self.lower.values.split([len(self.prompt), *map(len, self.responses)])


def merged_candidates(rows: Sequence[Candidates]) -> Candidates:
    """Rows of one prompt merged into one, which holds every distinct response once, in order.

    A prompt that was cut for long responses stays as short as in the row where it is shortest, as
    if all responses had been encoded together. States under another cut are of other positions:
    the row then has none.
    """
    if len(rows) == 1:
        return rows[0]
    prompt = min((row.prompt for row in rows), key=len)
    first: dict[tuple[int, ...], tuple[Candidates, int]] = {}
    for row in rows:
        for place, response in enumerate(row.responses, start=1):
            first.setdefault(tuple(response), (row, place))
    responses = tuple(list(response) for response in first)
    lower = rows[0].lower
    if lower is None or any(row.lower is None or len(row.prompt) > len(prompt) for row in rows):
        return Candidates(prompt, responses, category=rows[0].category)
    parts = [row.lower_parts()[place] for row, place in ((rows[0], 0), *first.values())]
    lower = replace(lower, values=torch.cat(parts))
    return Candidates(prompt, responses, lower, rows[0].category)


def mismatched_candidates(rows: Sequence[Candidates], max_length: int) -> list[Candidates]:
    """Each prompt with the responses of the row before it, the first with those of the last.

    A row whose prompt is that of the row before it is left out. Cut as in `encode`; no states, as
    these are of other positions.
    """
    before = [rows[-1], *rows[:-1]]
    return [
        replace(_cut(row.prompt, list(other.responses), max_length), category=row.category)
        for row, other in zip(rows, before, strict=True)
        if row.prompt != other.prompt
    ]


class ResponseTokens(NamedTuple):
    """Where the n tokens of R responses lie, response by response.

    source: (n,) the index whose hidden state predicts the token: that of the prompt's last token
    for a response's first one, of the token before it else. ids: (n,) the tokens. place: (n,) of
    each in (R, L) flattened, L the longest response. mask: (R, L), True for the tokens.
    """

    source: Tensor
    ids: Tensor
    place: Tensor
    mask: Tensor


@dataclass(frozen=True)
class PackedBatch:
    """Packed rows of N tokens and R responses in all.

    input_ids, position_ids: (N,). lengths: of each row, the tokens of its prompt and of each of its
    responses. response_end, prompt_end: (R,) the index of the last token of each response, and of
    its prompt. ends: these, each once, in order. tokens: of all responses. sources: their `source`,
    each once, in order. category: (R,) the hash of the name of its prompt's.
    lower: states of all rows, or none where any row lacks them. sequences: what one kernel attends
    to at once; none on a CPU, which takes each for itself.
    """

    input_ids: Tensor
    position_ids: Tensor
    lengths: tuple[tuple[int, ...], ...]
    response_end: Tensor
    prompt_end: Tensor
    ends: Tensor
    tokens: ResponseTokens
    sources: Tensor
    category: Tensor
    lower: TrunkActivations | None = None
    sequences: Sequences | None = None


def encode(
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[str],
    responses: Sequence[Sequence[str]],
    max_length: int | None = None,
) -> list[Candidates]:
    """Tokenise each prompt with its responses; every response ends with the end token, once.

    Prompt and response are one text, as for whoever is given a model and a text: the response
    starts at the first token in which any of the prompt's texts differs from the prompt's alone
    (a prompt is tokenised apart only where that is its very first). Too long a prompt loses its
    beginning (the last turns matter most), too long a response its end, so that prompt plus
    longest response fits `max_length`.
    """
    answers = [[_strip_end(text, tokenizer) for text in texts] for texts in responses]
    joint = _ids_of_each(
        tokenizer,
        [[p + text for text in texts] for p, texts in zip(prompts, answers, strict=True)],
    )
    distinct = list(dict.fromkeys(prompts))
    alone = dict(zip(distinct, token_ids(tokenizer, distinct), strict=True))
    common = dict(alone)
    for prompt, sequences in zip(prompts, joint, strict=True):
        for ids in sequences:
            common[prompt] = common[prompt][: _num_common(common[prompt], ids)]
    rows = []
    for prompt, sequences, texts in zip(prompts, joint, answers, strict=True):
        start = common[prompt]
        if alone[prompt] and not start:  # nothing would predict the first token
            start = alone[prompt]
            sequences = [[*start, *ids] for ids in token_ids(tokenizer, texts)]
        end = tokenizer.eos_token_id
        rows.append(_cut(start, [_ended(ids[len(start) :], end) for ids in sequences], max_length))
    return rows


def _ids_of_each(
    tokenizer: PreTrainedTokenizerBase, texts: Sequence[Sequence[str]]
) -> list[list[list[int]]]:
    """Token ids of lists of texts, in one call."""
    ids = iter(token_ids(tokenizer, [text for group in texts for text in group]))
    return [[next(ids) for _ in group] for group in texts]


def _strip_end(text: str, tokenizer: PreTrainedTokenizerBase) -> str:
    """A response without an end token of its own at its end."""
    end, stripped = str(tokenizer.eos_token), text.rstrip()
    return stripped.removesuffix(end) if stripped.endswith(end) else text


def _ended(ids: list[int], end: int) -> list[int]:
    return ids if ids[-1:] == [end] else [*ids, end]


def _num_common(first: Sequence[int], second: Sequence[int]) -> int:
    """How many tokens two texts have in common at their beginning."""
    if second[: len(first)] == first:
        return len(first)
    pairs = enumerate(zip(first, second, strict=False))
    shorter = min(len(first), len(second))
    return next((place for place, (one, two) in pairs if one != two), shorter)


def encode_whole(
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[str],
    texts: Sequence[str],
    max_length: int | None = None,
) -> list[Candidates]:
    """Tokenise texts that begin with their prompts; no end token is added.

    As in TRL's SFTTrainer the response starts at the first token in which the text's tokens differ
    from the prompt's alone, so that a token may reach across; after an empty prompt at the second,
    as nothing predicts the first. Cut as in `encode`.
    Raises ValueError for a text with nothing behind its prompt.
    """
    rows = []
    encoded = zip(token_ids(tokenizer, prompts), token_ids(tokenizer, texts), strict=True)
    for text, (prompt, ids) in zip(texts, encoded, strict=True):
        start = max(1, _num_common(prompt, ids))
        if start >= len(ids):
            raise ValueError(f"the text {text!r} has no token to learn behind its prompt")
        rows.append(_cut(ids[:start], [ids[start:]], max_length))
    return rows


def _cut(prompt: list[int], responses: list[list[int]], max_length: int | None) -> Candidates:
    if max_length is not None:
        responses = [ids[: max_length - 1] for ids in responses]
        longest = max(map(len, responses), default=0)
        prompt = prompt[-(max_length - longest) :]
    return Candidates(prompt, tuple(responses))


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


def pack(rows: Sequence[Candidates]) -> PackedBatch:
    """Pack rows of candidates one behind another, on the device that computes."""
    return move_to_device(pack_on_host(rows))


def pack_on_host(rows: Sequence[Candidates]) -> PackedBatch:
    """As `pack`, on the host: what a loss needs beside may go to the device with it."""
    ids, layout = _ids(rows), _layout(rows)
    is_cpu = current_device().type == "cpu"
    response_end = torch.from_numpy(layout.start + layout.size - 1)
    prompt_end = torch.from_numpy(layout.prompt_end)
    ends = torch.cat([prompt_end, response_end]).unique()
    tokens = _tokens_at(ids, layout.start, layout.size, layout.prompt_end)
    return PackedBatch(
        torch.from_numpy(ids),
        torch.from_numpy(layout.position_ids),
        layout.lengths,
        response_end,
        prompt_end,
        ends[ends >= 0],  # without where an empty prompt of the first row would end
        tokens,
        tokens.source.unique(),
        torch.tensor([hash(row.category) for row in rows for _ in row.responses]),
        _lower(rows),
        None if is_cpu else sequences_of(layout.lengths),
    )


def tokens_of_responses(rows: Sequence[Candidates], chosen: Sequence[int]) -> ResponseTokens:
    """The tokens of those responses of packed rows that `chosen` names, in its order; on the host.

    A row's responses follow those of the row before it.
    """
    layout = _layout(rows)
    places = (layout.start, layout.size, layout.prompt_end)
    return _tokens_at(_ids(rows), *(values[list(chosen)] for values in places))


class _Layout(NamedTuple):
    """Of packed rows; start, size, prompt_end: (R,) of their responses, in tokens."""

    lengths: tuple[tuple[int, ...], ...]
    position_ids: Integers
    start: Integers
    size: Integers
    prompt_end: Integers


def _layout(rows: Sequence[Candidates]) -> _Layout:
    lengths = tuple((len(row.prompt), *map(len, row.responses)) for row in rows)
    size = np.array([part for row in lengths for part in row])
    start = size.cumsum() - size
    num_parts = np.array([len(row) for row in lengths])
    prompt = (num_parts.cumsum() - num_parts).repeat(num_parts)  # of each part: which is its prompt
    is_response = prompt != np.arange(len(size))
    first_position = np.where(is_response, size[prompt], 0)
    position_ids = np.arange(size.sum()) - (start - first_position).repeat(size)
    prompt_end = (start + size - 1)[prompt]
    return _Layout(lengths, position_ids, *(a[is_response] for a in (start, size, prompt_end)))


def _ids(rows: Sequence[Candidates]) -> Integers:
    ids: list[int] = []
    for row in rows:
        for part in (row.prompt, *row.responses):
            ids += part
    return np.array(ids)


def _tokens_at(
    ids: Integers, start: Integers, size: Integers, prompt_end: Integers
) -> ResponseTokens:
    width = size.max()
    offset = np.arange(size.sum()) - (size.cumsum() - size).repeat(size)
    index = start.repeat(size) + offset
    source = np.where(offset == 0, prompt_end.repeat(size), index - 1)
    place = (np.arange(len(size)) * width).repeat(size) + offset
    mask = np.arange(width) < size[:, None]
    return ResponseTokens(*map(torch.from_numpy, (source, ids[index], place, mask)))


def with_categories(
    rows: Sequence[Candidates], categories: Sequence[str | None]
) -> list[Candidates]:
    """The rows, each with its prompt's category."""
    return [replace(row, category=category) for row, category in zip(rows, categories, strict=True)]


def _lower(rows: Sequence[Candidates]) -> TrunkActivations | None:
    """The rows' states one behind another; rows of a batch have the same owner."""
    states = [row.lower for row in rows if row.lower is not None]
    if len(states) < len(rows):
        return None
    values = torch.cat([lower.values for lower in states])
    return TrunkActivations(values, states[0].owner, states[0].depth)
