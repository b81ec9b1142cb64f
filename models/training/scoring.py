"""Scoring text with a scorer: pairs of an artifact, or loose prompts and responses.

A scorer of another tokenizer than the policy's is given an answer as text, which its own reads.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from trimtab.models.nets import counts
from trimtab.models.nets.device import current_device, move_to_device
from trimtab.models.nets.free_memory import pass_tokens
from trimtab.models.nets.freezing import layers_of
from trimtab.models.nets.loading import load_tokenizer
from trimtab.models.nets.packing import (
    Candidates,
    PackedBatch,
    TrunkActivations,
    encode,
    pack,
    with_categories,
)
from trimtab.models.nets.pretrained import load_config
from trimtab.models.nets.scoring import response_logprobs, response_scores
from trimtab.models.nets.trunk import trunk_output
from trimtab.models.training import distributed
from trimtab.models.training.batching import local_micro_batches, micro_batches
from trimtab.models.training.data import context_length
from trimtab.models.training.progress import Progress


def score_rows(
    model: PreTrainedModel, rows: Sequence[Candidates], progress: Progress | None = None
) -> Tensor:
    """Scores (N, k), on the host, of N rows with k responses each; ranks share the work out."""
    return _map_responses(model, rows, response_scores, progress)


def logprob_rows(model: PreTrainedModel, rows: Sequence[Candidates]) -> Tensor:
    """Log-probabilities (N, k), nats, on the host, of N rows' k whole responses.

    Ranks share the work out.
    """

    def total(model: PreTrainedModel, batch: PackedBatch) -> Tensor:
        return response_logprobs(model, batch)[0].sum(1)

    return _map_responses(model, rows, total)


def _map_responses(
    model: PreTrainedModel,
    rows: Sequence[Candidates],
    function: Callable[[PreTrainedModel, PackedBatch], Tensor],
    progress: Progress | None = None,
) -> Tensor:
    """`function` of every response (N, k), computed in evaluation mode."""
    was_training = model.training
    model.eval()
    (values,) = map_rows(
        rows, lambda batch: (function(model, batch).view(len(batch.lengths), -1),), None, progress
    )
    model.train(was_training)
    return values.cpu()


@torch.no_grad()
def map_rows(
    rows: Sequence[Candidates],
    function: Callable[[PackedBatch], tuple[Tensor, ...]],
    width: int | None = None,
    progress: Progress | None = None,
) -> tuple[Tensor, ...]:
    """`function` of N rows, micro batch by micro batch: its answers (b, ...) joined to (N, ...).

    width: of answers (r, l) that differ in l, of the r responses of rows that have as many each;
    the longest. Behind shorter ones stands 0, and what is joined is (N k, width). Ranks share the
    rows out and all get the whole, on the device; the host waits for none of it. progress: is told
    of this rank's micro batches.
    """
    parts = list(local_micro_batches(rows, pass_tokens(current_device())))
    passed = parts if progress is None else progress.follow(parts, len(parts))
    batches = (pack([rows[index] for index in part]) for part in passed)
    answers = zip(*map(function, batches), strict=True)
    num_responses = len(rows[0].responses)
    joined = [_joined(parts, width, num_responses) for parts in answers]
    # The rows of other ranks are read from the zeros behind this rank's.
    mine = [index for part in parts for index in part]
    source = torch.full((len(rows),), len(mine))
    source[mine] = torch.arange(len(mine))
    source, times = move_to_device(source), distributed.replication(rows)
    in_order = [values[source] for values in joined]
    sums = [values.float() for values in in_order]
    distributed.all_reduce_sum(sums)
    whole = [(total / times).to(values.dtype) for total, values in zip(sums, in_order, strict=True)]
    return tuple(whole if width is None else [values.view(-1, width) for values in whole])


def _joined(answers: Sequence[Tensor], width: int | None, num_responses: int) -> Tensor:
    """Answers one behind another, each as wide, and a row of zeros."""
    if width is not None:
        padded = [F.pad(answer, (0, width - answer.shape[1])) for answer in answers]
        answers = [answer.view(-1, num_responses * width) for answer in padded]
    return torch.cat([*answers, answers[0].new_zeros(1, *answers[0].shape[1:])])


def score_answers(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompt_rows: Sequence[Mapping[str, Any]],
    answers: Sequence[Sequence[str]],
    progress: Progress | None = None,
) -> Tensor:
    """Scores (N, k) of k response texts to each of N prompts; each prompt is passed once.

    prompt_rows: rows with a `prompt` and, if it is known, its `category`.
    """
    prompts = [row["prompt"] for row in prompt_rows]
    rows = encode(tokenizer, prompts, answers, context_length(model.config))
    rows = with_categories(rows, [row.get("category") for row in prompt_rows])
    return score_rows(model, rows, progress)


def other_tokenizer(scorer: Path, policy: Path) -> PreTrainedTokenizerBase | None:
    """A scorer's tokenizer where it cannot read a policy's tokens as they are, else None.

    It then makes other tokens of a text, ends an answer by another, or takes fewer of them. Both:
    folders of models.
    """
    theirs, ours = load_tokenizer(scorer), load_tokenizer(policy)
    has_room = context_length(load_config(scorer)) >= context_length(load_config(policy))
    return None if has_room and _rules(theirs) == _rules(ours) else theirs


def _rules(tokenizer: PreTrainedTokenizerBase) -> tuple[Any, ...]:
    """What makes tokens of a text, and the end of an answer."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    rules = tokenizer.get_vocab() if backend is None else json.loads(backend.to_str())
    aside = ("padding", "truncation", "post_processor")  # of calls, and of special tokens
    return {key: rule for key, rule in rules.items() if key not in aside}, tokenizer.eos_token_id


