"""Launching the toy trainers of toy_entry.py, and seeing their processes come and go."""

from __future__ import annotations

import json
import time
from pathlib import Path

from trimtab.infra.processes.launch import launch


def write_job(workdir: Path, do: str) -> Path:
    """A job file for toy_entry; returns its path."""
    workdir.mkdir(parents=True, exist_ok=True)
    path = workdir / "job.json"
    path.write_text(json.dumps({"do": do}))
    return path


def launch_toy(workdir: Path, do: str, **options: object) -> float:
    """Launch toy_entry's action `do` in a work folder; returns its seconds."""
    return launch(write_job(workdir, do), entry="toy_entry", preload="toy_preload", **options)  # type: ignore[arg-type]


def wait_for(path: Path, seconds: float = 10) -> str:
    """Wait for a file that is not empty; returns its text."""
    deadline = time.monotonic() + seconds
    while not path.exists() or not path.read_text():
        assert time.monotonic() < deadline, f"{path} did not appear"
        time.sleep(0.01)
    return path.read_text()


def assert_gone(pids: str, seconds: float = 5) -> None:
    """Wait until no process of these ids runs."""
    deadline = time.monotonic() + seconds
    for pid in map(int, pids.split()):
        while _running(pid):
            assert time.monotonic() < deadline, f"process {pid} was left behind"
            time.sleep(0.02)


def _running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"
