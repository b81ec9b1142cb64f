"""What the benchmarks train on: a small Llama from random weights and real preference pairs; and
made texts where only their size counts."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from trimtab.models.config.training import ModelConfig
from trimtab.models.estimates.shapes import shape_of
from trimtab.models.gpu_check.material import byte_pair_tokenizer, pairs_of, write_pairs
from trimtab.models.gpu_check.measure import row_work
from trimtab.models.nets.loading import build_policy, save_model
from trimtab.models.nets.packing import Candidates

MAX_TOKENS = 1024
HIDDEN, LAYERS = 256, 7
NUM_WORDS = 20_000


def prose_of(rng: random.Random) -> Callable[[int], list[str]]:
    """What gives about so many words of a language made by `rng`: a few of them often."""
    words = ["".join(rng.choices("etaoinshrdlu", k=rng.randint(2, 9))) for _ in range(NUM_WORDS)]

    def prose(length: int) -> list[str]:
        count = max(1, int(rng.expovariate(1 / length)))
        return [words[int(NUM_WORDS ** rng.random()) - 1] for _ in range(count)]

    return prose


def make_material(source: str, folder: Path, limit: int | None = None) -> int:
    """`folder`/policy/model, 8.1 million parameters, and `folder`/preferences/*.jsonl.

    The first `limit` pairs of `source` that can be read are training pairs; returns their number.
    The held-out files hold the first few again, because a trainer scores them.
    """
    rows = pairs_of(source)
    tokenizer = byte_pair_tokenizer([row["prompt"] + row["chosen"] for row in rows])
    rows = rows[:limit]
    write_pairs(rows, folder / "preferences")
    model = small_llama(tokenizer, HIDDEN, LAYERS, MAX_TOKENS)
    save_model(model, tokenizer, folder / "policy" / "model")
    return len(rows)


def training_work(row: Candidates) -> float:
    """Floating-point operations of a training step on a packed row, of `make_material`'s model."""
    shape = shape_of(ModelConfig(hidden_size=HIDDEN, num_layers=LAYERS, max_length=MAX_TOKENS))
    return row_work(shape, row)


def small_llama(
    tokenizer: PreTrainedTokenizerBase, width: int, layers: int, max_tokens: int
) -> PreTrainedModel:
    """The Llama of four heads that a run would train from scratch, random weights of seed 0."""
    torch.manual_seed(0)
    config = ModelConfig(hidden_size=width, num_layers=layers, max_length=max_tokens)
    return build_policy(config, tokenizer)
