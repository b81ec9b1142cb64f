"""Run one stage: find its artifact in the store, or compute and publish it.

A stage's key is sha256 over its name, config, input digests and code version. A committed artifact
under the key means the work is done: one mechanism for the cache, for resuming and for lineage.
"""

from __future__ import annotations

import json
import logging
import math
import os
import platform
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from trimtab.infra.processes.gpus import hold_gpus
from trimtab.infra.processes.launch import (
    LOG_NAME,
    METRICS_NAME,
    LineTail,
    launch,
    stop_trainers_on_sigterm,
    wait_unless_stopped,
)
from trimtab.infra.processes.locks import file_lock, hold_slots
from trimtab.infra.settings import Settings
from trimtab.infra.store.checkpoints import CheckpointUploader, restore_newest
from trimtab.infra.store.manifest import Manifest, Provenance, StorageError
from trimtab.infra.store.store import Store, open_store
from trimtab.infra.tracking.runs import Input, TrackedRun, Tracking
from trimtab.models.config.base import values_in_key
from trimtab.models.data.records import ArtifactRef
from trimtab.tasks.cache_key import (
    CodeChangedError,
    StageModules,
    code_of,
    library_versions,
    stage_key,
)
from trimtab.tasks.resources import ONE_THREAD, Share

logger = logging.getLogger(__name__)


def run_stage(
    context: StageContext,
    stage: str,
    config: BaseModel,
    inputs: Mapping[str, ArtifactRef],
    *,
    name: str | None = None,
    share: Share = ONE_THREAD,
    without: Collection[str] = (),
) -> StageResult:
    """Return the stage's artifact, running its trainer only if the store has none.

    Two runners of one key, in whatever process of this machine: the second waits and then finds
    the first one's artifact. An interrupted stage continues from its newest checkpoint.
    `name` labels the run in MLflow and in progress reports; it takes no part in the key. The
    trainer holds `share.num_devices` of the context's device slots and, on a machine with GPUs, as
    many of those. Folders `without` of inputs, which it does not read, are not brought.

    Raises StageInputError, trimtab.infra.processes.launch.TrainerError, StageOutputError,
    CorruptArtifactError, trimtab.infra.processes.gpus.TooFewGPUsError. The work folder with log and
    checkpoints then stays for the next try.
    """
    code = code_of(context.modules, stage)
    values = config.model_dump(mode="json")
    key = stage_key(stage, values_in_key(config), inputs, code)
    workdir = context.settings.work / f"{stage}-{key[:16]}"
    place = (workdir, share.num_threads, share.num_ranks, without)
    job = StageJob(stage, name or stage, key, values, inputs, code, *place)
    manifest = context.store.find(stage, key)
    if manifest is not None and not workdir.exists():
        return _cached(context, job, manifest)
    locks = context.settings.work / ".locks"
    with file_lock(locks / f"{workdir.name}.lock", wait_unless_stopped):
        manifest = context.store.find(stage, key)
        if manifest is not None:
            _clean_up(context, job)
            return _cached(context, job, manifest)
        slots = [locks / f"slot-{index}.lock" for index in range(context.settings.max_parallel)]
        count, wait = share.num_threads * share.num_ranks, wait_unless_stopped
        with (
            hold_slots(slots, count, is_patient=share.is_patient, wait=wait),
            hold_gpus(context.settings.gpus, share.num_devices, locks) as gpus,
            context.device_slots(share.num_devices),
            stop_trainers_on_sigterm(),
        ):
            return _compute(context, replace(job, gpus=gpus))


def _cached(context: StageContext, job: StageJob, manifest: Manifest) -> StageResult:
    context.tracking.background.submit(partial(_note, context, job, manifest))
    return result_of(manifest)


def _note(context: StageContext, job: StageJob, manifest: Manifest) -> None:
    with tracked(context, job, manifest):
        pass


def _compute(context: StageContext, job: StageJob) -> StageResult:
    logger.debug("stage %s: running in %s", job.name, job.workdir)
    context.fence()
    with tracked(context, job) as run:
        job_path = _prepare(context, job)
        with CheckpointUploader(context.store, job.key, job.workdir / "checkpoints") as uploader:
            seconds = _train(context, job, job_path, run)
            context.fence()
            uploader.discard()
        if code_of(context.modules, job.stage) != job.code:
            _clean_up(context, job)
            raise CodeChangedError(job.name)
        manifest = _publish(context, job, seconds)
        run.log(**outcome_of(manifest))
    _clean_up(context, job)
    return result_of(manifest, cached=False, seconds=seconds)


