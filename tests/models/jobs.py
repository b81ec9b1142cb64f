"""Jobs of the warm server, as a task makes them, and what ends trainers in their middle."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile
from types import ModuleType
from typing import Any

import psutil
import pytest

from tests.models import stopping
from tests.models.conftest import run_stage
from trimtab.infra.processes import launch as launch_module
from trimtab.infra.processes.launch import running_fork_server
from trimtab.models.specs import SPECS
from trimtab.models.training import checkpoint


def read_by(stage: str, **inputs: Path) -> dict[str, Path]:
    """Those of some inputs that a stage reads."""
    known, takes_any = SPECS[stage].inputs, SPECS[stage].mapping is not None
    return {
        name: path
        for name, path in inputs.items()
        if re.sub(r"_\d+$", "", name) in known or (takes_any and name != "data")
    }


def job(
    workdir: Path,
    config: Any,
    data: Path,
    num_ranks: int = 2,
    stage: str = "sft",
    inputs: Mapping[str, Path] = {},
    gpus: Sequence[str] = (),
    **train: Any,
) -> Path:
    changed = config
    if hasattr(config, "train"):
        changed = config.model_copy(update={"train": config.train.model_copy(update=train)})
    workdir.mkdir(exist_ok=True)
    read = read_by(stage, **({"data": data} | dict(inputs)))
    content = {
        "stage": stage,
        "config": changed.model_dump(mode="json"),
        "inputs": {name: str(path) for name, path in read.items()},
        "workdir": str(workdir),
        "num_ranks": num_ranks,
        "gpus": list(gpus),
    }
    path = workdir / "job.json"
    path.write_text(json.dumps(content))
    return path


def launch(job_path: Path, **keywords: Any) -> float:
    """As the product's; a trainer under ZeRO is forked by a server that has DeepSpeed loaded.

    tests/models/training/test_zero.py has such trainers of the product's own server.
    """
    config = json.loads(job_path.read_text())["config"]
    if (config.get("train") or config).get("zero") is not None:
        keywords["preload"] = "tests.models.preload_zero"
    return launch_module.launch(job_path, **keywords)


@contextmanager
def stopped_at(step: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Inside, a trainer has this process get a SIGTERM once it has done so many steps.

    `launch` must hand it on, and raise TrainerStoppedError.
    """
    drain = launch_module._drain
    previous = signal.signal(signal.SIGTERM, drain.handle)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(drain, "depth", 1)  # so that it does not end this process afterwards
            patch.setitem(launch_module.launch.__kwdefaults__, "entry", stopping.__name__)
            patch.setenv(stopping.STEP, str(step))
            with NamedTemporaryFile("w", delete=False) as orchestrator:
                orchestrator.write(str(os.getpid()))
            patch.setenv(stopping.ORCHESTRATOR, orchestrator.name)
            with pytest.raises(launch_module.TrainerStoppedError):
                yield
    finally:
        drain.requested = False
        signal.signal(signal.SIGTERM, previous)


def kill_a_rank(workdir: Path) -> threading.Thread:
    """Kill the one rank that the trainer itself has started, once it trains."""

    def kill() -> None:
        while not (workdir / "metrics.jsonl").exists():
            time.sleep(0.01)
        server = running_fork_server(launch_module.PRELOAD).pid
        below = psutil.Process(server).children(recursive=True)
        (rank,) = [process for process in below if process.ppid() != server]
        rank.kill()

    thread = threading.Thread(target=kill)
    thread.start()
    return thread


class Killed(BaseException):
    """Stands for kill -9: nothing in the trainer catches it."""


def die_after(monkeypatch: pytest.MonkeyPatch, module: Any, calls: int) -> None:
    """Raise at the call number `calls` of the module's checkpoint function, before it saves."""
    original, count = checkpoint.checkpoint_or_stop, 0

    def counting(*arguments: Any) -> None:
        nonlocal count
        count += 1
        if count == calls:
            raise Killed
        original(*arguments)

    monkeypatch.setattr(module, "checkpoint_or_stop", counting)


def killed_and_whole(
    monkeypatch: pytest.MonkeyPatch,
    loop: ModuleType,
    step: int,
    stage: str,
    config: Any,
    folder: Path,
    **inputs: Path,
) -> tuple[Path, Path]:
    """Outputs of a stage that was killed after a step and then went on, and of one that was not."""
    whole = run_stage(stage, config, folder / "whole", **inputs)
    with monkeypatch.context() as patch:
        die_after(patch, loop, step)
        with pytest.raises(Killed):
            run_stage(stage, config, folder / "killed", **inputs)
    return run_stage(stage, config, folder / "killed", **inputs), whole
