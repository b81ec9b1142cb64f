"""The voters on a language model that fit into an audit's `--budget`.

Their time is estimated from the texts of the first rows and the cores or GPUs of this machine.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

from trimtab.flows.config.config import RunConfig
from trimtab.flows.config.errors import ConfigError
from trimtab.flows.runs.checks import first_pairs
from trimtab.infra.settings import Settings
from trimtab.models.config.base import last_part
from trimtab.models.config.reward import CrossFittedConfig, EmbeddingModelConfig
from trimtab.models.data.loading import Look
from trimtab.models.data.records import PreferencePair
from trimtab.models.data.words import UNSPACED
from trimtab.models.estimates.amounts import amounts_of_preferences
from trimtab.models.estimates.machine import OPERATIONS_A_SECOND
from trimtab.models.estimates.shapes import KNOWN_SHAPES
from trimtab.models.nets import counts
from trimtab.models.reporting.kit.names import STRENGTH_NAMES

DEFAULT = "2m"
LANGUAGE_MODEL = "smollm2-135m-instruct"
SHAPE = KNOWN_SHAPES[LANGUAGE_MODEL]
# Larger budgets add these, in this order.
STATES = EmbeddingModelConfig(encoder=LANGUAGE_MODEL, with_style=True, fold_by="pair")
MEMBERS = CrossFittedConfig(base=LANGUAGE_MODEL)
# From runs on two cores, rounded up: seconds of an audit however small, and of the other voters for
# each token of an answer (3,889 answers of 180,585 tokens in 47 s); of a linear voter for each pair
# that it learns from, its self-test included; of a reward model however small.
SECONDS_OF_AN_AUDIT, SECONDS_A_TOKEN, SECONDS_A_PAIR = 30.0, 0.00027, 0.01
SECONDS_OF_A_MEMBER = 20.0
# In a script without blanks between words a character is a token.
CHARACTERS_A_TOKEN = 4
# OPERATIONS_A_SECOND is of so many cores. A GPU counts as so many: a guess, far below the truth.
CORES, A_GPU_IN_CORES = 2, 100
_BUDGET = re.compile(r"(?:(\d{1,4})h)?(?:(\d{1,4})m)?")


@dataclass(frozen=True)
class Amount:
    """Pairs of an audit, tokens of different answers, tokens of different prompts and of the
    different answers to them, tokens of all pairs."""

    pairs: int
    answer_tokens: int
    tokens: int
    pair_tokens: int


def seconds_of(budget: str) -> int:
    """Seconds of a time such as `20m`, `2h` or `1h30m`. ConfigError for any other text."""
    match = _BUDGET.fullmatch(budget.strip())
    hours, minutes = (int(part or 0) for part in match.groups()) if match else (0, 0)
    if not hours + minutes:
        raise ConfigError(f"--budget: found {budget!r}; allowed: a time such as 2m, 20m or 1h30m")
    return 60 * (60 * hours + minutes)


def voters_for(
    config: RunConfig, budget: int, settings: Settings
) -> tuple[dict[str, Any], str | None]:
    """The changes that add the voters which fit into `budget` seconds, and a line that says which
    vote, how long that takes, and what more time would add.

    None are added up to DEFAULT, nor where the pairs do not lie on this machine: then there is no
    line. The time is without that of the user's own voters.
    """
    look = first_pairs(config)
    if look is None or not look.pairs:
        return {}, None
    amount = amount_of(config, look)
    cores = len(settings.gpus) * A_GPU_IN_CORES or settings.max_parallel
    passes = 1 if config.ensemble.self_test_share == 0 else 2
    total = SECONDS_OF_AN_AUDIT + SECONDS_A_TOKEN * amount.answer_tokens * CORES / cores
    names = [STRENGTH_NAMES[model.name] for model in config.embedding_models]
    ensemble = config.ensemble
    yours = [*map(last_part, ensemble.scores)]
    yours += [reward.short_label for reward in ensemble.rewards]
    yours += [judge.name for judge in ensemble.judges]
    beside = f", beside yours ({', '.join(yours)})" if yours else ""
    models = [model.model_dump(mode="json") for model in (*config.embedding_models, STATES)]
    members = {"ensemble": {"cross_fitted": MEMBERS.model_dump(mode="json")}}
    further: dict[str, tuple[float, dict[str, Any]]] = {
        STRENGTH_NAMES[STATES.name]: (
            seconds_of_states(amount, cores),
            {"embedding_models": models},
        ),
        f"{MEMBERS.size} reward models": (
            seconds_of_reward_models(amount, cores, passes),
            members,
        ),
    }
    changes: dict[str, Any] = {}
    more = ""
    for name, (seconds, change) in further.items():
        needed = max(total + seconds, seconds_of(DEFAULT) + 1)
        if needed > budget:
            more = f". A budget of {_shown(needed)} would add: {name}"
            break
        names.append(name)
        total += seconds
        changes |= change
    return changes, f"{', '.join(names)}; about {_shown(total)}{beside}{more}"


def amount_of(config: RunConfig, look: Look) -> Amount:
    """The amount of all pairs, estimated from those of the first rows."""
    preferences = config.preferences
    total = len(look.pairs) if look.is_whole else amounts_of_preferences(preferences, 0).pairs
    total = counts.num_taken(total, preferences.max_pairs)
    questions = {(pair.prompt, answer) for pair in look.pairs for answer in _answers(pair)}
    texts = [*{prompt for prompt, _ in questions}, *(answer for _, answer in questions)]
    size = {text: _tokens(text) for text in texts}
    shown = sum(size[text] for pair in look.pairs for text in (pair.prompt, *_answers(pair)))
    answers = {answer for _, answer in questions}
    share = total / len(look.pairs)
    more = max(share, 1.0)  # of fewer pairs than were looked at the texts may still be all
    return Amount(
        total,
        round(sum(size[answer] for answer in answers) * min(more, 2 * total / len(answers))),
        round(sum(size[text] for text in texts) * more),
        round(shown * share),
    )


def _answers(pair: PreferencePair) -> tuple[str, str]:
    return pair.chosen, pair.rejected


def _tokens(text: str) -> float:
    """About how many tokens a text has."""
    unspaced = 0 if text.isascii() else len(UNSPACED.findall(text))
    return unspaced + (len(text) - unspaced) / CHARACTERS_A_TOKEN


def seconds_of_states(amount: Amount, cores: int) -> float:
    """Seconds of the linear voter on hidden states: a pass of the lower layers, and its fits."""
    layers = counts.layer_of_vectors(STATES.layer, SHAPE.num_layers)
    operations = 2 * layers * SHAPE.layer_parameters * amount.tokens
    return _seconds(operations, cores) + SECONDS_A_PAIR * min(
        amount.pairs, counts.EMBEDDING_MODEL_PAIRS
    )


def seconds_of_reward_models(amount: Amount, cores: int, passes: int) -> float:
    """Seconds of the cross-fitted reward models: a pass of the frozen layers, which are kept, and
    `passes` times training and scoring, once more for the self-test."""
    train, size = MEMBERS.train, MEMBERS.size
    upper = train.trainable_layers or SHAPE.num_layers
    frozen = 2 * (SHAPE.num_layers - upper) * amount.tokens
    trained = 6 * upper * train.num_epochs * (size - 1) * amount.pair_tokens
    scored = 2 * upper * size * amount.pair_tokens
    operations = SHAPE.layer_parameters * (frozen + passes * (trained + scored))
    return _seconds(operations, cores) + SECONDS_OF_A_MEMBER * size * passes


def _seconds(operations: float, cores: int) -> float:
    return operations / (OPERATIONS_A_SECOND * cores / CORES)


def _shown(seconds: float) -> str:
    minutes = max(1, -(-math.ceil(seconds) // 60))
    return f"{minutes // 60}h{minutes % 60}m" if minutes >= 60 else f"{minutes}m"