def _prepare(context: StageContext, job: StageJob) -> Path:
    """Fill the work folder: inputs, newest checkpoint, job file."""
    output = job.workdir / "output"
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir(parents=True)
    (job.workdir / "inputs").mkdir(exist_ok=True)
    paths = {}
    for name, ref in job.inputs.items():
        paths[name] = str(job.workdir / "inputs" / name)
        manifest = _resolve(context, name, ref)
        context.store.materialise(
            manifest, Path(paths[name]), lambda file: file.partition("/")[0] not in job.without
        )
    if restore_newest(context.store, job.key, job.workdir / "checkpoints") is None:
        (job.workdir / METRICS_NAME).unlink(missing_ok=True)
    content = {
        "stage": job.stage,
        "config": job.config,
        "inputs": paths,
        "workdir": str(job.workdir),
        "num_threads": job.num_threads,
        "num_ranks": job.num_ranks,
        "gpus": list(job.gpus),
    }
    path = job.workdir / "job.json"
    path.write_text(json.dumps(content, indent=1))
    return path


def _resolve(context: StageContext, name: str, ref: ArtifactRef) -> Manifest:
    manifest = context.store.find(ref.stage, ref.key)
    if manifest is None or manifest.digest != ref.digest:
        fault = "no such artifact" if manifest is None else f"digest {manifest.digest}"
        raise StageInputError(
            f"input {name!r}: {ref} is not in the store {context.store.url} ({fault}); run the "
            f"stage {ref.stage!r} again, or open the store it was published to"
        )
    return manifest


def _train(context: StageContext, job: StageJob, job_path: Path, run: TrackedRun) -> float:
    tail = LineTail(job.workdir / METRICS_NAME)
    while tail.read():  # of an attempt before; a checkpoint's is another file, read as a whole
        pass
    progress = StageProgress()

    def read_metrics() -> None:
        while lines := tail.read():
            run.log_lines(lines)
            progress.update(lines)
            context.on_progress(progress)

    try:
        return launch(
            job_path,
            entry=context.modules.entry,
            preload=context.modules.preload,
            num_threads=job.num_threads,
            on_report=read_metrics,
            env={"TRIMTAB_ANSWERS": str(context.settings.answers), **context.secrets()},
        )
    finally:
        while lines := tail.read():  # of a trainer that was killed with this call
            run.log_lines(lines)


def _publish(context: StageContext, job: StageJob, seconds: float) -> Manifest:
    output = job.workdir / "output"
    summary = read_summary(output)
    for name in (METRICS_NAME, LOG_NAME):  # lineage; outside the digest
        if (job.workdir / name).is_file():
            shutil.copyfile(job.workdir / name, output / name)
    parents = {name: asdict(ref) for name, ref in job.inputs.items()}
    versions = {"code": job.code, "python": platform.python_version(), **library_versions()}
    return context.store.publish(
        job.stage, job.key, output, Provenance(job.config, parents, versions, seconds, summary)
    )


def _clean_up(context: StageContext, job: StageJob) -> None:
    """Remove checkpoints and work folder after publishing; a failure is only logged."""
    try:
        context.store.delete_checkpoints(job.key)
        if job.workdir.exists():  # not where this run has waited for the one that published
            shutil.rmtree(job.workdir)
    except (OSError, StorageError) as error:
        logger.warning(
            "stage %s is published, but its work folder was not removed: %s", job.name, error
        )


def manifest_of(store: Store, ref: ArtifactRef) -> Manifest:
    """The manifest of an artifact that a run has made or used; LookupError where it is gone."""
    manifest = store.find(ref.stage, ref.key)
    if manifest is None:
        raise LookupError(f"artifact {ref} vanished from {store.url}")
    return manifest


def result_of(manifest: Manifest, *, cached: bool = True, seconds: float = 0.0) -> StageResult:
    """The result of a stage whose artifact has this manifest; by default it was in the store."""
    ref = ArtifactRef(manifest.stage, manifest.key, manifest.digest)
    return StageResult(ref, dict(manifest.summary), cached, seconds)


class StageInputError(ValueError):
    """An input is not in the store, or its digest differs."""


class StageOutputError(Exception):
    """A trainer ended without error but left no usable output."""


