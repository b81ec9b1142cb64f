"""What an audit's `--budget` buys: voters on a language model, as far as they fit in the time.

Their time is estimated from the texts of the first rows and the cores or GPUs of this machine.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trimtab.flows.checks import first_pairs
from trimtab.flows.config import RunConfig
from trimtab.flows.errors import ConfigError
from trimtab.infra.settings import Settings
from trimtab.models import counts
from trimtab.models.config.reward import EmbeddingModelConfig
from trimtab.models.data import Look
from trimtab.models.estimates.amounts import amounts_of_preferences
from trimtab.models.estimates.machine import OPERATIONS_A_SECOND
from trimtab.models.estimates.shapes import KNOWN_SHAPES, ModelShape
from trimtab.models.reporting.kit.names import STRENGTH_NAMES

DEFAULT = "2m"
LANGUAGE_MODEL = "smollm2-135m-instruct"
# What a larger budget adds.
STATES = EmbeddingModelConfig(encoder=LANGUAGE_MODEL, with_style=True, fold_by="pair")
# Measured on two cores: seconds of an audit however small, and of the other voters for each answer;
# of a linear voter for each pair that it learns from, its self-test included.
SECONDS_OF_AN_AUDIT, SECONDS_AN_ANSWER, SECONDS_A_PAIR = 30.0, 0.012, 0.01
MOST_PAIRS = 10_000
CHARACTERS_A_TOKEN = 4
CORES, A_GPU_IN_CORES = 2, 100
_BUDGET = re.compile(r"(?:(\d{1,4})h)?(?:(\d{1,4})m)?")


@dataclass(frozen=True)
class Amount:
    """What is to be voted on: pairs, different answers, and tokens of different prompts and of
    different answers to them."""

    pairs: int
    answers: int
    tokens: int


def seconds_of(budget: str) -> int:
    """Seconds of a time such as `20m`, `2h` or `1h30m`. ConfigError for any other text."""
    found = _BUDGET.fullmatch(budget.strip())
    hours, minutes = (int(part or 0) for part in found.groups()) if found else (0, 0)
    if not hours + minutes:
        raise ConfigError(f"--budget: found {budget!r}; allowed: a time such as 2m, 20m or 1h30m")
    return 60 * (60 * hours + minutes)


def voters_for(config: RunConfig, budget: int, settings: Settings) -> tuple[dict[str, Any], str]:
    """The changes that add the voters which fit into `budget` seconds, and a line that says which
    vote, how long that takes, and what more time would add.

    None are added up to DEFAULT, nor where the pairs do not lie on this machine.
    """
    look = first_pairs(config)
    if look is None or not look.pairs:
        return {}, "found no pairs on this machine to estimate a time from: no voter is added"
    amount = amount_of(config, look)
    cores = len(settings.gpus) * A_GPU_IN_CORES or settings.max_parallel
    usual = SECONDS_OF_AN_AUDIT + SECONDS_AN_ANSWER * amount.answers * CORES / cores
    whole = usual + seconds_of_states(amount, KNOWN_SHAPES[LANGUAGE_MODEL], cores)
    models = [*config.embedding_models, STATES]
    name = STRENGTH_NAMES[STATES.name]
    if seconds_of(DEFAULT) < budget and whole <= budget:
        changes = {"embedding_models": [each.model_dump(mode="json") for each in models]}
        return changes, f"{_listed(models)}; about {_shown(whole)}"
    needed = max(whole, seconds_of(DEFAULT) + 60)
    said = f"{_listed(models[:-1])}; about {_shown(usual)}"
    return {}, f"{said}. A budget of {_shown(needed)} would add: {name}"


def amount_of(config: RunConfig, look: Look) -> Amount:
    """What all pairs come to, as far as those looked at tell."""
    given = config.preferences
    total = len(look.pairs) if look.is_whole else amounts_of_preferences(given, 0).pairs
    total = counts.num_taken(total, given.max_pairs)
    asked = {
        (pair.prompt, answer) for pair in look.pairs for answer in (pair.chosen, pair.rejected)
    }
    texts = [*{prompt for prompt, _ in asked}, *(answer for _, answer in asked)]
    share = total / len(look.pairs)
    tokens = sum(map(len, texts)) / CHARACTERS_A_TOKEN
    answers = len({answer for _, answer in asked})
    # Of fewer pairs than were looked at the answers may still be all of them.
    more = max(share, 1.0)
    return Amount(total, min(round(answers * more), 2 * total), round(tokens * more))


def seconds_of_states(amount: Amount, shape: ModelShape, cores: int) -> float:
    """What the linear voter on a language model's hidden states takes: one pass of the lower
    layers, and its fits."""
    weights = counts.layer_of_vectors(STATES.layer, shape.num_layers) * shape.layer_parameters
    passed = 2 * weights * amount.tokens / (OPERATIONS_A_SECOND * cores / CORES)
    return passed + SECONDS_A_PAIR * min(amount.pairs, MOST_PAIRS)


def _listed(models: Sequence[EmbeddingModelConfig]) -> str:
    return ", ".join(STRENGTH_NAMES[each.name] for each in models)


def _shown(seconds: float) -> str:
    minutes = max(1, -(-round(seconds) // 60))
    return f"{minutes // 60}h{minutes % 60}m" if minutes >= 60 else f"{minutes}m"