def score_samples(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase | None,
    rows: Sequence[Candidates],
    prompt_rows: Sequence[Mapping[str, Any]],
    answers: Sequence[Sequence[str]],
) -> Tensor:
    """Scores (N, k) of a policy's answers: of its tokens, `rows`, or of the texts by `tokenizer`,
    where the scorer has another (`other_tokenizer`).

    The N answers may be of fewer rows, as many of each, one row after another: a prompt passes once
    a row.
    """
    if tokenizer is None:
        return score_rows(model, rows).view(len(answers), -1)
    size = len(answers) // len(rows)
    texts = [list(chain(*answers[start : start + size])) for start in range(0, len(answers), size)]
    return score_answers(model, tokenizer, prompt_rows[::size], texts).view(len(answers), -1)


def trunk_activations(
    model: PreTrainedModel, rows: Sequence[Candidates], depth: int
) -> Iterator[tuple[int, Tensor]]:
    """The output of the first `depth` layers: for each row its index and hidden states (T, H)."""
    for part in micro_batches(rows, pass_tokens(model.device)):
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
        for tokens, states_of_part in zip(([], *row.responses), parts, strict=True):
            # The prompt comes again with further responses.
            for index, part in places.pop((tuple(row.prompt), tuple(tokens)), []):
                yield index, part, states_of_part


def num_parts(rows: Sequence[Candidates]) -> int:
    """Prompts and responses of all rows."""
    return sum(1 + len(row.responses) for row in rows)


def distinct_rows(rows: Sequence[Candidates]) -> list[Candidates]:
    """Every different response to every different prompt once, in rows that fit one pass."""
    responses: dict[tuple[int, ...], dict[tuple[int, ...], None]] = {}
    for row in rows:
        distinct = responses.setdefault(tuple(row.prompt), {})
        distinct.update(dict.fromkeys(map(tuple, row.responses)))
    return [
        row
        for prompt, distinct in responses.items()
        for row in _split_into_rows(list(prompt), [list(ids) for ids in distinct])
    ]


def _split_into_rows(prompt: list[int], responses: list[list[int]]) -> Iterator[Candidates]:
    """Rows of as many responses as one pass holds, at least one."""
    row: list[list[int]] = []
    length = len(prompt)
    for response in responses:
        if row and length + len(response) > counts.PASS_TOKENS:
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