@dataclass
class StageProgress:
    """The progress of a running stage: work done of all, and the newest value of each metric.

    part: words for what it does after its training, counted by itself.
    """

    done: int = 0
    total: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    part: str = ""

    def update(self, lines: Sequence[str]) -> None:
        """Take further lines of the stage's metrics.jsonl."""
        for line in lines:
            try:
                record = json.loads(line)
            except ValueError:  # left in pieces by a trainer that was killed before
                continue
            if "progress" in record:
                self.done, self.total = record["progress"]
                self.part = record.get("part", "")
            self.metrics.update(record.get("metrics", {}))


@dataclass(frozen=True)
class StageContext:
    """Settings, connections and functions that all stages of a run share.

    `parent` is the MLflow run that those of the stages nest in, None without one. `fence` is called
    before a stage is computed, and before it is published. `on_progress` is told what a trainer has
    done, always by the same object. `device_slots` is held around a trainer, for as many devices as
    it takes; those of this machine's cores are the engine's own. `secrets` are environment
    variables for the trainer alone, asked for when there is one.
    """

    settings: Settings
    store: Store
    tracking: Tracking
    parent: TrackedRun | None = None
    seed: int = 0
    on_progress: Callable[[StageProgress], None] = lambda _: None
    modules: StageModules = field(default_factory=StageModules)
    device_slots: Callable[[int], AbstractContextManager[None]] = lambda _: nullcontext()
    fence: Callable[[], None] = lambda: None
    secrets: Callable[[], Mapping[str, str]] = dict

    @classmethod
    def open(cls, settings: Settings, experiment: str, **more: Any) -> StageContext:
        """Open the store and the tracking that `settings` name."""
        tracking = Tracking.from_settings(settings, experiment)
        return cls(settings, open_store(settings.store_url), tracking, **more)


@dataclass(frozen=True)
class StageResult:
    """A stage's artifact, its final numbers, and whether and how long it had to be computed."""

    ref: ArtifactRef
    summary: dict[str, Any]
    cached: bool
    seconds: float


@dataclass(frozen=True)
class StageJob:
    """One call of run_stage, resolved; `without` are folders of inputs that it does not read."""

    stage: str
    name: str
    key: str
    config: dict[str, Any]
    inputs: Mapping[str, ArtifactRef]
    code: str
    workdir: Path
    num_threads: int
    num_ranks: int
    without: Collection[str] = ()
    gpus: tuple[str, ...] = ()


SUMMARY_NAME = "summary.json"


def read_summary(output: Path) -> dict[str, Any]:
    """A trainer's summary.json: a flat object of finite numbers, strings, booleans and nulls.

    Raises StageOutputError naming what is missing or wrong.
    """
    path = output / SUMMARY_NAME
    try:
        summary = json.loads(path.read_text())
    except (FileNotFoundError, ValueError) as error:
        raise StageOutputError(f"the trainer left no readable {path}: {error}") from error
    if not isinstance(summary, dict):
        raise StageOutputError(f"{path} must hold an object, found {type(summary).__name__}")
    for name, value in summary.items():
        if not isinstance(value, int | float | str | None):
            raise StageOutputError(f"{path}: {name} must be one value, found {value!r}")
        if isinstance(value, float) and not math.isfinite(value):
            raise StageOutputError(f"{path}: {name} is {value}: training has diverged")
    return summary


@contextmanager
def tracked(
    context: StageContext, job: StageJob, cached: Manifest | None = None
) -> Iterator[TrackedRun]:
    """The stage's MLflow run, nested in the context's, with config and inputs logged.

    cached: an artifact that the store has already, whose outcome is logged as well.
    """
    tags = {
        "trimtab.stage": job.stage,
        "trimtab.key": job.key,
        "trimtab.cached": str(cached is not None).lower(),
        "trimtab.seed": str(context.seed),
        "trimtab.host": os.uname().nodename,
    }
    with context.tracking.start_run(job.name, parent=context.parent, tags=tags) as run:
        run.log(params=job.config, **(outcome_of(cached) if cached else {}))
        place = f"{context.store.url}/artifacts"
        run.log_inputs(
            [
                Input(name, ref.digest, f"{place}/{ref.stage}/{ref.key}", ref.stage)
                for name, ref in job.inputs.items()
            ]
        )
        yield run


def outcome_of(manifest: Manifest) -> dict[str, Any]:
    """The arguments of `TrackedRun.log` for a finished stage."""
    numbers = {k: float(v) for k, v in manifest.summary.items() if isinstance(v, int | float)}
    return {
        "metrics": {f"summary/{name}": value for name, value in numbers.items()},
        "tags": {"trimtab.digest": manifest.digest},
    }
