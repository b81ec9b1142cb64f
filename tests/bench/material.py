"""What the benchmarks train on: a small Llama from random weights and real preference pairs; and
made texts where only their size counts."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedModel, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from trimtab.models.config.training import ModelConfig
from trimtab.models.data.loading import load_preferences
from trimtab.models.data.readers import Source
from trimtab.models.nets.loading import build_policy, save_model
from trimtab.models.nets.packing import Candidates

VOCABULARY, MAX_TOKENS = 8192, 1024
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
    found, _, _ = load_preferences([Source(source)], on_bad_rows="quarantine")
    rows = [
        {"id": pair.id, "prompt": pair.prompt, "chosen": pair.chosen, "rejected": pair.rejected}
        for pair in found
    ]
    tokenizer = byte_pair_tokenizer([row["prompt"] + row["chosen"] for row in rows])
    rows = rows[:limit]
    folder.joinpath("preferences").mkdir(parents=True)
    for name, part in (("train", rows), ("validation", rows[:8]), ("test", rows[:8])):
        lines = "".join(json.dumps(row) + "\n" for row in part)
        (folder / "preferences" / f"{name}.jsonl").write_text(lines)
    model = small_llama(tokenizer, HIDDEN, LAYERS, MAX_TOKENS)
    save_model(model, tokenizer, folder / "policy" / "model")
    return len(rows)


def training_work(
    row: Candidates,
    layers: int = LAYERS,
    hidden: int = HIDDEN,
    weights: int = 4 * HIDDEN * HIDDEN + 3 * HIDDEN * 3 * HIDDEN,
) -> float:
    """Floating-point operations of a training step on a packed row [Kaplan et al. 2020, app. B].

    Two a parameter and token forward and four backward, embeddings apart, and causal attention.
    weights: of the linear maps of one layer.
    """
    prompt = len(row.prompt)
    looks = prompt**2 / 2 + sum(prompt * len(y) + len(y) ** 2 / 2 for y in row.responses)
    return 3 * layers * (row.num_tokens * 2 * weights + looks * 4 * hidden)


def small_llama(
    tokenizer: PreTrainedTokenizerBase, width: int, layers: int, max_tokens: int
) -> PreTrainedModel:
    """The Llama of four heads that a run would train from scratch, random weights of seed 0."""
    torch.manual_seed(0)
    config = ModelConfig(hidden_size=width, num_layers=layers, max_length=max_tokens)
    return build_policy(config, tokenizer)


def byte_pair_tokenizer(texts: list[str]) -> PreTrainedTokenizerFast:
    """Byte-level byte pairs, learned from the texts."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<pad>", "<eos>"]
    tokenizer.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=VOCABULARY, special_tokens=special)
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>")
