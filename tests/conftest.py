"""What holds for every test."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

# A script that starts the tests with `&` leaves SIGINT ignored, for them and their children, so
# that no test of an interruption could pass.
signal.signal(signal.SIGINT, signal.default_int_handler)

# For the processes of xdist, and for all that tests start.
QUICK_START = str(Path(__file__).parent / "quick_start")
inherited = list(filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)))
if QUICK_START not in inherited:
    os.environ["PYTHONPATH"] = os.pathsep.join([QUICK_START, *inherited])

# The files that take minutes: what begins last should not be what ends last. The first one makes
# the finished run and the deployment that others wait for; those behind it need neither.
LONGEST = (
    *("service", "gpu_bundle", "audit", "wheel", "dispatch", "suspended", "smoke", "study_runs"),
    *("backup", "compare", "avx2", "supported_models", "live_bytes", "vllm_sampler"),
    *("constitution_run", "rlaif_http", "adding_a_stage"),
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put LONGEST first, and leave all else in its order."""
    names = [f"test_{name}.py" for name in LONGEST]
    place = {name: number for number, name in enumerate(names)}
    items.sort(key=lambda item: place.get(item.path.name, len(names)))
