"""Recipes: each a function that returns a whole configuration.

A recipe is a name in `RecipeName` and a function of that name in one of the modules.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Literal, get_args

from trimtab.flows.config.config import RunConfig
from trimtab.flows.config.errors import ConfigError, unknown_name
from trimtab.flows.config.recipes import human, synthetic
from trimtab.models.estimates.machine import Machine

RecipeName = Literal[
    "smoke",
    "default",
    "papers",
    "rlaif",
    "constitutional",
    "audit",
    "reward",
    "hh-smollm2",
    "ukp-smollm2",
    "hh-qwen-0.5b",
    "hh-qwen-1.5b-lora",
    "hh-7b-lora",
    "hh-7b",
]
_FUNCTIONS = vars(synthetic) | vars(human)
RECIPES: dict[str, Callable[[], RunConfig]] = {
    name: _FUNCTIONS[re.sub("[-.]", "_", name)] for name in get_args(RecipeName)
}
# The only flow of a recipe; without an entry it is for all of them.
ONLY_FLOW = {"audit": "label-audit", "reward": "reward"}
# The machine that a recipe is for, against which its plan is held where the command line names no
# GPUs; without an entry it is the computer at hand.
# Drivers show 22.5 of 24 GB where memory corrects its errors (L4, A10G).
MACHINES = {
    "hh-qwen-0.5b": Machine.with_gpus(1, 22.5),
    "hh-qwen-1.5b-lora": Machine.with_gpus(1, 22.5),
    "hh-7b-lora": Machine.with_gpus(1, 80),
    "hh-7b": Machine.with_gpus(8, 80),
}


def recipe_named(name: str) -> RunConfig:
    """A recipe by name; ConfigError lists the known ones."""
    if name not in RECIPES:
        raise ConfigError(unknown_name("recipe", name, RECIPES))
    return RECIPES[name]()
