"""Stages by job.json, in a fork each, as a run starts them; what their files say afterwards."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

from trimtab.models.gpu_check.driver import Bench, WrongError, forked, status_of
from trimtab.models.specs import SPECS
from trimtab.models.training import entry

# Owner of a function, its name, what is called in its place with it and its arguments.
Wrapped = tuple[Any, str, Callable[..., Any]]


def with_precision(config: dict[str, Any], precision: str) -> dict[str, Any]:
    """A stage's configuration whose trainer, if it has one, multiplies so."""
    changed = {
        name: dict(value) if isinstance(value, dict) else value for name, value in config.items()
    }
    for part in (changed, changed.get("train")):
        if isinstance(part, dict) and "precision" in part:
            part["precision"] = precision
    return changed


def make_job(
    bench: Bench,
    work: Path,
    stage: str,
    config: Mapping[str, Any],
    inputs: Mapping[str, Path],
    on_cpu: bool = False,
) -> Path:
    """A job file, with its output folder, of one rank on the bench's device."""
    on_gpu = bench.device == "cuda" and not on_cpu and SPECS[stage].device == "gpu"
    (work / "output").mkdir(parents=True, exist_ok=True)
    job = {
        "stage": stage,
        "config": dict(config),
        "inputs": {name: str(path) for name, path in inputs.items()},
        "workdir": str(work),
        "num_threads": 1,
        "num_ranks": 1,
        "gpus": [visible_gpu()] if on_gpu else [],
    }
    (work / "job.json").write_text(json.dumps(job))
    return work / "job.json"


def visible_gpu() -> str:
    """The first GPU that this process may see, as CUDA_VISIBLE_DEVICES names it."""
    return (os.environ.get("CUDA_VISIBLE_DEVICES") or "0").split(",")[0]


def start_job(
    job: Path, environment: Mapping[str, str] | None = None, wrapped: tuple[Wrapped, ...] = ()
) -> int:
    """Run a job in a fork with its own log; returns the process id."""

    def run() -> None:
        os.environ.update(environment or {})
        with ExitStack() as stack:
            for owner, name, around in wrapped:
                stack.enter_context(patch.object(owner, name, around))
            entry.main(str(job))

    return forked(run, job.parent / "trainer.log")


def run_stage(job: Path, **options: Any) -> Path:
    """As `start_job`; returns the stage's output. Raises WrongError where it failed."""
    start = time.monotonic()
    status = status_of(start_job(job, **options))
    print(f"{job.parent.name}: {time.monotonic() - start:.1f} s", flush=True)
    if status != 0:
        log = (job.parent / "trainer.log").read_text(errors="replace")
        print(log[-4000:])
        raise WrongError(
            f"{job.parent.name}: exit status {status}: {log.strip().splitlines()[-1:]}"
        )
    return job.parent / "output"


def step_times(work: Path) -> list[float]:
    """When each step of a stage ended, seconds."""
    rows = map(json.loads, (work / "metrics.jsonl").read_text().splitlines())
    return [row["time"] for row in rows if "metrics" in row]


def tensor_gib(work: Path) -> float | None:
    """The most GiB that a stage had in tensors; None on a CPU."""
    found = re.search(
        r"([\d.]+) GiB in tensors", (work / "trainer.log").read_text(errors="replace")
    )
    return float(found[1]) if found else None
