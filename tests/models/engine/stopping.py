"""The trainers' entry, for a trainer that sees to its being stopped after so many steps.

It sends a SIGTERM to whoever launched it and waits for its own, as a test that watched its metrics
from outside would find a trainer of a few fast steps at its end already.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from models.engine import entry, launcher, ranks, signals

STEP = "STOP_AT_STEP"
ORCHESTRATOR = "STOP_ORCHESTRATOR"

_become_launcher = launcher.become_launcher
_stop_requested = signals.stop_requested


def main(job_path: str) -> None:
    """Run the job as `models.engine.entry` does, until it is stopped."""
    metrics, mark = Path(job_path).parent / "metrics.jsonl", f'"step": {os.environ[STEP]},'

    def stop_requested() -> bool:
        if ranks.is_first() and mark in metrics.read_text():
            os.kill(int(os.environ[ORCHESTRATOR]), signal.SIGTERM)
            while not _stop_requested():
                time.sleep(0.001)
        return _stop_requested()

    signals.stop_requested = stop_requested
    launcher.become_launcher = lambda _, *job: _become_launcher(__name__, *job)
    entry.main(job_path)


if __name__ == "__main__":
    main(sys.argv[1])
