"""Scoring text with a scorer: pairs of an artifact, or loose prompts and responses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from models.engine import ranks
from models.engine.batches import micro_batches
from models.engine.data import context_length
from models.nets.freezing import layers_of
from models.nets.lower_layers import lower_output
from models.nets.packing import Candidates, LowerStates, encode, pack
from models.nets.scoring import response_scores

SCORING_TOKENS = 8192


@torch.no_grad()
def score_rows(model: PreTrainedModel, rows: Sequence[Candidates], pad_id: int) -> Tensor:
    """Scores (N, k) of N rows with k responses each; ranks share the work out."""
    was_training = model.training
    model.eval()
    scores = torch.zeros(len(rows), len(rows[0].responses))
    for part in ranks.mine(list(micro_batches(rows, SCORING_TOKENS))):
        batch = pack([rows[index] for index in part], pad_id)
        scores[part] = response_scores(model, batch).view(len(part), -1)
    model.train(was_training)
    ranks.add_up([scores])
    return scores


def score_texts(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[str],
    responses: Sequence[str],
) -> Tensor:
    """Scores (N,) of N prompt and response texts."""
    limit = context_length(model.config)
    rows = encode(tokenizer, prompts, [[response] for response in responses], limit)
    return score_rows(model, rows, tokenizer.pad_token_id)[:, 0]


def lower_states(
    model: PreTrainedModel, rows: Sequence[Candidates], depth: int, pad_id: int
) -> Iterator[tuple[list[int], Tensor]]:
    """Behind the first `depth` layers, part by part: indices (b,) of rows, their states (b, T, H).

    Rows are padded on the right.
    """
    for part in micro_batches(rows, SCORING_TOKENS):
        yield part, lower_output(model, pack([rows[index] for index in part], pad_id), depth)


def with_lower_states(
    model: PreTrainedModel, rows: Sequence[Candidates], depth: int, pad_id: int
) -> list[Candidates]:
    """The rows with their states behind the first `depth` layers; as they are for depth 0."""
    result = list(rows)
    if depth > 0:
        owner = layers_of(model)[depth - 1]
        for part, states in lower_states(model, rows, depth, pad_id):
            for index, values in zip(part, states, strict=True):
                own = values[: rows[index].num_tokens].clone()
                result[index] = replace(rows[index], lower=LowerStates(own, owner, depth))
    return result
