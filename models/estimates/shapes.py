"""Dimensions of a base model without loading it, and the parameters they come to.

Sums give those of the small Llama and of a few published models, as every run makes a plan when it
starts. Any other model is built on torch's meta device from its `config.json`, in another process,
which takes some three seconds (`trimtab.models.nets.counted`). Tests compare the sums with it.
"""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

from trimtab.models.config.training import ModelConfig
from trimtab.models.data.readers import looks_like_hub_id
from trimtab.models.nets.counts import llama_fields
from trimtab.models.synthetic.demonstrations import SPECIAL_TOKENS, vocabulary


class PlanError(ValueError):
    """A configuration whose cost cannot be told, and what to give instead."""


class UntrainableError(PlanError):
    """A base model that cannot be trained here, and why."""


@dataclass(frozen=True)
class LayerShape:
    """A layer of a decoder.

    maps: inputs and outputs of its linear maps. parameters: all. active: numbers of the matrices
    that a token passes, of experts those it is sent to. kept_wide, kept_narrow: numbers a token
    that autograd keeps, in float32 and in the products' precision.
    """

    maps: tuple[tuple[int, int], ...]
    parameters: int
    active: int
    kept_wide: int
    kept_narrow: int


@dataclass(frozen=True)
class ModelShape:
    """Dimensions of a decoder.

    context: the most tokens it takes. is_tied: the language-model head is the embedding.
    embedding_parameters: of tokens and positions; head_parameters: of the language-model head, 0 if
    tied; last_parameters: of the norm behind the layers. largest_parameter: numbers of the largest
    matrix. kept_once: numbers a token that autograd keeps beside the layers.
    """

    vocab_size: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    context: int
    is_tied: bool
    embedding_parameters: int
    last_parameters: int
    head_parameters: int
    largest_parameter: int
    kept_once: int
    layers: tuple[LayerShape, ...]

    @property
    def num_layers(self) -> int:
        """How many layers there are."""
        return len(self.layers)

    @property
    def largest_layer(self) -> LayerShape:
        """Of layers that differ the one with most parameters."""
        return max(self.layers, key=lambda layer: layer.parameters)

    @property
    def active_numbers(self) -> int:
        """Numbers of all layers that a token is multiplied with."""
        return sum(layer.active for layer in self.layers)

    @property
    def layer_parameters(self) -> int:
        """Of the largest layer."""
        return self.largest_layer.parameters

    @property
    def map_numbers(self) -> int:
        """Numbers of a layer's linear maps; of layers that differ, where they are fewest."""
        return min(sum(map(prod, layer.maps)) for layer in self.layers)

    @property
    def feed_forward_numbers(self) -> int:
        """Numbers a token inside the feed-forward part: three times its width if it is gated.

        Of what a layer keeps, all but the norms' output and attention's operands and outputs.
        """
        query, key = (self.head_dim * heads for heads in (self.num_heads, self.num_kv_heads))
        return max(0, self.largest_layer.kept_narrow - 2 * self.hidden_size - 3 * query - 2 * key)

    @property
    def trunk_parameters(self) -> int:
        """Embedding, layers and last norm, without any head."""
        layers = sum(layer.parameters for layer in self.layers)
        return self.embedding_parameters + layers + self.last_parameters

    @property
    def policy_parameters(self) -> int:
        """Trunk and language-model head; a tied head is the embedding and counts once."""
        return self.trunk_parameters + self.head_parameters

    def frozen_parameters(self, trainable_layers: int | None) -> int:
        """Embedding and lower layers, where only the upper `trainable_layers` are trained."""
        if trainable_layers is None:
            return 0
        lower = self.layers[: self.num_layers - trainable_layers]
        return self.embedding_parameters + sum(layer.parameters for layer in lower)

    def adapter_parameters(self, rank: int) -> int:
        """Low-rank adapters of all linear maps: rank by inputs, and rank by outputs, of each."""
        return rank * sum(sum(map(sum, layer.maps)) for layer in self.layers)

    def upper(self, trainable_layers: int | None) -> ModelShape:
        """The part a backward pass goes through: all of it, or the upper layers."""
        return replace(self, layers=self.layers[-(trainable_layers or self.num_layers) :])

    def scorer_parameters(self, num_heads: int) -> int:
        """Trunk and bias-free scalar heads: one of a reward model or critic, two [AM]."""
        return self.trunk_parameters + num_heads * self.hidden_size


def gated_decoder(  # noqa: PLR0913 - the dimensions of a config.json
    *,
    vocab_size: int,
    hidden_size: int,
    intermediate_size: int,
    num_hidden_layers: int,
    num_attention_heads: int,
    num_key_value_heads: int,
    max_position_embeddings: int,
    tie_word_embeddings: bool,
    head_dim: int | None = None,
    has_query_bias: bool = False,
) -> ModelShape:
    """A Llama, Mistral or Qwen2 (with `has_query_bias`: of queries, keys and values), by sums.

    A layer's linear maps are q, k, v, o; gate, up, down. What autograd keeps of it, numbers a
    token, h hidden, q and kv heads times head size, f feed-forward:
    wide: of both norms the input and a scale, 2 (h + 1); attention's log-sum-exp, heads;
    narrow: the norms' output, 2 h; query, keys, values, output row by row and whole, 3 q + 2 kv;
    gate, up, their product, 3 f.
    Then once the last norm's input and scale, the rotary cosines and sines, and the token's id (two
    floats wide).
    """
    hidden, inner = hidden_size, intermediate_size
    num_heads, num_kv_heads = num_attention_heads, num_key_value_heads
    head_dim = head_dim or hidden // num_heads
    query, key = (head_dim * heads for heads in (num_heads, num_kv_heads))
    attention = ((hidden, query), (hidden, key), (hidden, key), (query, hidden))
    maps = (*attention, (hidden, inner), (hidden, inner), (inner, hidden))
    active = sum(inputs * outputs for inputs, outputs in maps)
    layer = LayerShape(
        maps=maps,
        parameters=active + 2 * hidden + (query + 2 * key) * has_query_bias,
        active=active,
        kept_wide=2 * (hidden + 1) + num_heads,
        kept_narrow=2 * hidden + 3 * query + 2 * key + 3 * inner,
    )
    return ModelShape(
        vocab_size=vocab_size,
        hidden_size=hidden,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        context=max_position_embeddings,
        is_tied=tie_word_embeddings,
        embedding_parameters=vocab_size * hidden,
        last_parameters=hidden,
        head_parameters=0 if tie_word_embeddings else vocab_size * hidden,
        largest_parameter=hidden * max(vocab_size, inner),
        kept_once=hidden + 1 + 2 * head_dim + 2,
        layers=num_hidden_layers * (layer,),
    )


