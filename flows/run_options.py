"""What `trimtab run` is given: whether it goes together, its configuration, its plan."""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from trimtab.infra.processes.gpus import memory_of
from trimtab.infra.settings import Settings

if TYPE_CHECKING:
    from trimtab.flows.config import RunConfig
    from trimtab.models.estimates.machine import Machine


def check_options(options: argparse.Namespace) -> None:
    """The GPUs of a plan go together, and with a plan only."""
    from trimtab.flows.config import ConfigError

    given = [name for name in ("gpus", "gpu_memory") if getattr(options, name) is not None]
    if given and not (options.dry_run and len(given) == 2):
        raise ConfigError(
            f"--gpus is {options.gpus}, --gpu-memory is {options.gpu_memory}, --dry-run is "
            f"{options.dry_run}; a dry run takes both of the first two, or none"
        )


def of_comparison(options: argparse.Namespace) -> dict[str, Any]:
    """What a comparison is given beside recipe and changes; nothing for the other flows."""
    from trimtab.flows.compare_config import METHODS, SEEDS
    from trimtab.flows.config import ConfigError

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
    from trimtab.flows.compare_config import of_seeds
    from trimtab.flows.overrides import changed
    from trimtab.flows.recipes import recipe_named

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
    from trimtab.flows.checks import check

    found = check(config)
    if not found.mistakes:
        found = check(config, most_rows=None)
    if found.mistakes:
        return refuse(found.mistakes)
    # Prefect, which is loaded with the flows, would like its home below ours: there may be none.
    warnings.filterwarnings("ignore", "Failed to create the Prefect home directory")
    from trimtab.flows.plan import make_plan
    from trimtab.flows.plan_text import plan_text
    from trimtab.flows.recipes import MACHINES
    from trimtab.models.estimates.machine import Machine
    from trimtab.models.estimates.shapes import PlanError

    machine = MACHINES.get(options.recipe) or _this_host(settings)
    if options.gpus is not None:
        machine = Machine.of_gpus(options.gpus, options.gpu_memory)
    if machine is None:
        print(
            "trimtab: nvidia-smi does not tell the memory of this host's GPUs: give --gpus and "
            "--gpu-memory",
            file=sys.stderr,
        )
        return 2
    try:
        num_seeds = len(of_comparison(options).get("seeds", [config.seed]))
        plan = make_plan(config, options.flow, machine, num_seeds)
        print(plan_text(plan, [*found.missing, *found.notes]))
    except PlanError as error:
        print(f"trimtab: {error}", file=sys.stderr)
        return 2
    return 0


def refuse_too_large(config: RunConfig, options: argparse.Namespace, settings: Settings) -> None:
    """ConfigError for a run of which this host cannot hold every stage, by its plan.

    Rows of people's preferences are not counted for it, which may take long: they decide how long
    a stage takes, and hardly its memory. A model whose size is not known is let through.
    """
    from trimtab.flows.config import ConfigError
    from trimtab.flows.plan import make_plan
    from trimtab.models.estimates.machine import Machine
    from trimtab.models.estimates.shapes import PlanError

    uncounted = config.preferences.model_copy(
        update={"sources": ("s3://not-counted",), "demonstrations": ()}
    )
    if not config.is_synthetic:
        config = config.model_copy(update={"preferences": uncounted})
    num_gpus, known = len(settings.gpus), _this_host(settings)
    machine = known or Machine(num_gpus, sys.maxsize, 1, True)
    try:
        found = make_plan(config, options.flow, machine).too_large()
    except PlanError:
        return
    if found is not None:
        raise ConfigError(
            f"{options.recipe} does not fit on this host: {found}; found "
            f"{known or f'{num_gpus} GPUs'}. --dry-run has the whole plan; hh-smollm2 is the "
            "recipe for people's data with a small model"
        )


def _this_host(settings: Settings) -> Machine | None:
    """The machine at hand; none where the memory of its GPUs cannot be told."""
    from trimtab.models.estimates.machine import GIB, Machine

    if not settings.gpus:
        return Machine.this_computer(settings.max_parallel)
    memory = memory_of(settings.gpus)
    return None if memory is None else Machine.of_gpus(len(settings.gpus), memory / GIB)
