"""Scoring text with a scorer: pairs of an artifact, or loose prompts and responses."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from models.engine.batches import micro_batches
from models.engine.data import context_length
from models.nets.packing import Candidates, encode, pack
from models.nets.scoring import response_scores

SCORING_TOKENS = 8192


@torch.no_grad()
def score_rows(model: PreTrainedModel, rows: Sequence[Candidates], pad_id: int) -> Tensor:
    """Scores (N, k) of N rows with k responses each."""
    was_training = model.training
    model.eval()
    scores = torch.zeros(len(rows), len(rows[0].responses))
    for part in micro_batches(rows, SCORING_TOKENS):
        batch = pack([rows[index] for index in part], pad_id)
        scores[part] = response_scores(model, batch).view(len(part), -1)
    model.train(was_training)
    return scores


def score_texts(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[str],
    responses: Sequence[str],
) -> Tensor:
    """Scores (N,) of N prompt and response texts."""
    limit = context_length(model.config)
    rows = [
        encode(tokenizer, prompt, [response], limit)
        for prompt, response in zip(prompts, responses, strict=True)
    ]
    return score_rows(model, rows, tokenizer.pad_token_id)[:, 0]
