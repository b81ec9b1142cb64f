"""Material of the parts: models with random weights, their tokenizer, pairs, prompts."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    PretrainedConfig,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

from trimtab.models.data.loading import load_preferences
from trimtab.models.data.readers import Source
from trimtab.models.estimates.shapes import PUBLISHED
from trimtab.models.nets.loading import load_tokenizer, new_scorer, save_model
from trimtab.models.nets.pretrained import build_from_config
from trimtab.models.training.data import write_rows

VOCABULARY = 8192  # of the byte-pair tokenizer; a model's may be wider, as a real one's is
NUM_WORDS = 20_000
# Words a prompt and a response: mean and standard deviation of their logarithm in HH's harmless
# pairs, and the most.
PROMPT_WORDS, RESPONSE_WORDS, MOST_WORDS = (3.93, 1.11), (3.11, 1.0), 400
SPECIAL_TOKENS = ["<pad>", "<eos>"]


@dataclass(frozen=True)
class Scale:
    """How large all is: the card's, or a rehearsal's on a CPU.

    shape, large: fields of the configurations of the two models, architecture `model_type`. pairs:
    in the file. compared: of these TRL's trainer and ours learn. timed: pairs of an update.
    batch: rows of an optimiser step. prompt, response: tokens. rows: of sampling. logits: rows of
    the log-probabilities' part, and the vocabulary. product: side of the matrices of the rate.
    """

    shape: dict[str, Any]
    large: dict[str, Any]
    pairs: int
    compared: int
    timed: int
    batch: int
    prompt: int
    response: int
    rows: tuple[int, ...]
    logits: tuple[int, int]
    product: int


_SHORT = {"max_position_embeddings": 2048}
QWEN_HALF_BILLION = {"model_type": "qwen2", **PUBLISHED["Qwen/Qwen2.5-0.5B"], **_SHORT}
LLAMA_ONE_BILLION = {
    "model_type": "llama",
    "vocab_size": 128_256,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "tie_word_embeddings": True,
    **_SHORT,
}
CARD = Scale(
    QWEN_HALF_BILLION, LLAMA_ONE_BILLION, 1024, 256, 40, 64, 128, 128,
    (64, 256, 512), (4096, 151_936), 8192,
)  # fmt: skip
_TINY = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
REHEARSAL = Scale(
    QWEN_HALF_BILLION | _TINY, LLAMA_ONE_BILLION | _TINY, 48, 16, 8, 8, 16, 8,
    (4, 8), (64, 1000), 256,
)  # fmt: skip


def made_up_pairs(count: int) -> list[dict[str, str]]:
    """Pairs of made-up words, as long as HH's harmless ones."""
    rng = random.Random(0)
    words = ["".join(rng.choices("etaoinshrdlu", k=rng.randint(2, 9))) for _ in range(NUM_WORDS)]

    def text(mean: float, deviation: float) -> str:
        length = min(MOST_WORDS, max(1, round(rng.lognormvariate(mean, deviation))))
        return " ".join(words[int(NUM_WORDS ** rng.random()) - 1] for _ in range(length))

    return [
        {
            "id": f"made-up-{number}",
            "prompt": f"\n\nHuman: {text(*PROMPT_WORDS)}\n\nAssistant:",
            "chosen": f" {text(*RESPONSE_WORDS)}",
            "rejected": f" {text(*RESPONSE_WORDS)}",
        }
        for number in range(count)
    ]


def pairs_of(source: str) -> list[dict[str, str]]:
    """All pairs of a file or hub id that can be read."""
    pairs, _, _ = load_preferences([Source(source)], on_bad_rows="quarantine")
    return [
        {"id": pair.id, "prompt": pair.prompt, "chosen": pair.chosen, "rejected": pair.rejected}
        for pair in pairs
    ]


def byte_pair_tokenizer(texts: Iterable[str]) -> PreTrainedTokenizerFast:
    """Byte-level byte pairs, learned from the texts."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=VOCABULARY, special_tokens=SPECIAL_TOKENS)
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>")


def write_pairs(rows: Sequence[dict[str, str]], folder: Path) -> None:
    """An artifact `preferences`; its held-out files hold the first few again, as trainers score
    them."""
    for name, part in (("train", rows), ("validation", rows[:8]), ("test", rows[:8])):
        write_rows(folder / f"{name}.jsonl", part)


def config_of(shape: dict[str, Any]) -> PretrainedConfig:
    """The configuration of a model whose end and padding are those of the tokenizer."""
    return AutoConfig.for_model(**shape, bos_token_id=None, pad_token_id=0, eos_token_id=1)


def make_material(scale: Scale, pairs: str | None, folder: Path) -> dict[str, float]:
    """Write everything that parts read; returns mean tokens of prompts and responses.

    policy/model and scorer/model with random weights; preferences/, compared/
    (the first few of them) and few/ (three steps); data/ with prompts of `scale.prompt` tokens at
    most, and demonstrations.
    """
    rows = (made_up_pairs(scale.pairs) if pairs is None else pairs_of(pairs))[: scale.pairs]
    tokenizer = byte_pair_tokenizer([row["prompt"] + row["chosen"] for row in rows])
    torch.manual_seed(0)
    model = build_from_config(AutoModelForCausalLM, config_of(scale.shape), dtype=torch.float32)
    save_model(model, tokenizer, folder / "policy" / "model")
    del model
    save_model(new_scorer(folder / "policy" / "model", 0), tokenizer, folder / "scorer" / "model")
    tokenizer = load_tokenizer(folder / "policy" / "model")
    write_pairs(rows, folder / "preferences")
    write_pairs(rows[: scale.compared], folder / "compared")
    write_pairs(rows[: 3 * scale.batch], folder / "few")
    prompts = [{"prompt": _beginning(tokenizer, row["prompt"], scale.prompt)} for row in rows]
    write_rows(folder / "data" / "policy_prompts.jsonl", prompts[: 3 * scale.batch])
    shown = [{"prompt": row["prompt"], "response": row["chosen"]} for row in rows]
    write_rows(folder / "data" / "demonstrations.jsonl", shown[: 3 * scale.batch])
    return {
        name: mean(len(tokenizer(row[name])["input_ids"]) for row in rows)
        for name in ("prompt", "chosen", "rejected")
    }


def _beginning(tokenizer: PreTrainedTokenizerBase, text: str, most: int) -> str:
    """At most so many tokens of a text."""
    return str(tokenizer.decode(tokenizer(text)["input_ids"][:most]))


def make_encoder(policy: Path, folder: Path) -> None:
    """A sentence encoder of two layers with random weights, for the tokenizer of a policy."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers import models as parts
    from transformers import BertConfig, BertModel

    tokenizer = load_tokenizer(policy / "model")
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        pad_token_id=tokenizer.pad_token_id,
    )
    BertModel(config).save_pretrained(folder / "bert")
    tokenizer.save_pretrained(folder / "bert")
    words = parts.Transformer(str(folder / "bert"))
    SentenceTransformer(modules=[words, parts.Pooling(32)], device="cpu").save(str(folder))
