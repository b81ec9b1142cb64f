"""How a Prefect task runs a stage: one context per process, progress artifacts, logging."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import lru_cache, partial
from typing import Any
from uuid import UUID

from prefect.artifacts import create_progress_artifact, update_progress_artifact
from prefect.client.base import PrefectHttpxAsyncClient, PrefectHttpxSyncClient
from prefect.runtime import flow_run, task_run
from pydantic import BaseModel

from trimtab.infra.prefect.fence import end_if_started_again
from trimtab.infra.prefect.server import EMBEDDED_VARIABLE
from trimtab.infra.settings import Settings
from trimtab.infra.tracking.mlflow_calls import EXPERIMENT
from trimtab.infra.tracking.runs import TrackedRun
from trimtab.models.config.external_reward import RewardConfig
from trimtab.models.data.records import ArtifactRef
from trimtab.models.specs import EXTERNAL_REWARD, StageSpec
from trimtab.tasks.access import require_access
from trimtab.tasks.board import board
from trimtab.tasks.cache_key import read_sources
from trimtab.tasks.events import advanced
from trimtab.tasks.execution import (
    StageContext,
    StageProgress,
    StageResult,
    manifest_of,
    run_stage,
)
from trimtab.tasks.judges import judge_environment
from trimtab.tasks.resources import ONE_CORE, Resources, gpu_slots, share_of

WEIGHTS = ("model", "critic")  # folders of artifacts
SECONDS_BETWEEN_UPDATES = 2.0
SECONDS_BETWEEN_LINES = 15.0

# Prefect sends this logger's lines to the run's page (PREFECT_LOGGING_EXTRA_LOGGERS).
logger = logging.getLogger("trimtab")
logger.setLevel(logging.INFO)

# The tag of an MLflow run that names its flow run, and the MLflow run of each flow run so far.
FLOW_RUN = "prefect.flow_run_id"
FLOW_RUN_URL = "prefect.flow_run_url"
_runs: dict[str, TrackedRun] = {}
_reached: set[str] = set()  # servers, by any client of this process


def share_connections() -> None:
    """Have all of Prefect's clients of this process outlast a restart of its server.

    A client tries again for about a minute where no server listens, but only if it has reached it
    before: a wrong address is then found at once. A flow run makes new clients all the time, such
    as one for the slots of a task, and failed where one was made while the server was restarted.
    Here it counts that any client of the process has reached that server.
    """
    for kind in (PrefectHttpxAsyncClient, PrefectHttpxSyncClient):
        kind._has_connected = property(_has_reached, _note)  # type: ignore[assignment]


def _has_reached(client: Any) -> bool:
    return str(client.base_url) in _reached


def _note(client: Any, is_connected: bool) -> None:
    if is_connected:  # a new client says that it is not, before it has an address
        _reached.add(str(client.base_url))


share_connections()  # of every process that runs tasks


@lru_cache(maxsize=1)
def base_context() -> StageContext:
    """Store and tracking as the environment names them, opened once per process."""
    return StageContext.open(Settings.from_env(), EXPERIMENT)


def preload() -> None:
    """Load MLflow and read the stages' sources while there is something else to wait for."""
    base_context().tracking.call(lambda _: None)
    read_sources()


def start_tracked_run(name: str, tags: Mapping[str, str]) -> TrackedRun:
    """Start the MLflow run that the flow's stages nest in."""
    run = base_context().tracking.start_run(name, tags={**tags, **flow_run_tags()})
    _runs[str(flow_run.id)] = run
    return run


def flow_run_tags() -> dict[str, str]:
    """Tags of an MLflow run that name the flow run under way; nothing outside of one."""
    if flow_run.id is None:
        return {}
    place = {} if EMBEDDED_VARIABLE in os.environ else {FLOW_RUN_URL: flow_run.ui_url}
    return {FLOW_RUN: str(flow_run.id), **{name: str(url) for name, url in place.items()}}


def _parent_run() -> TrackedRun:
    """The MLflow run that stages nest in; a task on another host finds it by its tag."""
    key = str(flow_run.id)
    if key not in _runs:
        _runs[key] = TrackedRun(base_context().tracking, tags={FLOW_RUN: key})
    return _runs[key]


