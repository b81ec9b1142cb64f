"""A flow run from its start to its end: checks, MLflow run, name, report, registered models."""

from __future__ import annotations

import dataclasses
import logging
import os
import socket
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal
from uuid import UUID

from httpx import HTTPError
from prefect import Flow
from prefect.client.orchestration import get_client
from prefect.context import FlowRunContext
from prefect.exceptions import Pause, TerminationSignal
from prefect.runtime import flow_run
from prefect.states import Cancelled, Completed, State

import trimtab
from trimtab.flows.config.config import NOT_COUNTED, RunConfig, require_flow
from trimtab.flows.config.names import (
    GivenName,
    RunName,
    check_free,
    data_name,
    name_run,
    registered_model_name,
    reviewed_name,
)
from trimtab.flows.config.overrides import RunChanges, apply_changes
from trimtab.flows.config.recipes import RecipeName, recipe_named
from trimtab.flows.pipeline.run import Run, judgement_of_round, resources_of, roles_of_round
from trimtab.flows.runs.checks import (
    Findings,
    check_installed,
    make_quick_plan,
    refuse,
    refuse_too_large,
)
from trimtab.flows.runs.exit_handling import is_interrupted
from trimtab.flows.runs.flow import flow
from trimtab.flows.runs.suspension import approval_of, require_resumable, review_labels
from trimtab.infra.prefect.app import RUN_TAGS
from trimtab.infra.prefect.fence import end_if_started_again
from trimtab.infra.processes.gpus import unused_gpus
from trimtab.infra.processes.launch import stop_trainers_on_sigterm
from trimtab.infra.settings import Settings
from trimtab.infra.tracking.runs import TrackedRun
from trimtab.models.config.reporting import ReportConfig
from trimtab.models.specs import REPORT
from trimtab.tasks.access import access_of_run, require_access, require_files
from trimtab.tasks.board import board
from trimtab.tasks.context import FLOW_RUN_URL, flow_run_tags, start_tracked_run
from trimtab.tasks.execution import StageResult
from trimtab.tasks.registry import SCORERS, RegisteredRun, register_models
from trimtab.tasks.report_export import export_report, lineage_of, next_steps, verdict_of
from trimtab.tasks.restarts import close_earlier_starts, close_leftovers
from trimtab.tasks.sources import require_review

logger = logging.getLogger("trimtab")

# How long the end of a flow waits for MLflow to return; after that the next run sends the rest.
SECONDS_FOR_MLFLOW = 60.0
# Descriptions of the parameters that the flows of the experiment share, for their forms.
RECIPE_IN_FORM = """\
Settings to start from: model, data and size. Whole, on two cores: smoke (checks the
            installation) takes 1 min, default (the demo) 5 min, hh-smollm2 (Anthropic's HH pairs
            with SmolLM2-135M) 86 min; `trimtab recipes` lists all"""
PARAMETERS = """

    Args:
        recipe: {recipe}
        changes: Settings to change; empty fields keep the recipe's values
        name: Name of report and MLflow run; left empty, it is made of recipe, seed and changes,
            such as smoke-seed0
    """


def experiment_flow(
    flow_name: str,
    stages: Callable[[Run], int | None],
    about: str,
    recipe_about: str = RECIPE_IN_FORM,
) -> Flow[[RecipeName, RunChanges | None, GivenName | None], dict[str, object]]:
    """The flow that runs `stages` with a recipe and its changes, and writes the report.

    about, recipe_about: what its form says of it, and of the parameter `recipe`.
    """

    def run_stages(
        recipe: RecipeName = "default",
        changes: RunChanges | None = None,
        name: GivenName | None = None,
    ) -> dict[str, object]:
        config = apply_changes(recipe_named(recipe), changes)
        require_startable(config, flow_name)
        run_name = name_run(config, flow_name, name)
        run = Run(config, name=run_name.name)
        with tracked_flow(config, run_name) as tracked:
            if config.suspend.for_label_review:
                page = report_about(run_name)
                run.review = partial(review_labels, tracked=tracked, name=run.name, about=page)
            champion = stages(run)
            numbers = finish_run(run, tracked, champion, run_name)
        state: dict[str, object] = completed_state(numbers)
        return state

    run_stages.__doc__ = about + PARAMETERS.format(recipe=recipe_about)
    run_stages.__name__ = run_stages.__qualname__ = flow_name.replace("-", "_")
    run_stages.__module__ = f"trimtab.flows.{run_stages.__name__}"
    return flow(name=flow_name)(run_stages)


