"""Stages by job.json, each in a fork, as a run starts them; and values from their files."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Any
from unittest.mock import patch

from pydantic import BaseModel

from trimtab.models.config.training import Precision, with_precision
from trimtab.models.gpu_check.driver import Bench, WrongError, forked, status_of
from trimtab.models.specs import SPECS, Job
from trimtab.models.training import entry

# Owner of a function, its name, and the function that takes its place.
Wrapped = tuple[Any, str, Callable[..., Any]]


def smoke_config(bench: Bench, stage: str, precision: Precision) -> Any:
    """The settings that a stage has in recipe smoke, with that precision where it has one."""
    config = SPECS[stage].config.model_validate(bench.request["smoke"][stage])
    return with_precision(config, precision)


def make_job(
    bench: Bench,
    work: Path,
    stage: str,
    config: BaseModel,
    inputs: Mapping[str, Path],
    on_cpu: bool = False,
) -> Path:
    """A job file, with its output folder, of one rank on the bench's device."""
    on_gpu = bench.device == "cuda" and not on_cpu and SPECS[stage].device == "gpu"
    (work / "output").mkdir(parents=True, exist_ok=True)
    job = Job(
        stage=stage,
        config=config.model_dump(mode="json"),
        inputs={name: str(path) for name, path in inputs.items()},
        workdir=str(work),
        gpus=[visible_gpu()] if on_gpu else [],
    )
    (work / "job.json").write_text(job.model_dump_json())
    return work / "job.json"


def visible_gpu() -> str:
    """The first GPU that this process may see, as CUDA_VISIBLE_DEVICES names it."""
    return (os.environ.get("CUDA_VISIBLE_DEVICES") or "0").split(",")[0]


def start_job(
    job: Path, environment: Mapping[str, str] | None = None, wrapped: tuple[Wrapped, ...] = ()
) -> ForkProcess:
    """Run a job in a fork that writes trainer.log."""

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
        last = log.strip().splitlines()[-1:]
        raise WrongError(f"{job.parent.name}: exit status {status}: {last}")
    return job.parent / "output"


def step_times(work: Path) -> list[float]:
    """When each step of a stage ended, seconds."""
    rows = map(json.loads, (work / "metrics.jsonl").read_text().splitlines())
    return [row["time"] for row in rows if "metrics" in row]


def tensor_gib(work: Path) -> float | None:
    """The most GiB that a stage had in tensors; None on a CPU."""
    log = (work / "trainer.log").read_text(errors="replace")
    used = re.search(r"([\d.]+) GiB in tensors", log)
    return float(used[1]) if used else None