def run_stage_task(
    spec: StageSpec,
    config: BaseModel,
    inputs: Mapping[str, StageResult | ArtifactRef],
    label: str,
    resources: Resources = ONE_CORE,
    ledger: str | None = None,
) -> StageResult:
    """Run a stage or find it done; called inside a Prefect task.

    inputs: artifacts by the names that the stage's trainer reads (`StageSpec.named`).
    ledger: the run whose stages share what they may spend on judges (`trimtab.tasks.judges`).
    Raises AccessError for a configuration that names what the run may not read or ask, InputError
    for missing or unknown inputs, and what `run_stage` raises.
    """
    require_access(config)
    spec.check(inputs)
    base, place = base_context(), str(task_run.id)
    progress = _ProgressArtifact(label, place)
    refs = {
        name: value.ref if isinstance(value, StageResult) else value
        for name, value in inputs.items()
    }
    rewards = list(_rewards_among(refs))
    context = StageContext(
        base.settings,
        base.store,
        base.tracking,
        parent=_parent_run(),
        seed=getattr(config, "seed", 0),
        on_progress=progress,
        device_slots=partial(_slots_and_begin, place, label, spec.name),
        fence=end_if_started_again,
        secrets=partial(judge_environment, base.settings, spec.name, config, ledger, rewards),
    )
    takes_gpu = "gpu" in task_run.tags
    try:
        result = run_stage(
            context,
            spec.name,
            config,
            refs,
            name=label,
            share=share_of(base.settings, config, resources, takes_gpu=takes_gpu),
            without=() if spec.reads_weights else WEIGHTS,
        )
    except BaseException as error:
        board.failed(place)
        if isinstance(error, Exception):  # what stops the run does not wait for the server
            progress.end("failed", is_done=False)
        raise
    advanced()
    how = "found in the store" if result.cached else f"{result.seconds:.1f} s"
    progress.end(how if result.cached else f"done in {how}")
    board.ended(place, spec.name, was_found=result.cached)
    standing = board.standing()
    logger.info("%s: %s%s", label, how, f" ({standing})" if standing else "")
    return result


def _rewards_among(refs: Mapping[str, ArtifactRef]) -> Iterator[RewardConfig]:
    """The rewards from outside among a stage's inputs. AccessError as `require_access`."""
    for ref in refs.values():
        if ref.stage == EXTERNAL_REWARD.name:
            manifest = manifest_of(base_context().store, ref)
            reward = RewardConfig.model_validate(manifest.config)
            require_access(reward)
            yield reward


@contextmanager
def _slots_and_begin(place: str, label: str, stage: str, count: int) -> Iterator[None]:
    """Hold GPU slots; a stage has its cores by then, and begins."""
    with gpu_slots(count):
        board.began(place, label, stage)
        yield


class _ProgressArtifact:
    """A Prefect progress artifact per stage, created on the first report, updated sparingly."""

    def __init__(self, label: str, place: str) -> None:
        self.label, self.place = label, place
        self.artifact: UUID | None = None
        self.percent, self.text = 0.0, label
        self.updated = 0.0
        self.part, self.done = "", 0
        self.logged = time.monotonic()

    def __call__(self, progress: StageProgress) -> None:
        if not progress.total:
            return
        board.advanced(self.place, progress.done, progress.total, progress.metrics, progress.part)
        if progress.part != self.part or progress.done > self.done:
            self.part, self.done = progress.part, progress.done
            advanced()
        is_done = progress.done >= progress.total
        self.percent = 100.0 * progress.done / progress.total
        words = f"{self.label}, {progress.part}" if progress.part else self.label
        self.text = f"{words}: {progress.done} of {progress.total}"
        now = time.monotonic()
        if not is_done and now - self.updated < SECONDS_BETWEEN_UPDATES:
            return
        self.updated = now
        if now - self.logged >= SECONDS_BETWEEN_LINES and not board.is_live:
            self.logged = now
            logger.info("%s", self.text)
        self._show(self.text)

    def end(self, how: str, *, is_done: bool = True) -> None:
        """Say how the stage ended; nothing where it never reported, or no server listens."""
        if self.artifact is None:
            return
        self.percent = 100.0 if is_done else self.percent
        with suppress(Exception):  # the stage is done, or has an error of its own
            self._show(f"{self.text}, {how}")

    def _show(self, description: str) -> None:
        if self.artifact is None:
            self.artifact = create_progress_artifact(  # type: ignore[assignment]
                progress=self.percent, description=description
            )
        else:
            update_progress_artifact(self.artifact, self.percent, description)
