"""Recipes: each a function that returns a whole configuration."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from trimtab.flows.config.config import RunConfig
from trimtab.flows.config.errors import ConfigError, unknown_name
from trimtab.flows.config.recipes.human import (
    audit,
    hh_7b,
    hh_7b_lora,
    hh_qwen_0_5b,
    hh_qwen_1_5b_lora,
    hh_smollm2,
    ukp_smollm2,
)
from trimtab.flows.config.recipes.synthetic import constitutional, default, papers, rlaif, smoke
from trimtab.models.estimates.machine import Machine

RecipeName = Literal[
    "smoke",
    "default",
    "papers",
    "rlaif",
    "constitutional",
    "audit",
    "hh-smollm2",
    "ukp-smollm2",
    "hh-qwen-0.5b",
    "hh-qwen-1.5b-lora",
    "hh-7b-lora",
    "hh-7b",
]
RECIPES: dict[str, Callable[[], RunConfig]] = {
    "smoke": smoke,
    "default": default,
    "papers": papers,
    "rlaif": rlaif,
    "constitutional": constitutional,
    "audit": audit,
    "hh-smollm2": hh_smollm2,
    "ukp-smollm2": ukp_smollm2,
    "hh-qwen-0.5b": hh_qwen_0_5b,
    "hh-qwen-1.5b-lora": hh_qwen_1_5b_lora,
    "hh-7b-lora": hh_7b_lora,
    "hh-7b": hh_7b,
}
# The only flow of a recipe; without an entry it is for all of them.
ONLY_FLOW = {"audit": "label-audit"}
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
