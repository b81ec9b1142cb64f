"""Scoring text with a scorer: pairs of an artifact, or loose prompts and responses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from trimtab.models import chunk_sizes
from trimtab.models.nets.freezing import layers_of
from trimtab.models.nets.packing import (
    Candidates,
    PackedBatch,
    TrunkActivations,
    encode,
    pack,
    with_categories,
)
from trimtab.models.nets.scoring import response_logprobs, response_scores
from trimtab.models.nets.trunk import trunk_output
from trimtab.models.training import distributed
from trimtab.models.training.batching import local_micro_batches, micro_batches
from trimtab.models.training.data import context_length


def score_rows(model: PreTrainedModel, rows: Sequence[Candidates]) -> Tensor:
    """Scores (N, k) of N rows with k responses each; ranks share the work out."""
    return _of_responses(model, rows, response_scores)


def logprob_rows(model: PreTrainedModel, rows: Sequence[Candidates]) -> Tensor:
    """Log-probabilities (N, k), nats, of N rows' k whole responses; ranks share the work out."""

    def total(model: PreTrainedModel, batch: PackedBatch) -> Tensor:
        return response_logprobs(model, batch)[0].sum(1)

    return _of_responses(model, rows, total)


@torch.no_grad()
def _of_responses(
    model: PreTrainedModel,
    rows: Sequence[Candidates],
    function: Callable[[PreTrainedModel, PackedBatch], Tensor],
) -> Tensor:
    """`function` of every response (N, k), computed in evaluation mode."""
    was_training = model.training
    model.eval()
    found = torch.zeros(len(rows), len(rows[0].responses))
    for part in local_micro_batches(rows, chunk_sizes.PASS_TOKENS):
        batch = pack([rows[index] for index in part])
        found[part] = function(model, batch).view(len(part), -1)
    model.train(was_training)
    distributed.all_reduce_sum([found])
    return found / distributed.replication(rows)


def score_texts(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    asked: Sequence[Mapping[str, Any]],
    responses: Sequence[str],
) -> Tensor:
    """Scores (N,) of N prompts, as in `score_answers`, each with a response text."""
    return score_answers(model, tokenizer, asked, [[text] for text in responses])[:, 0]


def score_answers(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    asked: Sequence[Mapping[str, Any]],
    answers: Sequence[Sequence[str]],
) -> Tensor:
    """Scores (N, k) of k response texts to each of N prompts; each prompt is passed once.

    asked: rows with a `prompt` and, if it is known, its `category`.
    """
    prompts = [row["prompt"] for row in asked]
    rows = encode(tokenizer, prompts, answers, context_length(model.config))
    return score_rows(model, with_categories(rows, [row.get("category") for row in asked]))


def trunk_activations(
    model: PreTrainedModel, rows: Sequence[Candidates], depth: int
) -> Iterator[tuple[int, Tensor]]:
    """The output of the first `depth` layers: for each row its index and hidden states (T, H)."""
    for part in micro_batches(rows, chunk_sizes.PASS_TOKENS):
        states = trunk_output(model, pack([rows[index] for index in part]), depth)
        yield from zip(part, states.split([rows[index].num_tokens for index in part]), strict=True)


def part_states(
    model: PreTrainedModel, rows: Sequence[Candidates], depth: int
) -> Iterator[tuple[int, int, Tensor]]:
    """The output of the first `depth` layers for every part of every row, in any order: index of
    the row, 0 for its prompt or the number of a response from 1, hidden states (T, H).

    What several rows have is passed once.
    """
    places: dict[tuple[tuple[int, ...], tuple[int, ...]], list[tuple[int, int]]] = {}
    for index, row in enumerate(rows):
        for part, tokens in enumerate(([], *row.responses)):
            places.setdefault((tuple(row.prompt), tuple(tokens)), []).append((index, part))
    distinct = distinct_rows(rows)
    for number, states in trunk_activations(model, distinct, depth):
        row = distinct[number]
        parts = states.split([len(row.prompt), *map(len, row.responses)])
        for tokens, own in zip(([], *row.responses), parts, strict=True):
            # The prompt comes again with further responses.
            for index, part in places.pop((tuple(row.prompt), tuple(tokens)), []):
                yield index, part, own


def num_parts(rows: Sequence[Candidates]) -> int:
    """Prompts and responses of all rows."""
    return sum(1 + len(row.responses) for row in rows)


def distinct_rows(rows: Sequence[Candidates]) -> list[Candidates]:
    """Every different response to every different prompt once, in rows that fit one pass."""
    responses: dict[tuple[int, ...], dict[tuple[int, ...], None]] = {}
    for row in rows:
        own = responses.setdefault(tuple(row.prompt), {})
        own.update(dict.fromkeys(map(tuple, row.responses)))
    return [
        row
        for prompt, own in responses.items()
        for row in _in_rows(list(prompt), [list(each) for each in own])
    ]


def _in_rows(prompt: list[int], responses: list[list[int]]) -> Iterator[Candidates]:
    """Rows of as many responses as one pass holds, at least one."""
    row: list[list[int]] = []
    length = len(prompt)
    for response in responses:
        if row and length + len(response) > chunk_sizes.PASS_TOKENS:
            yield Candidates(prompt, tuple(row))
            row, length = [], len(prompt)
        row.append(response)
        length += len(response)
    yield Candidates(prompt, tuple(row))


def with_trunk(model: PreTrainedModel, rows: Sequence[Candidates], depth: int) -> list[Candidates]:
    """The rows with the output of the first `depth` layers attached; unchanged for depth 0."""
    result = list(rows)
    if depth > 0:
        owner = layers_of(model)[depth - 1]
        for index, states in trunk_activations(model, rows, depth):
            result[index] = replace(rows[index], lower=TrunkActivations(states, owner, depth))
    return result
