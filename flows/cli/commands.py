"""The commands `run`, `study`, `rounds`, `rollback`, `clean` and `deploy`.

Mistakes are looked for first. Prefect is loaded once a flow is to run, while its server starts.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from trimtab.flows.audit.judges import requests_in_words, require_answers
from trimtab.flows.cli.terminal import draw_live
from trimtab.flows.config.config import RunConfig, load_config, require_flow
from trimtab.flows.config.errors import CommandError, ConfigError
from trimtab.flows.config.names import check_free, name_run
from trimtab.flows.config.over_seeds import (
    METHODS,
    SEEDS,
    comparison_name,
    configs_of_seeds,
    find_exhibits,
    study_config,
)
from trimtab.flows.config.overrides import (
    RoundChanges,
    apply_changes,
    drop_usual,
    parse_overrides,
    read_changes,
    validate_changes,
)
from trimtab.flows.config.paths import merge_changes
from trimtab.flows.config.recipes import MACHINES, RECIPES, recipe_named
from trimtab.flows.runs.checks import (
    check,
    make_quick_plan,
    refuse,
    refuse_suspension,
    refuse_too_large,
    this_host,
)
from trimtab.flows.runs.exit_handling import exit_on_signals
from trimtab.infra.imports import quick_imports
from trimtab.infra.prefect.server import PrefectServerError, local_prefect_server
from trimtab.infra.processes.launch import TrainerError, warm_up
from trimtab.infra.reports import NameTakenError
from trimtab.infra.settings import Settings
from trimtab.infra.store.fetch import FetchError
from trimtab.infra.store.manifest import StorageError
from trimtab.infra.tracking.registry import RegistryError
from trimtab.models.estimates.machine import Machine
from trimtab.models.estimates.shapes import PlanError
from trimtab.tasks.board import board

DAY = 86_400.0
CONTINUE_HINT = "; run the same command again to continue"


@dataclass(frozen=True)
class RunRequest:
    """A validated request for a run.

    name: of the run. config: its configuration; for a comparison, that of its first seed.
    parameters: the flow's arguments.
    """

    name: str
    flow: str
    config: RunConfig
    parameters: dict[str, Any]

    @property
    def num_seeds(self) -> int:
        """The number of runs of the configuration, which differ in their seed."""
        return len(self.parameters.get("seeds", [self.config.seed]))


def recipe_and_changes(
    recipe: str | None, file: Path | None, overrides: Sequence[str]
) -> tuple[str, dict[str, Any]]:
    """The recipe that a command line names, and what it changes in it.

    First the settings of a file, then the overrides. A file that has a recipe need not be given
    one, and may not be given another. ConfigError for a mistake.
    """
    changes = parse_overrides(overrides)
    if file is not None:
        if recipe is not None and "=" in recipe:  # no recipe, and the first override in its place
            changes = merge_changes(parse_overrides([recipe]), changes)
            recipe = None
        from_file = read_changes(file)
        name = from_file.pop("recipe", None)
        if name is not None and not isinstance(name, str):
            raise ConfigError(f"recipe: found {name!r} in {file}; allowed: {', '.join(RECIPES)}")
        if recipe is not None and name is not None and recipe != name:
            raise ConfigError(f"found recipe {recipe!r}, but {file} is of {name!r}; allowed: one")
        recipe = recipe or name
        if recipe is not None:
            from_file = drop_usual(from_file, recipe_named(recipe).model_dump(mode="json"))
        changes = merge_changes(from_file, changes)
    if recipe is None:
        raise ConfigError(
            f"found no recipe; allowed: {', '.join(RECIPES)}, or --config FILE with one"
        )
    return recipe, changes


def parse_request(
    recipe: str,
    changes: dict[str, Any],
    flow: str,
    arms: Sequence[str] | None,
    seeds: Sequence[int] | None,
    name: str | None,
    settings: Settings,
) -> RunRequest:
    """Validate a request; ConfigError for a mistake, or a name that is already taken."""
    compared: dict[str, Any] = {}
    if flow == "compare":
        compared = {
            "arms": _compared("arms", arms, changes, "arms") or list(METHODS),
            "seeds": _compared("seeds", seeds, changes, "seed") or list(SEEDS),
        }
        config = configs_of_seeds(recipe, **compared, changes=changes)[0]
        run_name = comparison_name(config, **compared, name=name)
    elif arms or seeds:
        raise ConfigError(
            f"--arms and --seeds are for --flow compare, found --flow {flow}: use arms=[...] and "
            "seed=... instead"
        )
    else:
        config = apply_changes(recipe_named(recipe), changes)
        run_name = name_run(config, flow, name)
    require_flow(config, flow)
    check_free(run_name, settings)
    parameters = {"recipe": recipe, "changes": changes, "name": name, **compared}
    return RunRequest(run_name.name, flow, config, parameters)


def _compared(
    option: str, values: Sequence[Any] | None, changes: dict[str, Any], field: str
) -> list[Any]:
    """The arms or seeds of a comparison, from its option or from `arms=` or `seed=`.

    Removes `arms` or `seed` from the changes.
    """
    if field not in changes:
        return list(values or ())
    value = changes.pop(field)
    if values:
        raise ConfigError(f"found --{option} and {field}={value}; allowed: one of them")
    return value if isinstance(value, list) else [value]


def run_recipe(request: RunRequest, settings: Settings, *, as_option: bool = False) -> None:
    """Run a request; ConfigError if something it needs is missing, or it does not fit here.

    as_option: the command has the option `--columns`.
    """
    refuse_suspension(request.config)
    findings = check(request.config, as_option=as_option)
    refuse([*findings.mistakes, *(findings.missing if settings.dask is None else ())])
    notes = [*findings.notes, *require_answers(request.config, settings)]
    for line in (*notes, *requests_in_words(request.config)):
        print(f"trimtab: {line}", file=sys.stderr)
    print(f"trimtab: starting {request.name}", file=sys.stderr, flush=True)
    with prefect_server() as wait_until_ready:
        flow = load_flow(request.flow)
        plan = make_quick_plan(request.config, request.flow, settings, request.num_seeds)
        if plan is not None and settings.dask is None:
            refuse_too_large(plan, settings)
        wait_until_ready()
        if plan is not None:
            board.expect(plan.costs())
        # The board knows nothing of tasks in the processes of a cluster.
        with nullcontext() if settings.dask is not None else draw_live(board):
            flow(**request.parameters)


def run_study(
    paper: str, exhibit: str, scale: str, seeds: list[int] | None, overrides: Sequence[str]
) -> None:
    """A paper's table or figure over several seeds; prints the status of each exhibit."""
    seeds = seeds or list(SEEDS)
    find_exhibits(paper, exhibit, seeds)
    changes = parse_overrides(overrides)
    config = study_config(scale, changes)
    refuse_suspension(config)
    refuse(check(config).mistakes)
    with prefect_server() as wait_until_ready:
        study = load_flow("study")
        wait_until_ready()
        board.expect_submitted()
        with draw_live(board):
            statuses = study(paper, exhibit, scale, seeds, changes)
        for slug, status in statuses.items():
            print(f"{slug}: {status}")


