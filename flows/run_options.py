"""What `trimtab run` is given: whether it goes together, its configuration, its plan."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from infra.settings import Settings

if TYPE_CHECKING:
    from flows.config import RunConfig


def check_options(options: argparse.Namespace) -> None:
    """The GPUs of a plan go together, and with a plan only."""
    from flows.config import ConfigError

    given = [name for name in ("gpus", "gpu_memory") if getattr(options, name) is not None]
    if given and not (options.dry_run and len(given) == 2):
        raise ConfigError(
            f"--gpus is {options.gpus}, --gpu-memory is {options.gpu_memory}, --dry-run is "
            f"{options.dry_run}; a dry run takes both of the first two, or none"
        )


def of_comparison(options: argparse.Namespace) -> dict[str, Any]:
    """What a comparison is given beside recipe and changes; nothing for the other flows."""
    from flows.compared import METHODS, SEEDS
    from flows.config import ConfigError

    if options.flow == "compare":
        return {"arms": options.arms or list(METHODS), "seeds": options.seeds or list(SEEDS)}
    if options.arms or options.seeds:
        raise ConfigError(
            f"--arms and --seeds are for --flow compare, found --flow {options.flow}: give "
            "arms=[...] and seed=..."
        )
    return {}


def configured(recipe: str, changes: dict[str, Any], given: dict[str, Any]) -> RunConfig:
    """The configuration of a run, of a comparison that of its first seed."""
    from flows.changes import changed
    from flows.compared import of_seeds
    from flows.recipes import recipe_named

    if given:
        return of_seeds(recipe, **given, changes=changes)[0]
    return changed(recipe_named(recipe), changes)


def refuse(mistakes: Sequence[str]) -> int:
    """Print a line a mistake; the exit status."""
    for line in mistakes:
        print(f"trimtab: {line}", file=sys.stderr)
    return 2


def dry_run(config: RunConfig, options: argparse.Namespace, settings: Settings) -> int:
    """Print the plan, or what is wrong; nothing is run, downloaded or stored."""
    from flows.checks import check

    found = check(config)
    if not found.mistakes:
        found = check(config, most_rows=None)
    if found.mistakes:
        return refuse(found.mistakes)
    from flows.plan import make_plan
    from flows.plan_text import plan_text
    from flows.recipes import MACHINES
    from models.planning.machine import Machine
    from models.planning.shapes import PlanError

    machine = MACHINES.get(options.recipe) or Machine.this_computer(settings.max_parallel)
    if options.gpus is not None:
        machine = Machine.of_gpus(options.gpus, options.gpu_memory)
    try:
        num_seeds = len(of_comparison(options).get("seeds", [config.seed]))
        plan = make_plan(config, options.flow, machine, num_seeds)
        print(plan_text(plan, [*found.missing, *found.notes]))
    except PlanError as error:
        print(f"trimtab: {error}", file=sys.stderr)
        return 2
    return 0