def require_startable(config: RunConfig, flow: str | None = None, num_seeds: int = 1) -> None:
    """Check what a worker's run needs before its first stage.

    Raises AccessError for what it may not read or ask, and for missing files; ConfigError for a
    flow that the configuration is not for, for a suspension that the flow does not have, for a
    review that the store does not give it, for models and packages that are not installed here and,
    with `flow`, for stages that do not fit on this host. On a person's machine and on a Dask
    cluster only access, flow and suspension are checked: the command line has checked more, and
    stages run elsewhere.
    """
    require_flow(config, flow)
    require_resumable(config, flow)
    require_access(config)
    settings = Settings.from_env()
    if access_of_run() is None or settings.dask is not None:
        return
    require_files(config)
    findings = Findings()
    try:
        require_review(config.relabel.review)
    except ValueError as error:
        findings.mistakes.append(f"relabel.review: {error}")
    check_installed(config, findings)
    refuse([*findings.mistakes, *findings.missing])
    plan = make_quick_plan(config, flow, settings, num_seeds) if flow else None
    if plan is not None:
        refuse_too_large(plan, settings)
        board.expect(plan.costs())  # of which a stage's line is the nth


def _name_flow_run(config: RunConfig, name: RunName, commit: str | None) -> None:
    """Give the flow run the run's name, and tags to filter by."""
    tags = {f"recipe:{config.recipe}"}
    if data := data_name(config):
        tags.add(f"data:{data}")
    if commit:
        tags.add(f"commit:{commit[:12]}")
    _tag_flow_run(tags, RUN_TAGS, name.name)


def completed_state(numbers: Mapping[str, Any]) -> Any:
    """The state that the flow run ends in, with the answer, the report's place, and the numbers.

    The answer is a tag of the run, too, to filter by.
    """
    if verdict := numbers.get("verdict"):
        _tag_flow_run({f"verdict:{verdict}"}, ["verdict"])
    answer = str(verdict or numbers.get("answer") or "")
    message = f"{answer[:1].upper()}{answer[1:]}".rstrip(".") + ". " if answer else ""
    message += f"{numbers['approval']}. " if "approval" in numbers else ""
    state: Any = Completed(message=f"{message}Report: {page_of(numbers)}", data=dict(numbers))
    return state


def page_of(numbers: Mapping[str, Any]) -> str:
    """The address of a run's report, or its path where MLflow is no server."""
    return str(numbers.get("report_link", numbers["report"]))


def _tag_flow_run(tags: set[str], kinds: Sequence[str], name: str | None = None) -> None:
    """Give the flow run tags in the place of those of these kinds, and a name."""
    with get_client(sync_client=True) as client:
        identity = UUID(str(flow_run.id))
        old = client.read_flow_run(identity).tags
        others = {tag for tag in old if tag.partition(":")[0] not in kinds}
        client.update_flow_run(identity, name=name, tags=sorted(others | tags))


@cache
def _commit() -> str | None:
    """The git commit of Trimtab's code; None where that is no checkout."""
    path = Path(__file__).resolve()
    git = ["git", "-C", str(path.parent)]
    env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        # Installed inside of another project's checkout it is no file of that.
        for command in (["ls-files", "--error-unmatch", path.name], ["rev-parse", "HEAD"]):
            done = subprocess.run(
                [*git, *command], capture_output=True, text=True, timeout=10, check=True, env=env
            )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def report_about(name: RunName, reviewed: str = "") -> dict[str, Any]:
    """The run that a report is of, and its origin: as `export_report` takes it.

    reviewed: the outcome of a person's review of the labels, in words.
    """
    origin = {
        "at": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        "version": trimtab.__version__,
        "host": socket.gethostname(),
        "commit": _commit() or "",
        "command": name.command,
        "reviewed": reviewed,
    }
    return {**name.about, "made": origin}


@contextmanager
def tracked_flow(config: RunConfig, name: RunName) -> Iterator[TrackedRun]:
    """The MLflow run of a flow run, with the whole configuration as parameters.

    Meanwhile a SIGTERM stops the running trainers at a checkpoint, and then the flow. ConfigError
    where the name is that of another configuration's report.
    """
    check_free(name, Settings.from_env())
    end_if_started_again()
    close_earlier_starts()
    if line := unused_gpus(os.environ):
        logger.warning("%s", line)
    commit = _commit()
    _name_flow_run(config, name, commit)
    tags = {
        "trimtab.recipe": config.recipe,
        "trimtab.seed": str(config.seed),
        "trimtab.flow": name.flow,
        "trimtab.data": data_name(config) or "as the recipe",
        "mlflow.source.name": name.command or name.name,
        "mlflow.source.type": "LOCAL",
        **({"mlflow.source.git.commit": commit} if commit else {}),
    }
    tracked, patience = start_tracked_run(name.name, tags), SECONDS_FOR_MLFLOW
    suspension: Pause | None = None
    try:
        with stop_trainers_on_sigterm(), tracked:
            tracked.log(params=config.model_dump(mode="json"))
            try:
                yield tracked
            except Pause as raised:  # no failure; the start after it has an MLflow run of its own
                suspension, patience = raised, 0.0
                tracked.log(tags=_suspended_tags())
            finally:
                end_if_started_again()
                tracked.tracking.background.wait()
    except (KeyboardInterrupt, SystemExit):
        patience = 0.0
        raise
    except TerminationSignal:
        if is_interrupted():
            _cancel()
        raise
    finally:
        tracked.tracking.flush(patience)
        close_leftovers(tracked)
    if suspension is not None:
        raise suspension


