"""The reconciler on a Prefect server: runs in every state, and what it does with them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from prefect.client.orchestration import get_client
from prefect.settings import PREFECT_API_URL, temporary_settings

from tests.flows.prefect_api import ask, deployment, force, start, state_of
from trimtab.infra.prefect import reconciler
from trimtab.infra.prefect.reconciler import HEARTBEAT, MAX_CRASHES, Reconciler

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("prefect")]
Sweep = Callable[..., None]


@pytest.fixture
def sweep() -> Iterator[Sweep]:
    """A sweep that takes place so many seconds from now, by what it has watched for long."""
    with (
        temporary_settings({PREFECT_API_URL: os.environ["PREFECT_API_URL"]}),
        get_client(sync_client=True) as client,
    ):

        def sweep(later: float = 600.0, watched: float = 600.0) -> None:
            one = Reconciler(client, watched)
            one.now += timedelta(seconds=later)
            one.sweep()

        yield sweep


def _beat(run: str) -> None:
    """A heartbeat of a run, now."""
    at = f"{datetime.now(UTC)}"
    resource = {"prefect.resource.id": f"prefect.flow-run.{run}"}
    event = {"occurred": at, "event": HEARTBEAT, "resource": resource, "id": str(uuid4())}
    ask("POST", "events", [{**event, "payload": {}}])
    asked, deadline = (
        {"filter": {"resource": {"id": list(resource.values())}}},
        time.monotonic() + 30,
    )
    while HEARTBEAT not in {
        each["event"] for each in ask("POST", "events/filter", asked)["events"]
    }:
        assert time.monotonic() < deadline  # it is written down a moment later
        time.sleep(0.2)


def test_a_crashed_run_that_nobody_took_up_is_scheduled_once(sweep: Sweep) -> None:
    """Whatever was to do it died with the server: that it has crashed is enough."""
    run = start(deployment("lost"), "PENDING", "RUNNING", "CRASHED")
    sweep(later=0.0)
    assert state_of(run)["type"] == "CRASHED"  # its worker may yet say more
    sweep()
    found = state_of(run)
    assert (found["name"], found["message"]) == (
        "AwaitingRetry",
        "It continues from its last checkpoint",
    )
    sweep()
    sweep()
    assert state_of(run) == found


def test_what_waits_has_ended_or_is_not_ours_is_left_alone(sweep: Sweep) -> None:
    ours = deployment("left alone")
    path = [("SCHEDULED",), ("PENDING", "RUNNING", "CANCELLING"), ("RUNNING", "COMPLETED")]
    path += [("RUNNING", "FAILED"), ("RUNNING", "CANCELLED"), ("PENDING", "RUNNING", "PAUSED")]
    runs = [start(ours, *states) for states in path]
    flow = ask("POST", "flows/", {"name": "by hand"})["id"]
    runs.append(ask("POST", "flow_runs/", {"flow_id": flow, "tags": ["trimtab"]})["id"])
    force(runs[-1], "CRASHED")
    before = [state_of(run) for run in runs]
    sweep()
    assert [state_of(run) for run in runs] == before


def test_a_run_that_crashed_while_it_was_cancelled_is_cancelled(sweep: Sweep) -> None:
    run = start(deployment("cancelled"), "PENDING", "RUNNING", "CANCELLING", "CRASHED")
    sweep()
    assert state_of(run)["type"] == "CANCELLED"
    for state in ("SCHEDULED", "PENDING", "RUNNING", "CRASHED"):  # somebody wants it after all
        force(run, state)
    sweep()
    assert state_of(run)["name"] == "AwaitingRetry"


def test_a_run_that_crashes_every_time_has_failed_and_says_so(sweep: Sweep) -> None:
    """One that never runs, whose starts Prefect's own count leaves out."""
    run = start(deployment("given up"), "PENDING", "CRASHED")
    for _ in range(MAX_CRASHES - 1):
        sweep()
        assert state_of(run)["name"] == "AwaitingRetry"
        force(run, "PENDING")
        force(run, "CRASHED")
    assert ask("GET", f"flow_runs/{run}")["run_count"] == 0
    sweep()
    found = state_of(run)
    assert found["type"] == "FAILED" and "20 times in a row" in found["message"]


@pytest.mark.parametrize(
    ("pool", "has_heart", "is_dead"),
    [("process", False, True), ("process", True, True), ("kubernetes", False, False),
     ("kubernetes", True, True)],
)  # fmt: skip
def test_a_run_without_heartbeats_is_dead_where_it_had_them_or_is_sure_to(
    sweep: Sweep, pool: str, has_heart: bool, is_dead: bool
) -> None:
    run = start(deployment("silent", pool), "PENDING", "RUNNING")
    if has_heart:
        _beat(run)
    sweep(watched=reconciler.SILENCE)  # the server was away: nobody could tell
    assert state_of(run)["type"] == "RUNNING"
    sweep(later=60.0)
    assert state_of(run)["type"] == "RUNNING"
    sweep()
    assert (state_of(run)["type"] == "CRASHED") == is_dead
    force(run, "CANCELLED")


def test_a_run_with_heartbeats_is_alive(sweep: Sweep, monkeypatch: pytest.MonkeyPatch) -> None:
    run = start(deployment("alive"), "PENDING", "RUNNING")
    _beat(run)
    monkeypatch.setattr(reconciler, "SILENCE", -1.0)
    with get_client(sync_client=True) as client:
        one = Reconciler(client, 600.0)
        one.now += timedelta(seconds=30)
        found: Any = client.read_flow_run(run)  # type: ignore[arg-type]
        assert 0 < one.see(found).silent < 60
    force(run, "CANCELLED")


@pytest.mark.parametrize(
    ("pool", "is_alive", "is_dead"),
    [("process", True, False), ("process", False, True), ("kubernetes", False, False)],
)
def test_a_run_that_does_not_start_is_dead_with_its_worker_alone(
    sweep: Sweep, pool: str, is_alive: bool, is_dead: bool
) -> None:
    run = start(deployment("slow", pool), "PENDING")
    worker = f"worker {is_alive} {pool}"
    if is_alive:
        ask("POST", f"work_pools/{pool}/workers/heartbeat", {"name": worker})
    ask("PATCH", f"flow_runs/{run}/labels", {"prefect.worker.name": worker})
    sweep(later=290.0)
    assert state_of(run)["type"] == "PENDING"
    sweep()
    assert (state_of(run)["type"] == "CRASHED") == is_dead
    force(run, "CANCELLED")


def test_no_task_of_a_run_that_has_ended_stays_unfinished(sweep: Sweep) -> None:
    ours, tasks = deployment("tasks"), {}
    for state in ("FAILED", "CANCELLED", "RUNNING"):
        run = start(ours, "PENDING", "RUNNING")
        for kind in ("PENDING", "RUNNING", "COMPLETED"):
            body = {"flow_run_id": run, "task_key": kind, "dynamic_key": "0"}
            made = ask("POST", "task_runs/", {**body, "state": {"type": kind}})
            tasks[state, kind] = made["id"]
        if state != "RUNNING":
            force(run, state)
    sweep(later=30.0)
    assert ask("GET", f"task_runs/{tasks['FAILED', 'PENDING']}")["state_type"] == "PENDING"
    sweep(later=70.0)
    for (state, kind), task in tasks.items():
        left = kind == "COMPLETED" or state == "RUNNING"
        found = ask("GET", f"task_runs/{task}")["state_type"]
        assert found == (kind if left else "CANCELLED"), (state, kind)
