"""Dimensions of a base model without loading it, and the parameters they come to.

Sums, because a plan has to be quick: to build the model on torch's meta device takes three seconds.
Tests hold them against the models that transformers builds.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trimtab.models.config.training import ModelConfig
from trimtab.models.nets.small_llama import llama_fields
from trimtab.models.synthetic.demonstrations import SPECIAL_TOKENS, vocabulary

# Architectures with exactly the weights counted below.
MODEL_TYPES = ("llama", "mistral", "qwen2", "qwen3")


class PlanError(ValueError):
    """A configuration whose cost cannot be told, and what to give instead."""


@dataclass(frozen=True)
class ModelShape:
    """Dimensions of a decoder with grouped-query attention and a gated feed-forward layer.

    context: the most tokens it takes. is_tied: the language-model head is the embedding.
    layer_vectors: numbers of a layer's biases, and of norms of single heads.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    context: int
    is_tied: bool
    layer_vectors: int = 0

    @property
    def layer_maps(self) -> tuple[tuple[int, int], ...]:
        """Inputs and outputs of a layer's linear maps: q, k, v, o; gate, up, down."""
        hidden, inner = self.hidden_size, self.intermediate_size
        query, key = (self.head_dim * heads for heads in (self.num_heads, self.num_kv_heads))
        attention = ((hidden, query), (hidden, key), (hidden, key), (query, hidden))
        return (*attention, (hidden, inner), (hidden, inner), (inner, hidden))

    @property
    def layer_parameters(self) -> int:
        """Of the linear maps, the two norms, and what else is a vector."""
        maps = sum(inputs * outputs for inputs, outputs in self.layer_maps)
        return maps + 2 * self.hidden_size + self.layer_vectors

    @property
    def largest_parameter(self) -> int:
        """Numbers of the largest matrix: the embedding, or one of a feed-forward layer."""
        return self.hidden_size * max(self.vocab_size, self.intermediate_size)

    @property
    def trunk_parameters(self) -> int:
        """Embedding, layers and last norm, without any head."""
        layers = self.num_layers * self.layer_parameters
        return self.vocab_size * self.hidden_size + layers + self.hidden_size

    @property
    def policy_parameters(self) -> int:
        """Trunk and language-model head; a tied head is the embedding and counts once."""
        head = 0 if self.is_tied else self.vocab_size * self.hidden_size
        return self.trunk_parameters + head

    def frozen_parameters(self, trainable_layers: int | None) -> int:
        """Embedding and lower layers, where only the upper `trainable_layers` are trained."""
        if trainable_layers is None:
            return 0
        lower = self.num_layers - trainable_layers
        return self.vocab_size * self.hidden_size + lower * self.layer_parameters

    def adapter_parameters(self, rank: int) -> int:
        """Low-rank adapters of all linear maps: rank by inputs, and rank by outputs, of each."""
        return self.num_layers * rank * sum(map(sum, self.layer_maps))

    def upper(self, trainable_layers: int | None) -> ModelShape:
        """The part a backward pass goes through: all of it, or the upper layers."""
        return replace(self, num_layers=trainable_layers or self.num_layers)

    def scorer_parameters(self, num_heads: int) -> int:
        """Trunk and bias-free scalar heads: one of a reward model or critic, two [AM]."""
        return self.trunk_parameters + num_heads * self.hidden_size


# Base models by name, from the `config.json` that their authors publish, so that planning needs
# neither a download nor the package.
KNOWN_SHAPES = {
    "mistralai/Mistral-7B-v0.1": ModelShape(
        vocab_size=32000,
        hidden_size=4096,
        intermediate_size=14336,
        num_layers=32,
        num_heads=32,
        num_kv_heads=8,
        head_dim=128,
        context=32768,
        is_tied=False,
    ),
    "smollm2-135m-instruct": ModelShape(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_layers=30,
        num_heads=9,
        num_kv_heads=3,
        head_dim=64,
        context=8192,
        is_tied=True,
    ),
}


def shape_of(config: ModelConfig, field: str = "sft.model.base") -> ModelShape:
    """The dimensions of the model that SFT starts from, or that another `field` names.

    Raises PlanError for a base that is neither a folder with a `config.json` nor in KNOWN_SHAPES,
    and for an architecture that is not in MODEL_TYPES.
    """
    if config.base is None:
        return _shape_from(llama_fields(config, _world_vocabulary()))
    path = Path(config.base).expanduser() / "config.json"
    if path.is_file():
        return _read_shape(path)
    if config.base not in KNOWN_SHAPES:
        raise PlanError(
            f"{field} is {config.base!r}, whose size is not known here; allowed for a plan: "
            f"a folder with config.json, or one of {', '.join(KNOWN_SHAPES)}. Nothing is "
            "downloaded for a dry run: download the model and give its folder"
        )
    return KNOWN_SHAPES[config.base]


@functools.cache
def _world_vocabulary() -> int:
    """Number of tokens of the synthetic world's tokenizer; a plan asks for it at every stage."""
    return len(SPECIAL_TOKENS) + len(vocabulary())


def _read_shape(path: Path) -> ModelShape:
    """The shape in a `config.json`."""
    try:
        values: dict[str, Any] = json.loads(path.read_text())
        if (found := values.get("model_type")) not in MODEL_TYPES:
            raise PlanError(
                f"{path}: found model_type {found!r}; allowed for a plan: {', '.join(MODEL_TYPES)}"
            )
        return _shape_from(values)
    except (json.JSONDecodeError, KeyError) as error:
        raise PlanError(
            f"{path}: {type(error).__name__}: {error}; give the config.json that transformers "
            "saves beside a model"
        ) from error


def _shape_from(values: Mapping[str, Any]) -> ModelShape:
    """The shape by the names of a `config.json`; what is missing has transformers' default."""
    kind, heads = values.get("model_type"), values["num_attention_heads"]
    usual = 128 if kind == "qwen3" else values["hidden_size"] // heads
    shape = ModelShape(
        vocab_size=values["vocab_size"],
        hidden_size=values["hidden_size"],
        intermediate_size=values["intermediate_size"],
        num_layers=values["num_hidden_layers"],
        num_heads=heads,
        num_kv_heads=values.get("num_key_value_heads") or heads,
        head_dim=values.get("head_dim") or usual,
        context=values["max_position_embeddings"],
        is_tied=values.get("tie_word_embeddings", False),
    )
    vectors = 2 * shape.head_dim if kind == "qwen3" else 0
    outputs = [outputs for _, outputs in shape.layer_maps]
    if kind == "qwen2":  # of queries, keys and values, always
        vectors += sum(outputs[:3])
    elif values.get("attention_bias"):
        vectors += sum(outputs[:4])
    if values.get("mlp_bias"):
        vectors += sum(outputs[4:])
    return replace(shape, layer_vectors=vectors)