def _cancel() -> None:
    """Tell Prefect that a person ended the flow run, which would count as crashed otherwise."""
    context = FlowRunContext.get()
    if context is None or context.flow_run is None:
        return
    run = context.flow_run
    with suppress(HTTPError), get_client(sync_client=True) as client:
        state: State = Cancelled(message="Stopped by Ctrl-C; the same command goes on")
        run.state = client.set_flow_run_state(run.id, state, force=True).state


def _suspended_tags() -> dict[str, str]:
    """Tags of the MLflow run of a start that ended because its flow run was suspended."""
    at = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    address = flow_run_tags().get(FLOW_RUN_URL)
    of = f"[Its flow run]({address})" if address else "Its flow run"
    note = f"{of} was suspended at {at}; resumed, it goes on in another MLflow run."
    return {"trimtab.suspended": at, "mlflow.note.content": note}


def finish_run(
    run: Run, tracked: TrackedRun, champion: int | None, name: RunName, model: str | None = None
) -> dict[str, object]:
    """Wait for everything, write the report, register the policies; returns the key numbers.

    `champion` is the last round that was promoted. `model` is the registered model that policies
    become versions of: by default that of the run's data.
    """
    results = {role: run.result(role) for role in run.roles}
    config = run.config
    name = reviewed_name(name, config)
    promoted = roles_of_round(champion, config.rounds.meta_rm_from).policy if champion else None
    summary = run.submit(
        REPORT,
        ReportConfig(
            title=f"Trimtab: {name.name}",
            recipe=config.recipe,
            seed=config.seed,
            config=config.model_dump(mode="json", exclude=NOT_COUNTED),
            lineage=lineage_of(results),
            arms=tuple(arm for arm in config.arms if f"eval_{arm}" in results),
            rounds=tuple(range(2, (run.last_round or 1) + 1)),
            champion=promoted.removeprefix("policy_") if promoted else None,
            has_gold=config.is_synthetic,
        ),
        artifacts={
            role: done for role, done in results.items() if not role.startswith("cross_fitted_")
        },
    ).result()
    about = report_about(name, run.reviewed)
    end_if_started_again()
    numbers = export_report(tracked, summary, results, name.name, about)
    rounds_to_keep = sorted(number for number in {champion, run.last_round} if number is not None)
    policies = {
        number: run.result(roles_of_round(number, config.rounds.meta_rm_from).policy)
        for number in rounds_to_keep
    }
    tracked.tracking.flush()  # the registry keeps policies in the MLflow run
    # Last, as it fails without a registry. Of policies only those that rounds continue from.
    registered_run = RegisteredRun(
        model or registered_model_name(config),
        policies,
        champion,
        summary,
        config.fingerprint,
        {role: results[role] for role in SCORERS if role in results},
        name.name,
        name.command,
        promoted_by=_promoted_by(champion, results),
        verdict=verdict_of(numbers),
        page=str(numbers.get("report_link", "")),
    )
    if config.suspend.for_champion_approval and champion is not None:
        judged = run.result(judgement_of_round(champion)).summary
        approval = approval_of(registered_run, judged, page_of(numbers), config.suspend)
        registered_run = dataclasses.replace(registered_run, approval=approval)
        numbers |= {"approval": f"Champion {approval}"} if approval else {}
    _register(tracked, registered_run, config)
    print(next_steps(numbers, name.name, results))
    return numbers


def _register(tracked: TrackedRun, run: RegisteredRun, config: RunConfig) -> None:
    """Register the models of a run, and print what is registered."""
    end_if_started_again()
    with resources_of(register_models, config):
        registered = register_models.submit(tracked.run_id, run).result()
    for line in registered.split("; ") if registered else ():
        print(f"registered: {line}")


def _promoted_by(
    champion: int | None, results: Mapping[str, StageResult]
) -> Literal["always", "judgement"]:
    """Whether only rounds.promote=always made a policy champion, as its judgement did not."""
    judged = results.get(judgement_of_round(champion)) if champion is not None else None
    return "always" if judged and not judged.summary["is_promoted"] else "judgement"
