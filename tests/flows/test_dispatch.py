"""Runs on the one-server stack that are killed or cancelled."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import pytest

from tests.flows.running_stack import Running
from trimtab.infra.prefect.reconciler import SETTLED

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


def test_a_cancelled_run_stays_cancelled_and_so_does_one_that_crashed_at_that_moment(
    running: Running,
) -> None:
    run = running.start_and_train(seed=5)
    cancelling = {"type": "CANCELLING", "name": "Cancelling"}
    answer = running.prefect("POST", f"flow_runs/{run['id']}/set_state", {"state": cancelling})
    assert answer.json()["status"] == "ACCEPT", answer.text
    deadline = time.monotonic() + 120
    while running.state_of(run)["type"] != "CANCELLED":
        assert time.monotonic() < deadline, running.state_of(run)
        time.sleep(0.5)
    since = time.monotonic()
    _let_one_crash_that_is_being_cancelled(running)
    while time.monotonic() < since + SETTLED + 10:  # as long as a crashed one waits, and more
        time.sleep(1)
    assert running.state_of(run)["type"] == "CANCELLED"
    assert not running.processes("prefect.engine")


def _let_one_crash_that_is_being_cancelled(running: Running) -> None:
    """Its worker was slow to say that it had cancelled it: it counts as crashed, for a while."""
    run = running.start("label-audit", {"recipe": "smoke"}, {"type": "PENDING"}).json()
    for state in ("RUNNING", "CANCELLING", "CRASHED"):
        running.force(run, state)
    deadline = time.monotonic() + 120
    while running.state_of(run)["type"] == "CRASHED":
        assert time.monotonic() < deadline
        time.sleep(0.5)
    ended = running.state_of(run)
    assert (ended["type"], "being cancelled" in ended["message"]) == ("CANCELLED", True), ended


def test_a_run_that_crashed_goes_on_though_prefect_s_server_died_at_that_moment(
    running: Running,
) -> None:
    """What the server was about to do, and remembers in memory, is not needed."""
    run = running.start_and_train(seed=6)
    for victim in ("prefect.engine", "trimtab.infra.prefect.app", "prefect.reconciler"):
        for process in running.processes(victim):
            os.kill(process, signal.SIGKILL)
    running.wait_for_prefect()
    deadline = time.monotonic() + 300
    while running.state_of(run)["type"] != "COMPLETED":
        assert time.monotonic() < deadline, running.state_of(run)
        time.sleep(0.5)