def next_round(recipe: str, overrides: Sequence[str]) -> None:
    """One more round from the champion, with changes to its run's configuration.

    The changes are validated here first, because Prefect's own message takes many lines.
    """
    changes = parse_overrides(overrides)
    validated = validate_changes(changes, RoundChanges)
    with prefect_server() as wait_until_ready:
        rounds = load_flow("rounds")
        champion = import_module("trimtab.flows.rounds").champion_of(recipe)
        refuse_suspension(apply_changes(load_config(champion.config), validated))
        wait_until_ready()
        numbers = rounds(recipe, changes)
        if "idle" in numbers:
            print(numbers["idle"])


def roll_back_champion(recipe: str, version: str | None) -> None:
    """Make the previous champion, or the given version, champion again."""
    from trimtab.tasks.registry import roll_back

    try:
        champions = roll_back(recipe, version)
    except (RegistryError, StorageError) as error:
        raise CommandError(str(error)) from error
    for champion in champions:
        print(f"champion of {champion.name}: version {champion.number}")


def clean_store(reports_days: float, idle_days: float, *, is_deleted: bool) -> None:
    """Print the places of the store that no report needs; remove them if `is_deleted`.

    Artifacts that registered models were made of stay, so the registry must be reachable.
    CommandError if registry or store cannot be read.
    """
    from trimtab.infra.store.cleaner import remove, unneeded
    from trimtab.tasks.context import base_context
    from trimtab.tasks.registry import reports_of_registered

    try:
        store = base_context().store
        now = store.objects.now()
        before = now - idle_days * DAY
        places = unneeded(
            store,
            reports_since=now - reports_days * DAY,
            written_before=before,
            pinned=reports_of_registered(),
        )
        for place in places:
            print(f"{place.size / 2**20:10.1f} MiB  {place.root}: {place.why}")
            if is_deleted:
                remove(store, place)
        if is_deleted:
            store.objects.drop_unfinished(before)
    except (RegistryError, StorageError) as error:
        raise CommandError(str(error)) from error
    total = sum(place.size for place in places) / 2**20
    done = "removed" if is_deleted else "would be removed: repeat with --delete"
    print(f"{total:10.1f} MiB in {len(places)} places {done}")


