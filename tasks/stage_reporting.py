"""What a stage tells its watchers: an MLflow run, progress reports, a checked summary."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from infra.manifest import Manifest
from infra.tracking import Input, TrackedRun
from tasks.stage_context import Progress, StageContext, StageJob, StageOutputError

SUMMARY_NAME = "summary.json"


class ProgressReporter:
    """Turns lines of metrics.jsonl into Progress for the context's callback."""

    def __init__(self, context: StageContext, job: StageJob) -> None:
        self._callback = context.on_progress
        self._job = job
        self._done, self._total = 0, 0
        self._metrics: dict[str, float] = {}

    def __call__(self, lines: list[str]) -> None:
        if self._callback is None:
            return
        for line in lines:
            try:
                record = json.loads(line)
            except ValueError:  # left in pieces by a trainer that was killed before
                continue
            if "progress" in record:
                self._done, self._total = record["progress"]
            self._metrics.update(record.get("metrics", {}))
        self._callback(
            Progress(self._job.stage, self._job.name, self._done, self._total, dict(self._metrics))
        )


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
    context: StageContext, job: StageJob, found: Manifest | None = None
) -> Iterator[TrackedRun]:
    """The stage's MLflow run, nested in the context's, with config and inputs logged.

    With what is logged of the artifact, where that was `found` in the store.
    """
    tags = {
        "trimtab.stage": job.stage,
        "trimtab.key": job.key,
        "trimtab.cached": str(found is not None).lower(),
        "trimtab.seed": str(context.seed),
        "trimtab.host": os.uname().nodename,
    }
    with context.tracking.start_run(job.name, parent=context.parent, tags=tags) as run:
        run.log(params=job.config, **(of_artifact(found) if found else {}))
        place = f"{context.store.url}/artifacts"
        run.log_inputs(
            [
                Input(name, ref.digest, f"{place}/{ref.stage}/{ref.key}", ref.stage)
                for name, ref in job.inputs.items()
            ]
        )
        yield run


def of_artifact(manifest: Manifest) -> dict[str, Any]:
    """What `TrackedRun.log` takes of a finished stage."""
    numbers = {k: float(v) for k, v in manifest.summary.items() if isinstance(v, int | float)}
    return {
        "metrics": {f"summary/{name}": value for name, value in numbers.items()},
        "tags": {"trimtab.digest": manifest.digest},
    }
