"""The trainers' entry, for a trainer that sees to its run being ended after so many steps.

It sends the signal to whoever launched it and waits for its own end, as a test that watched its
metrics from outside would find a trainer of a few fast steps at its end already.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from trimtab.models.training import distributed, entry, signals

STEP = "STOP_AT_STEP"
ORCHESTRATOR = "STOP_ORCHESTRATOR"  # a file with its process id, which the signal takes away
STAGE = "STOP_STAGE"  # every stage without it
SIGNAL = "STOP_SIGNAL"  # SIGTERM without it

_stop_requested = signals.stop_requested


def main(job_path: str) -> None:
    """Run the job as `trimtab.models.training.entry` does, until it is stopped."""
    stage = json.loads(Path(job_path).read_text())["stage"]
    if os.environ.get(STAGE, stage) == stage:
        signals.stop_requested = _see_to_the_end(Path(job_path).parent / "metrics.jsonl")
    entry.main(job_path)


def _see_to_the_end(metrics: Path) -> Callable[[], bool]:
    mark = f'"step": {os.environ[STEP]},'
    number = signal.Signals[os.environ.get(SIGNAL, "SIGTERM")]

    def stop_requested() -> bool:
        if not _stop_requested() and distributed.is_rank_zero() and mark in metrics.read_text():
            _send_once(number)
            while not _stop_requested():
                time.sleep(0.001)
        return _stop_requested()

    return stop_requested


def _send_once(number: signal.Signals) -> None:
    """Of trainers that come here at the same time, one sends: it has the file to itself."""
    path = Path(os.environ[ORCHESTRATOR])
    with suppress(FileNotFoundError):
        orchestrator = int(path.read_text())
        path.unlink()
        os.kill(orchestrator, number)
