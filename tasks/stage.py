"""Run one stage: find its artifact in the store, or compute and publish it.

A stage's key is sha256 over its name, config, input digests and code version. A committed artifact
under the key means the work is done: one mechanism for the cache, for resuming and for lineage.
"""

from __future__ import annotations

import json
import logging
import platform
import shutil
import time
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from pydantic import BaseModel

from infra.checkpoints import CheckpointUploader, restore_newest
from infra.gpus import own_gpus
from infra.launch import (
    LOG_NAME,
    METRICS_NAME,
    drain_on_sigterm,
    launch,
    wait_unless_stopped,
)
from infra.locks import file_lock, some_of
from infra.manifest import Manifest, StorageError
from infra.tail import LineTail
from infra.tracking import TrackedRun
from models.config.base import deciding
from models.data.records import ArtifactRef
from tasks.code_version import library_versions
from tasks.stage_context import (
    Progress,
    StageContext,
    StageInputError,
    StageJob,
    StageOutputError,
    StageResult,
    Trainers,
)
from tasks.stage_key import CodeChangedError, code_of, stage_key
from tasks.stage_reporting import ProgressReporter, of_artifact, read_summary, tracked

__all__ = [
    "Progress",
    "StageContext",
    "StageInputError",
    "StageOutputError",
    "StageResult",
    "Trainers",
    "result_of",
    "run_stage",
]

logger = logging.getLogger(__name__)

SECONDS_BETWEEN_BATCHES = 1.0  # of metrics for MLflow, each a transaction or a request


def run_stage(
    context: StageContext,
    stage: str,
    config: BaseModel,
    inputs: Mapping[str, ArtifactRef],
    *,
    name: str | None = None,
    num_threads: int = 1,
    num_ranks: int = 1,
    num_devices: int = 0,
    is_patient: bool = False,
    without: Collection[str] = (),
) -> StageResult:
    """Return the stage's artifact, running its trainer only if the store has none.

    Two runners of one key, in whatever process of this machine: the second waits and then finds
    the first one's artifact. A run that was interrupted continues from its newest checkpoint.
    `name` labels the run in MLflow and in progress reports; it takes no part in the key. The
    trainer holds `num_devices` of the context's device slots and, on a machine with GPUs, as many
    of those. One that `is_patient` starts only while no other waits for a core of this machine.
    Folders of inputs that it does not read, as those of weights, are not brought: `without`.

    Raises StageInputError, infra.launch.TrainerError, StageOutputError, CorruptArtifactError,
    infra.gpus.TooFewGPUsError. The work folder with log and checkpoints then stays for the next
    try.
    """
    code = code_of(context.trainers, stage)
    values = config.model_dump(mode="json")
    key = stage_key(stage, deciding(config), inputs, code)
    workdir = context.settings.work / f"{stage}-{key[:16]}"
    place = (workdir, num_threads, num_ranks, without)
    job = StageJob(stage, name or stage, key, values, inputs, code, *place)
    found = context.store.find(stage, key)
    if found is not None and not workdir.exists():
        return _cached(context, job, found)
    locks = context.settings.work / ".locks"
    with file_lock(locks / f"{workdir.name}.lock", wait_unless_stopped):
        found = context.store.find(stage, key)
        if found is not None:
            _clean_up(context, job)
            return _cached(context, job, found)
        slots = [locks / f"slot-{index}.lock" for index in range(context.settings.max_parallel)]
        count, wait = num_threads * num_ranks, wait_unless_stopped
        with (
            some_of(slots, count, is_patient=is_patient, wait=wait),
            own_gpus(context.settings.gpus, num_devices, locks) as gpus,
            context.device_slots(num_devices),
            drain_on_sigterm(),
        ):
            return _compute(context, replace(job, gpus=gpus))


def _cached(context: StageContext, job: StageJob, manifest: Manifest) -> StageResult:
    context.tracking.background.later(partial(_note, context, job, manifest))
    return result_of(manifest)


def _note(context: StageContext, job: StageJob, manifest: Manifest) -> None:
    with tracked(context, job, found=manifest):
        pass


def _compute(context: StageContext, job: StageJob) -> StageResult:
    logger.info("stage %s: running in %s", job.name, job.workdir)
    with tracked(context, job) as run:
        job_path = _prepare(context, job)
        with CheckpointUploader(context.store, job.key, job.workdir / "checkpoints") as uploader:
            seconds = _train(context, job, job_path, run)
            uploader.discard()
        if code_of(context.trainers, job.stage) != job.code:
            _clean_up(context, job)
            raise CodeChangedError(job.name)
        manifest = _publish(context, job, seconds)
        run.log(**of_artifact(manifest))
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
        context.store.materialise(manifest, Path(paths[name]), job.without)
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
        found = "no such artifact" if manifest is None else f"digest {manifest.digest}"
        raise StageInputError(
            f"input {name!r}: {ref} is not in the store {context.store.url} ({found}); run the "
            f"stage {ref.stage!r} again, or open the store it was published to"
        )
    return manifest


def _train(context: StageContext, job: StageJob, job_path: Path, run: TrackedRun) -> float:
    tail = LineTail(job.workdir / METRICS_NAME)
    report = ProgressReporter(context, job)
    sent_at = time.monotonic()

    def on_lines(lines: list[str]) -> None:
        nonlocal sent_at
        report(lines)
        if time.monotonic() - sent_at >= SECONDS_BETWEEN_BATCHES:
            run.pump(tail)
            sent_at = time.monotonic()

    try:
        return launch(
            job_path,
            entry=context.trainers.entry,
            preload=context.trainers.preload,
            num_threads=job.num_threads,
            on_lines=on_lines,
            env={"TRIMTAB_ANSWERS": str(context.settings.answers), **context.secrets()},
        )
    finally:
        run.pump(tail, is_last=True)


def _publish(context: StageContext, job: StageJob, seconds: float) -> Manifest:
    output = job.workdir / "output"
    summary = read_summary(output)
    for name in (METRICS_NAME, LOG_NAME):  # lineage; outside the digest
        if (job.workdir / name).is_file():
            shutil.copyfile(job.workdir / name, output / name)
    return context.store.publish(
        job.stage,
        job.key,
        output,
        config=job.config,
        parents={
            name: {"stage": ref.stage, "key": ref.key, "digest": ref.digest}
            for name, ref in job.inputs.items()
        },
        versions={"code": job.code, "python": platform.python_version(), **library_versions()},
        seconds=seconds,
        summary=summary,
    )


def _clean_up(context: StageContext, job: StageJob) -> None:
    """Once published, checkpoints and work folder are litter; failing to remove it is no harm."""
    try:
        context.store.delete_checkpoints(job.key)
        if job.workdir.exists():  # not where this run has waited for the one that published
            shutil.rmtree(job.workdir)
    except (OSError, StorageError) as error:
        logger.warning("stage %s is published, but not all was tidied up: %s", job.name, error)


def result_of(manifest: Manifest, *, cached: bool = True, seconds: float = 0.0) -> StageResult:
    """What a stage returns for an artifact; by default one that was found in the store."""
    ref = ArtifactRef(manifest.stage, manifest.key, manifest.digest)
    return StageResult(ref, dict(manifest.summary), cached, seconds)
