"""Two processes of one flow run: one of them ends before it touches anything."""

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


def _take_again(run: str) -> None:
    """As where it counts as dead, though it is slow or silent."""
    for state in ("CRASHED", "SCHEDULED", "PENDING"):
        force(run, state)


def _places(tmp_path: Path, *names: str) -> list[Path]:
    places = [tmp_path / name for name in names]
    for place in places:
        place.mkdir()
    return places


def _ends(process: subprocess.Popen[str], *, is_another_s: bool) -> None:
    _, said = process.communicate(timeout=60)
    assert process.returncode == 0, said
    assert ("ends, another goes on" in said) == is_another_s, said


def test_a_start_that_is_too_slow_ends_before_its_flow_begins(tmp_path: Path) -> None:
    run, (slow, newer) = start(deployment("fenced"), "PENDING"), _places(tmp_path, "slow", "newer")
    with _process(run, slow) as first, _process(run, newer) as second:
        _wait_for(slow / "import", first)
        _take_again(run)
        (newer / "after import").touch()
        _wait_for(newer / "flow", second)
        running = state_of(run)
        (slow / "after import").touch()
        _ends(first, is_another_s=True)
        assert state_of(run) == running and not (slow / "flow").exists()
        (newer / "after flow").touch()
        _ends(second, is_another_s=False)
    assert state_of(run)["type"] == "COMPLETED"


def test_of_two_processes_that_begin_at_once_one_has_the_run(tmp_path: Path) -> None:
    run, places = start(deployment("fenced"), "PENDING"), _places(tmp_path, "one", "two")
    with _process(run, places[0]) as one, _process(run, places[1]) as two:
        for place, process in zip(places, (one, two), strict=True):
            _wait_for(place / "import", process)
        for place in places:
            (place / "after import").touch()
            (place / "after flow").touch()
        said = [process.communicate(timeout=60)[1] for process in (one, two)]
    assert sum("ends, another goes on" in each for each in said) == 1, said
    assert sum((place / "flow").exists() for place in places) == 1
    assert state_of(run)["type"] == "COMPLETED"


def test_a_process_in_the_middle_of_its_flow_finds_out_by_itself(tmp_path: Path) -> None:
    run = start(deployment("fenced"), "PENDING")
    (tmp_path / "after import").touch()
    with _process(run, tmp_path) as process:
        _wait_for(tmp_path / "flow", process)
        _take_again(run)
        before = state_of(run)
        _ends(process, is_another_s=True)
    assert state_of(run) == before


def test_the_only_start_of_a_run_goes_on_and_so_does_its_second(tmp_path: Path) -> None:
    run = start(deployment("fenced"), "PENDING", "RUNNING", "CRASHED", "SCHEDULED", "PENDING")
    for name in ("after import", "after flow"):
        (tmp_path / name).touch()
    with _process(run, tmp_path) as process:
        _ends(process, is_another_s=False)
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
