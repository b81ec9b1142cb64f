"""How a Prefect task runs a stage: one context per process, progress artifacts, logging."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from functools import lru_cache, partial
from typing import NamedTuple
from uuid import UUID

from prefect.artifacts import create_progress_artifact, update_progress_artifact
from prefect.runtime import flow_run, task_run
from pydantic import BaseModel

from infra.settings import Settings
from infra.tracking.runs import TrackedRun
from models.config.training import TrainerConfig, trainer_of
from models.data.records import ArtifactRef
from tasks.access import demand_access, environment_of_trainers
from tasks.cache_key import read_sources
from tasks.execution import Progress, StageContext, StageResult, run_stage
from tasks.gpu_slots import gpu_slots
from tasks.secrets import judge_keys

EXPERIMENT = "trimtab"
Place = tuple[int, int]
ALONE: Place = (0, 1)
WEIGHTS = ("model", "critic")  # folders of artifacts
SECONDS_BETWEEN_UPDATES = 2.0
SECONDS_BETWEEN_LINES = 15.0

# Prefect sends this logger's lines to the run's page (PREFECT_LOGGING_EXTRA_LOGGERS).
logger = logging.getLogger("trimtab")
logger.setLevel(logging.INFO)

# The tag of an MLflow run that names its flow run, and the MLflow run of each flow run so far.
FLOW_RUN = "prefect.flow_run_id"
_runs: dict[str, TrackedRun] = {}


@lru_cache(maxsize=1)
def base_context() -> StageContext:
    """Store and tracking as the environment names them, opened once per process."""
    return StageContext.open(Settings.from_env(), EXPERIMENT)


def get_ready() -> None:
    """Load MLflow and read the stages' sources while there is something else to wait for."""
    base_context().tracking.call(lambda _: None)
    read_sources()


def start_tracked_run(name: str, tags: Mapping[str, str]) -> TrackedRun:
    """Start the MLflow run that the flow's stages nest in."""
    run = base_context().tracking.start_run(name, tags={**tags, **flow_run_tags()})
    _runs[str(flow_run.id)] = run
    return run


def flow_run_tags() -> dict[str, str]:
    """What leads from MLflow to the flow run under way; nothing outside of one."""
    if flow_run.id is None:
        return {}
    return {FLOW_RUN: str(flow_run.id), "prefect.flow_run_url": str(flow_run.ui_url)}


def _parent_run() -> TrackedRun:
    """The MLflow run that stages nest in; a task on another host finds it by its tag."""
    key = str(flow_run.id)
    if key not in _runs:
        _runs[key] = base_context().tracking.attach(tags={FLOW_RUN: key})
    return _runs[key]


def perform(
    stage: str,
    config: BaseModel,
    inputs: Mapping[str, StageResult | ArtifactRef],
    label: str,
    *,
    place: Place | None = None,
    by_ranks: bool = False,
    is_patient: bool = False,
    reads_weights: bool = True,
) -> StageResult:
    """Run a stage or find it done; called inside a Prefect task.

    `place` says which of how many like stages that run at once this one is; without it others run
    beside it, and it gets one core. Several cores are threads of one process or, `by_ranks`, a rank
    each, unless the machine has GPUs or the configuration a number of ranks. One that `is_patient`
    lets all others go first. What `reads_weights` of its inputs has them brought from the store.
    AccessError for a configuration that names what the run may not read or ask.
    """
    demand_access(config)
    base = base_context()
    context = StageContext(
        base.settings,
        base.store,
        base.tracking,
        parent=_parent_run(),
        seed=getattr(config, "seed", 0),
        on_progress=_ProgressArtifact(label),
        device_slots=gpu_slots,
        secrets=partial(_environment, config),
    )
    refs = {
        name: value.ref if isinstance(value, StageResult) else value
        for name, value in inputs.items()
    }
    result = run_stage(
        *(context, stage, config, refs),
        name=label,
        is_patient=is_patient,
        without=() if reads_weights else WEIGHTS,
        **_share(base.settings, config, place, by_ranks)._asdict(),
    )
    how = "found in the store" if result.cached else f"{result.seconds:.1f} s"
    logger.info("%s: %s", label, how)
    return result


def _environment(config: BaseModel) -> dict[str, str]:
    """What a stage's trainer is told besides: its judge's key, and where judges may be."""
    return {**judge_keys(config), **environment_of_trainers()}


class _Share(NamedTuple):
    """A stage's ranks, the threads of each, and its GPUs, or slots for them, in all."""

    num_threads: int
    num_ranks: int
    num_devices: int


def _share(settings: Settings, config: BaseModel, place: Place | None, by_ranks: bool) -> _Share:
    trainer = trainer_of(config)
    ranks = trainer.ranks if trainer else 1
    # DeepSpeed's ranks count as if they had a GPU each also where there is none.
    has_gpus = settings.gpus or (trainer is not None and trainer.zero is not None)
    num_devices = (ranks if has_gpus else 1) if "gpu" in task_run.tags else 0
    threads = max(1, num_threads(place, settings.max_parallel) // ranks)
    if by_ranks and not has_gpus and (trainer is None or trainer.num_ranks == "auto"):
        ranks, threads = _auto_ranks(trainer, threads)
    return _Share(threads, ranks, num_devices)


def _auto_ranks(trainer: TrainerConfig | None, cores: int) -> tuple[int, int]:
    """Ranks, and threads of each, on so many cores: a rank a core, but none without rows.

    Where a batch has fewer rows than there are ranks, each would pass all of them.
    """
    rows = getattr(trainer, "batch_size", None) or getattr(trainer, "train_batch", None) or cores
    ranks = min(cores, rows)
    return ranks, cores // ranks


def num_threads(place: Place | None, cores: int) -> int:
    """One core for each of like stages, as often as they fill the machine; the rest share it out.

    Five on two cores: 1, 1, 1, 1 and 2 threads. Three on eight cores: 2 each.
    """
    if place is None:
        return 1
    index, number = place
    rest = number % cores
    return cores // rest if index >= number - rest else 1


class _ProgressArtifact:
    """A Prefect progress artifact per stage, created on the first report, updated sparingly."""

    def __init__(self, label: str) -> None:
        self.label = label
        self.artifact: UUID | None = None
        self.updated = 0.0
        self.logged = time.monotonic()

    def __call__(self, progress: Progress) -> None:
        if not progress.total:
            return
        is_done = progress.done >= progress.total
        now = time.monotonic()
        if not is_done and now - self.updated < SECONDS_BETWEEN_UPDATES:
            return
        self.updated = now
        if now - self.logged >= SECONDS_BETWEEN_LINES:
            self.logged = now
            logger.info("%s: %d of %d", self.label, progress.done, progress.total)
        percent = 100.0 * progress.done / progress.total
        if self.artifact is None:
            self.artifact = create_progress_artifact(  # type: ignore[assignment]
                progress=percent, description=f"{self.label}: {progress.done}/{progress.total}"
            )
        else:
            update_progress_artifact(artifact_id=self.artifact, progress=percent)
