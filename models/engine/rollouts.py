"""Text in, sampled text out: the rollout loop with progress."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from models.engine.progress import Progress
from models.nets.generation import Sampling, sample
from models.nets.packing import token_ids

# Prompts between two progress reports; a full decoding batch of short prompts.
CHUNK = 1024


def encode_prompts(
    policy: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[str],
    max_new_tokens: int,
) -> list[list[int]]:
    """Token ids of each prompt: its end, where it leaves no room for `max_new_tokens` more."""
    limit = int(policy.config.max_position_embeddings) - max_new_tokens
    return [ids[-limit:] for ids in token_ids(tokenizer, prompts)]


def respond(
    policy: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[str],
    sampling: Sampling,
    generator: torch.Generator,
    progress: Progress | None = None,
) -> list[str]:
    """One sampled response (text, end token removed) a prompt, in order."""
    encoded = encode_prompts(policy, tokenizer, prompts, sampling.max_new_tokens)
    texts: list[str] = []
    for start in range(0, len(encoded), CHUNK):
        sampled = sample(policy, tokenizer, encoded[start : start + CHUNK], sampling, generator)
        texts += [tokenizer.decode(ids, skip_special_tokens=True) for ids in sampled]
        if progress is not None:
            progress.advance(len(texts), len(encoded))
    return texts