BASE_FILES = {
    "weights": ("*.safetensors", "*.bin"),
    "tokenizer": ("tokenizer.json", "vocab*", "*.model", "*.tiktoken", "tekken.json"),
}
# Base models by name, from the `config.json` that their authors publish, so that planning needs
# neither a download nor the package.
_FIELDS = """
vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads
max_position_embeddings tie_word_embeddings
""".split()
_VALUES = {
    "mistralai/Mistral-7B-v0.1": (32_000, 4096, 14_336, 32, 32, 8, 32_768, False),
    "Qwen/Qwen2.5-0.5B": (151_936, 896, 4864, 24, 14, 2, 32_768, True),
    "Qwen/Qwen2.5-1.5B": (151_936, 1536, 8960, 28, 12, 2, 131_072, True),
    "smollm2-135m-instruct": (49_152, 576, 1536, 30, 9, 3, 8192, True),
}
PUBLISHED: dict[str, dict[str, Any]] = {
    name: dict(zip(_FIELDS, values, strict=True)) for name, values in _VALUES.items()
}
KNOWN_SHAPES = {
    name: gated_decoder(**fields, has_query_bias=name.startswith("Qwen/"))
    for name, fields in PUBLISHED.items()
}


def shape_of(
    config: ModelConfig, field: str = "sft.model.base", *, is_trained: bool = True
) -> ModelShape:
    """The dimensions of the model that SFT starts from, or that another `field` names.

    is_trained: whether policy and scorers start from it; else it only runs. Raises UntrainableError
    for one that cannot be trained, PlanError for one that is neither in KNOWN_SHAPES nor here.
    """
    if config.base is None:
        return gated_decoder(**llama_fields(config, _world_vocabulary()))
    path = _config_of(config.base)
    if path is None:
        if config.base in KNOWN_SHAPES:
            return KNOWN_SHAPES[config.base]
        raise PlanError(
            f"{field} is {config.base!r}, whose size is not known here; allowed for a plan: "
            f"a folder with config.json, a model of the hub that was downloaded (hf download "
            f"{config.base}), or one of {', '.join(KNOWN_SHAPES)}. Nothing is downloaded for a dry "
            "run"
        )
    shape, untrainable = _counted(path, path.stat().st_mtime_ns)
    if untrainable is not None and (is_trained or shape is None):
        raise UntrainableError(f"{field}: {path}: {untrainable}")
    assert shape is not None
    return shape


def missing_files(config: ModelConfig) -> list[str]:
    """What a base model's folder lacks beside its configuration; nothing of any other base."""
    folder = Path(config.base or "").expanduser()
    if config.base is None or not (folder / "config.json").is_file():
        return []
    return [
        f"found no {kind} in the folder {config.base!r}; allowed: {', '.join(names)}"
        for kind, names in BASE_FILES.items()
        if not any(any(folder.glob(name)) for name in names)
    ]


@functools.cache
def _world_vocabulary() -> int:
    """Number of tokens of the synthetic world's tokenizer; a plan asks for it at every stage."""
    return len(SPECIAL_TOKENS) + len(vocabulary())


def _config_of(base: str) -> Path | None:
    """The `config.json` of a folder, or of a hub id in the cache of downloads; None if not here."""
    path = Path(base).expanduser() / "config.json"
    if path.is_file():
        return path
    if base in KNOWN_SHAPES or not looks_like_hub_id(base):
        return None
    from huggingface_hub import try_to_load_from_cache

    cached = try_to_load_from_cache(base, "config.json")
    return Path(cached) if isinstance(cached, str) else None


@functools.cache
def _counted(path: Path, _changed: int) -> tuple[ModelShape | None, str | None]:
    """The shape of a `config.json`, and why it cannot be trained; either may be None."""
    command = [sys.executable, "-P", "-m", "trimtab.models.nets.counted", str(path)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode != 0:
        last = done.stderr.strip().rpartition("\n")[2]
        raise PlanError(f"{path}: its model cannot be built: {last or done.returncode}")
    answer: dict[str, Any] = json.loads(done.stdout.strip().rpartition("\n")[2])
    shape = None if answer["shape"] is None else shape_from(answer["shape"])
    return shape, answer["untrainable"]


def shape_from(fields: dict[str, Any]) -> ModelShape:
    """The shape whose fields `trimtab.models.nets.counted` gives."""
    layers = tuple(
        LayerShape(**{**layer, "maps": tuple(map(tuple, layer["maps"]))})
        for layer in fields["layers"]
    )
    return ModelShape(**{**fields, "layers": layers})
