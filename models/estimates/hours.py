"""How long a stage's work takes a GPU: a range, by its rate of products and of its memory.

Training and passes take operations, of which a card does a share of its data sheet's rate.
Sampling reads the memory once for each token of a batch, or waits for the start of each layer's
kernels. Loading, storing and the CPU's part are not counted.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trimtab.models.config.packages import ROOT
from trimtab.models.config.training import TrainerConfig
from trimtab.models.estimates.machine import Card
from trimtab.models.estimates.shapes import ModelShape
from trimtab.models.estimates.work import StageInputs, Work

# Shares of a data sheet's rate that training reaches. A reward model's update reached 24 % of the
# measured rate, 19 % of the data sheet's, on one H200 and one H100 (performance.md, A GPU); the
# larger share is what is aimed at.
SHARES = (0.15, 0.45)
# Seconds that a step of sampling takes a layer where starting kernels takes longest: 36 ms for the
# 24 layers of Qwen2.5-0.5B, measured on an H200 (as above).
SECONDS_A_LAYER = 0.036 / 24
# Of a memory's rate that reading weights reaches; assumed.
SHARE_OF_BANDWIDTH = 0.6
# What `trimtab gpu-check` measured, by card.
MEASURED = ROOT / "docs/explanation/gpu"
RATE, SHARE = "products of bfloat16", "of the card's rate of products"


@dataclass(frozen=True)
class Range:
    """Least and most, of seconds or of a share."""

    least: float
    most: float

    def __add__(self, other: Range) -> Range:
        return Range(self.least + other.least, self.most + other.most)

    def times(self, factor: float) -> Range:
        """Both, so many times."""
        return Range(self.least * factor, self.most * factor)


@dataclass(frozen=True)
class Rate:
    """Operations a second that a card does, and the source of the figure."""

    products: Range
    source: str


def operations(trainer: TrainerConfig | None, inputs: StageInputs, work: Work) -> float:
    """Multiplications and additions of a stage.

    Two a weight and token in a pass, four more where gradients of activations and weights are
    taken (of frozen weights, and under adapters, two, below the trained layers none), two more
    where layers are computed again. Attention to half of the longest row on average. Sampled
    tokens and those whose log-probabilities are taken pass the language-model head. Where a cached
    trunk comes in, a pass is one of the trained layers.
    """
    shape = inputs.shape
    head = 2 * shape.vocab_size * shape.hidden_size
    row = inputs.pair_tokens
    passed = _pass(shape, row)
    upper = passed if trainer is None else _pass(shape.upper(trainer.trainable_layers), row)
    passed = upper if inputs.has_trunk else passed
    total: float = (work.forward_tokens + work.sampled_tokens) * passed
    total += head * (work.sampled_tokens + work.passed_logits)
    if trainer is None or not work.trained_tokens:
        return total
    backward = 2 if trainer.lora is None else 1
    total += work.trained_tokens * (passed + upper * (backward + trainer.gradient_checkpointing))
    return total + 3 * head * work.trained_logits


def _pass(shape: ModelShape, row: int) -> float:
    """Operations of a token in all layers; attention: its query by half a row's keys and values."""
    return 2 * shape.active_numbers + 2 * row * shape.num_layers * shape.num_heads * shape.head_dim


def gpu_seconds(
    trainer: TrainerConfig | None, inputs: StageInputs, work: Work, card: Card, rate: Rate
) -> Range:
    """Seconds of all of a stage's GPUs together on such cards."""
    needed = operations(trainer, inputs, work)
    cache = max((phase.cache for phase in work.phases.values()), default=0)
    reading = (inputs.policy_bytes + cache / 2) / (SHARE_OF_BANDWIDTH * card.bandwidth)
    starting = max(reading, SECONDS_A_LAYER * inputs.shape.num_layers)
    sampling = Range(reading, starting).times(work.sampling_steps)
    return Range(needed / rate.products.most, needed / rate.products.least) + sampling


def rate_of(card: Card, folder: Path = MEASURED) -> Rate:
    """The rate of a card: measured on one of its kind, else a range for all cards."""
    for path in sorted(folder.glob("*.json"), reverse=True):  # the newest first
        results = json.loads(path.read_text())
        shares = [value / 100 for value in _values(results, SHARE)]
        rates = [value * 1e12 for value in _values(results, RATE)]
        if card.is_named(str(results["card"])) and shares and rates:
            products = Range(min(shares) * rates[0], max(shares) * rates[0])
            return Rate(products, f"docs/explanation/gpu/{path.name}")
    least, most = SHARES
    products = Range(least * card.products, most * card.products)
    return Rate(products, f"{least:.0%} to {most:.0%} of its data sheet's rate")


def _values(results: dict[str, Any], name: str) -> list[float]:
    """All values of that name; none of a rehearsal."""
    parts = () if results.get("is_rehearsal") else results["parts"]
    values = [value for part in parts for value in part.get("values", ())]
    return [value["value"] for value in values if value["name"] == name]
