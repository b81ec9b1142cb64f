"""What `trimtab run`, `rounds`, `rollback` and `deploy` do."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trimtab.flows.ended import signals_end_it
from trimtab.flows.run_options import (
    check_options,
    configured,
    dry_run,
    of_comparison,
    refuse,
    refuse_too_large,
)
from trimtab.infra.imports import quick_imports
from trimtab.infra.settings import Settings

if TYPE_CHECKING:
    from trimtab.flows.config import RunConfig
    from trimtab.flows.names import RunName


def run_recipe(options: argparse.Namespace, settings: Settings) -> int:
    """Run a recipe, or print its plan or configuration."""
    from trimtab.flows.checks import check
    from trimtab.flows.config import ConfigError
    from trimtab.flows.names import check_free
    from trimtab.flows.overrides import parsed

    try:
        check_options(options)
        changes = parsed(options.overrides)
        given = of_comparison(options)
        config = configured(options.recipe, changes, given)
        check_free(_name_of(config, options, given), settings)
    except ConfigError as error:
        print(f"trimtab: {error}", file=sys.stderr)
        return 2
    if options.print_config:
        print(config.model_dump_json(indent=1))
        return 0
    if options.dry_run:
        return dry_run(config, options, settings)
    found = check(config)
    wrong = [*found.mistakes, *(found.missing if settings.dask is None else ())]
    if wrong:
        return refuse(wrong)
    for line in found.notes:
        print(f"trimtab: {line}", file=sys.stderr)

    def load() -> Callable[[], object]:
        flow = _flow(options.flow)
        if settings.dask is None:
            refuse_too_large(config, options, settings)
        return partial(flow, options.recipe, changes=changes, name=options.name, **given)

    return _in_prefect(load)


def _name_of(config: RunConfig, options: argparse.Namespace, given: dict[str, Any]) -> RunName:
    """What the run is going to be called."""
    from trimtab.flows.compare_config import comparison_name
    from trimtab.flows.names import named

    if options.flow == "compare":
        return comparison_name(config, given["arms"], given["seeds"], options.name)
    return named(config, options.flow, options.name)


def _flow(name: str) -> Callable[..., object]:
    """The flow of a name, of the module of that name; no other is loaded."""
    module = name.replace("-", "_")
    flow: Callable[..., object] = getattr(import_module(f"trimtab.flows.{module}"), module)
    return flow


def run_study(options: argparse.Namespace, settings: Settings) -> int:
    """A paper's table or figure over several seeds."""
    from trimtab.flows.checks import check
    from trimtab.flows.config import ConfigError
    from trimtab.flows.overrides import changed, parsed
    from trimtab.flows.recipes import recipe_named

    try:
        changes = parsed(options.overrides)
        mistakes = check(changed(recipe_named(options.scale), changes)).mistakes
    except ConfigError as error:
        mistakes = [str(error)]
    if mistakes:
        return refuse(mistakes)

    def load() -> Callable[[], None]:
        from trimtab.flows.study import checked, study

        checked(options.paper, options.exhibit, options.seeds)
        flow: Callable[..., dict[str, str]] = study

        def run() -> None:
            given = (options.paper, options.exhibit, options.scale, options.seeds, changes)
            for slug, status in flow(*given).items():
                print(f"{slug}: {status}")

        return run

    return _in_prefect(load)


def next_round(options: argparse.Namespace, settings: Settings) -> int:
    """One more round from the champion, with changes to its run's configuration.

    They are checked here as well: Prefect's own refusal of a flow's parameters is not a line.
    """
    from trimtab.flows.config import ConfigError
    from trimtab.flows.overrides import RoundChanges, parsed, validated

    try:
        validated(parsed(options.overrides), RoundChanges)
    except ConfigError as error:
        return refuse([str(error)])

    def load() -> Callable[[], None]:
        from trimtab.flows.config import load_config
        from trimtab.flows.overrides import RoundChanges, changed, parsed
        from trimtab.flows.rounds import champion_of, rounds

        flow: Callable[..., dict[str, Any]] = rounds

        def run() -> None:
            changes = parsed(options.overrides)
            changed(load_config(champion_of(options.recipe).config), changes, RoundChanges)
            found = flow(options.recipe, changes)
            if "idle" in found:
                print(found["idle"])

        return run

    return _in_prefect(load)


