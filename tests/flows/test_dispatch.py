"""Runs on the one-server stack that are killed, cancelled or do not start."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import pytest

from tests.flows.running_stack import Running
from trimtab.flows.deploy import SETTLED, STARTED

pytestmark = pytest.mark.slow


def test_killed_runs_go_on_without_anybody(running: Running) -> None:
    """One with worker and server, as where the host dies; one alone, before the first is missed."""
    runs = []
    for seed, victims in (
        (1, ("prefect worker start", "prefect.engine", "trimtab.infra.prefect.app")),
        (4, ("prefect.engine",)),
    ):
        runs.append(running.start_and_train(seed))
        _have_a_task_wait_for_its_retry(running, runs[-1])
        for process in [each for victim in victims for each in running.processes(victim)]:
            os.kill(process, signal.SIGKILL)
        running.wait_for_prefect()
    deadline = time.monotonic() + 300
    for run in runs:
        while running.state_of(run)["type"] != "COMPLETED":
            assert time.monotonic() < deadline, running.state_of(run)
            time.sleep(0.5)
        assert running.prefect("GET", f"flow_runs/{run['id']}").json()["run_count"] == 2
    for run in runs:
        while left := running.left_running(run):  # the dead trainers' slots, for up to a minute
            assert time.monotonic() < deadline, left
            time.sleep(1)


def _have_a_task_wait_for_its_retry(running: Running, run: dict[str, Any]) -> None:
    state = {"type": "SCHEDULED", "name": "AwaitingRetry"}
    lost = {"flow_run_id": run["id"], "task_key": "lost", "dynamic_key": "0", "state": state}
    answer = running.prefect("POST", "task_runs/", lost)
    assert answer.status_code == 201, answer.text


def test_a_cancelled_run_stays_cancelled(running: Running) -> None:
    run = running.start_and_train(seed=5)
    cancelling = {"type": "CANCELLING", "name": "Cancelling"}
    answer = running.prefect("POST", f"flow_runs/{run['id']}/set_state", {"state": cancelling})
    assert answer.json()["status"] == "ACCEPT", answer.text
    deadline = time.monotonic() + 120
    while running.state_of(run)["type"] != "CANCELLED":
        assert time.monotonic() < deadline, running.state_of(run)
        time.sleep(0.5)
    time.sleep(SETTLED.seconds + 5)
    assert running.state_of(run)["type"] == "CANCELLED"
    assert not running.processes("prefect.engine")


def test_a_run_that_was_to_be_cancelled_is_cancelled_when_it_is_resumed(running: Running) -> None:
    """Its worker was slow to say that it had cancelled it: it counted as crashed."""
    run = running.start("label-audit", {"recipe": "smoke"}, {"type": "PENDING"}).json()
    for state in ("RUNNING", "CANCELLING", "CRASHED", "SCHEDULED"):
        running.force(run, state)
    ended = running.end_of(run, seconds=120)
    assert ended["type"] == "CANCELLED" and ended["message"].startswith("Cancelled before")


def test_a_run_that_is_taken_twice_and_does_not_start_has_crashed(running: Running) -> None:
    """Its first Pending is answered, its second is not: a worker died while submitting it again."""
    name = "trimtab: a run that does not start has crashed"
    with running.automation_within(name, 10.0) as before:  # so that nobody waits for minutes here
        assert before == STARTED.seconds
        # A run that is taken once and has crashed says that the automation is read again.
        deadline = time.monotonic() + 300
        while (ended := _never_started(running, "PENDING"))["type"] != "CRASHED":
            assert time.monotonic() < deadline, ended
        ended = _never_started(running, "PENDING", "RUNNING", "PENDING")
    assert ended["type"] == "CRASHED" and ended["message"].startswith("Not running "), ended


def _never_started(running: Running, first: str, *others: str) -> dict[str, Any]:
    """The state of a run that was in these, up to a minute after the last: where it has ended."""
    answer = running.start("label-audit", {"recipe": "smoke"}, {"type": first})
    run: dict[str, Any] = answer.json()
    for state in others:
        time.sleep(1)  # as workers do; of two at once the server may evaluate one much later
        running.force(run, state)
    try:
        return running.end_of(run, seconds=60)
    except TimeoutError:
        return running.state_of(run)
    finally:
        running.force(run, "CANCELLED")