def deploy_flows(gpus: int, pool_type: str, notify: str | None, image: str | None) -> None:
    """Make everything a Prefect server needs to run the flows."""
    address = os.environ.get("PREFECT_API_URL")
    if not address:
        raise ConfigError(
            "PREFECT_API_URL is not set: deployments live on a Prefect server "
            "(docs/how-to/deploy.md)"
        )
    from httpx import HTTPError

    from trimtab.flows.deploy import POOL, deploy

    try:
        deploy(gpus, pool_type, notify, image)
    except HTTPError as error:
        first = (str(error).splitlines() or [repr(error)])[0]
        raise CommandError(f"Prefect's server at {address}: {first}") from error
    print(
        f"deployed; workers: prefect worker start --pool {POOL}\n"
        "runs that die go on while python -m trimtab.infra.prefect.reconciler runs, which the "
        "one-server stack does"
    )


@contextmanager
def prefect_server() -> Iterator[Callable[[], None]]:
    """Start Prefect's server; yields a function that waits until it answers.

    Known failures of the code inside are raised as CommandError.
    """
    with exit_on_signals(CONTINUE_HINT), local_prefect_server() as wait_until_ready:
        with _loading():
            from prefect.exceptions import PrefectHTTPStatusError

            from trimtab.tasks.context import preload
            from trimtab.tasks.execution import StageInputError, StageOutputError
            from trimtab.tasks.registry import LineageError
        stages = (TrainerError, StageInputError, StageOutputError, StorageError, FetchError)
        try:
            with quick_imports():
                preload()
            if not (Settings.from_env().home / "reports").exists():  # first run: an empty store
                warm_up()
            yield wait_until_ready
        except (LineageError, NameTakenError, PrefectServerError, RegistryError, *stages) as error:
            raise CommandError(str(error)) from error
        except PrefectHTTPStatusError as error:
            if error.response.status_code < 500:
                raise
            raise CommandError(
                "Prefect's server could not write down how the run stands "
                f"({error.response.status_code}); its messages are above or in its log. Where the "
                "disk is full, free space; the same command goes on"
            ) from error


def load_flow(name: str) -> Callable[..., Any]:
    """Load a flow by its name, from the module of that name; no other flow is loaded."""
    module = name.replace("-", "_")
    with _loading():
        flow: Callable[..., Any] = getattr(import_module(f"trimtab.flows.{module}"), module)
    for noise in ("prefect.flow_runs", "prefect.task_runs"):  # one stage's failure fails many
        logging.getLogger(noise).propagate = False  # all of it is on the run's page
    return flow


@contextmanager
def _loading() -> Iterator[None]:
    """For imports of large libraries: quick, and a signal ends them at once."""
    with quick_imports(), exit_on_signals(CONTINUE_HINT, at_once=True):
        yield


def print_plan(request: RunRequest, machine: Machine, *, as_json: bool = False) -> None:
    """Print the plan, or raise ConfigError; nothing is run, downloaded or stored."""
    findings = check(request.config)
    if not findings.mistakes:
        findings = check(request.config, max_rows=None)
    refuse(findings.mistakes)
    # Prefect, loaded with the flows, warns if our home folder does not exist. A plan needs none.
    warnings.filterwarnings("ignore", "Failed to create the Prefect home directory")
    from trimtab.flows.runs.plan import make_plan
    from trimtab.flows.runs.plan_text import plan_text, plan_values

    try:
        plan = make_plan(request.config, request.flow, machine, request.num_seeds)
    except PlanError as error:
        raise ConfigError(str(error)) from error
    if as_json:
        print(json.dumps(plan_values(plan), indent=1))
    else:
        print(plan_text(plan, [*findings.missing, *findings.notes]))


def machine_of_plan(
    recipe: str, gpus: int | None, gpu_memory: float | None, settings: Settings
) -> Machine:
    """The machine to plan for: the command line's GPUs, else the recipe's machine, or this host."""
    if gpus is not None and gpu_memory is not None:
        return Machine.with_gpus(gpus, gpu_memory)
    machine = MACHINES.get(recipe) or this_host(settings)
    if machine is None:
        raise ConfigError(
            "cannot read the memory of this host's GPUs from nvidia-smi: give --gpus and "
            "--gpu-memory"
        )
    return machine
