"""A process whose flow run was started again: it ends before it touches anything."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.flows.prefect_api import deployment, force, start, state_of
from trimtab.infra.prefect import fence

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("prefect")]


@contextmanager
def _process(run: str, place: Path) -> Iterator[subprocess.Popen[str]]:
    """What a worker starts for a run."""
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "prefect.engine"],
        env={
            **os.environ,
            "FENCED_PLACE": str(place),
            "PREFECT__FLOW_ENTRYPOINT": "tests.flows.fenced.fenced",
            fence.FLOW_RUN_VARIABLE: run,
            "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), *sys.path]),
        },
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def _wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 60
    while not path.exists():
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()
        time.sleep(0.05)


def _take_again(run: str) -> dict[str, object]:
    """As where its worker was slow: the state that it is in then."""
    time.sleep(fence._TOLERANCE.total_seconds())  # at least 20 s where nobody forces it
    for state in ("CRASHED", "SCHEDULED", "PENDING"):
        force(run, state)
    return state_of(run)


@pytest.mark.parametrize("reached", ["import", "flow"])
def test_an_older_start_ends_and_changes_nothing(reached: str, tmp_path: Path) -> None:
    """Slow to import, then in the middle of its flow, which finds out by itself."""
    run = start(deployment("fenced"), "PENDING")
    if reached == "flow":
        (tmp_path / "after import").touch()
    with _process(run, tmp_path) as process:
        _wait_for(tmp_path / reached, process)
        newer = _take_again(run)
        (tmp_path / "after import").touch()
        _, said = process.communicate(timeout=60)
    assert process.returncode == 0, said
    assert "started again" in said and run in said
    assert state_of(run) == newer
    assert (tmp_path / "flow").exists() == (reached == "flow")


def test_the_only_start_of_a_run_goes_on_and_so_does_its_second(tmp_path: Path) -> None:
    run = start(deployment("fenced"), "PENDING", "RUNNING", "CRASHED", "SCHEDULED", "PENDING")
    for name in ("after import", "after flow"):
        (tmp_path / name).touch()
    with _process(run, tmp_path) as process:
        _, said = process.communicate(timeout=60)
    assert process.returncode == 0, said
    assert state_of(run)["type"] == "COMPLETED"


def test_wrong_parameters_fail_a_run_at_once(tmp_path: Path) -> None:
    """Also one that no flow has, which a deployment made by `prefect deploy` does not refuse."""
    given = {"no_such_parameter": 1}
    run = start(deployment("fenced"), "PENDING", parameters=given, enforce_parameter_schema=False)
    (tmp_path / "after import").touch()
    with _process(run, tmp_path) as process:
        process.communicate(timeout=60)
    found = state_of(run)
    assert found["type"] == "FAILED"
    assert "no_such_parameter: no parameter of the flow fenced" in found["message"]
    assert not (tmp_path / "flow").exists()