def take_back(options: argparse.Namespace, settings: Settings) -> int:
    """Make the version before, or the one named, champion again."""
    from trimtab.infra.store.manifest import StorageError
    from trimtab.infra.tracking.registry import RegistryError
    from trimtab.tasks.registry import roll_back

    try:
        now = roll_back(options.recipe, options.version)
    except (RegistryError, StorageError) as error:
        print(f"trimtab: {error}", file=sys.stderr)
        return 1
    print(f"champion of {now.name}: version {now.number}")
    return 0


def deploy_flows(options: argparse.Namespace, settings: Settings) -> int:
    """Make everything a Prefect server needs to run the flows."""
    if not os.environ.get("PREFECT_API_URL"):
        print(
            "trimtab: PREFECT_API_URL is not set: deployments live on a Prefect server "
            "(docs/how-to/deploy.md)",
            file=sys.stderr,
        )
        return 2
    from httpx import HTTPError

    from trimtab.flows.config import ConfigError
    from trimtab.flows.deploy import POOL, deploy

    try:
        deploy(options.gpus, options.pool_type, options.notify, Path("prefect.yaml"))
    except ConfigError as error:
        print(f"trimtab: {error}", file=sys.stderr)
        return 2
    except HTTPError as error:
        first = (str(error).splitlines() or [repr(error)])[0]
        address = os.environ["PREFECT_API_URL"]
        print(f"trimtab: Prefect's server at {address}: {first}", file=sys.stderr)
        return 1
    print(f"deployed; workers: prefect worker start --pool {POOL}")
    return 0


_GOES_ON = "; the same command goes on where it was"


def _in_prefect(load: Callable[[], Callable[[], object]]) -> int:
    """Import the flows while Prefect's server starts, then run what `load` gives.

    A known failure is one line.
    """
    from trimtab.infra.prefect.server import PrefectServerError, local_prefect_server

    try:
        with signals_end_it(_GOES_ON), local_prefect_server() as wait_until_ready:
            return _reported(load, wait_until_ready)
    except PrefectServerError as error:
        print(f"trimtab: {error}", file=sys.stderr)
        return 1


def _reported(
    load: Callable[[], Callable[[], object]], wait_until_ready: Callable[[], None]
) -> int:
    with quick_imports(), signals_end_it(_GOES_ON, at_once=True):
        from trimtab.flows.config import ConfigError
        from trimtab.infra.processes.launch import TrainerError, warm_up
        from trimtab.infra.report_folders import NameTakenError
        from trimtab.infra.store.fetch import FetchError
        from trimtab.infra.store.manifest import StorageError
        from trimtab.infra.tracking.registry import RegistryError
        from trimtab.tasks.context import get_ready
        from trimtab.tasks.execution import StageInputError, StageOutputError
        from trimtab.tasks.registry import LineageError

    with quick_imports():
        get_ready()
    stages = (TrainerError, StageInputError, StageOutputError, StorageError, FetchError)
    try:
        if not (Settings.from_env().home / "reports").exists():  # first run: the store is empty
            warm_up()
        with quick_imports(), signals_end_it(_GOES_ON, at_once=True):
            run = load()
        wait_until_ready()
        for noise in ("prefect.flow_runs", "prefect.task_runs"):  # one stage's failure fails many
            logging.getLogger(noise).propagate = False  # all of it is on the run's page
        run()
    except (ConfigError, LineageError, NameTakenError, RegistryError, *stages) as error:
        print(f"trimtab: {error}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1
    return 0
