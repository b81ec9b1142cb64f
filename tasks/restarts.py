"""Close what a flow run that ended, or earlier starts of one that died, left as running."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from httpx import HTTPError
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import FlowRunFilter, TaskRunFilter
from prefect.exceptions import ObjectNotFound
from prefect.runtime import flow_run
from prefect.states import Cancelled, Crashed, State

from trimtab.infra.tracking.runs import TrackedRun, Tracking
from trimtab.tasks.context import FLOW_RUN, base_context, logger

SECONDS_FOR_EVENTS = 10.0


def close_earlier_starts() -> None:
    """Close task runs and MLflow runs of earlier starts."""
    if flow_run.run_count <= 1:
        return
    _end_task_runs()
    tracking = base_context().tracking
    tracking.call(lambda _: None)  # once connected, it sends what the earlier starts could not
    tracking.flush()
    _end_mlflow_runs(tracking)


def cancel_tasks(task_runs: Sequence[UUID]) -> None:
    """End tasks that did not get to run; a warning for those that the server does not let end.

    It learns of a task by events, some seconds late.
    """
    deadline = time.monotonic() + SECONDS_FOR_EVENTS
    left = list(task_runs)
    with get_client(sync_client=True) as client:
        while left and time.monotonic() < deadline:
            left = [task for task in left if not _is_cancelled(client, task)]
            time.sleep(0.5 if left else 0.0)
    if left:
        logger.warning("%d tasks of this run stay as Pending on Prefect's pages", len(left))


def _is_cancelled(client: SyncPrefectClient, task_run: UUID) -> bool:
    ended: State[Any] = Cancelled(message="Its flow run ended without what it waited for")
    try:
        client.set_task_run_state(task_run, ended, force=True)
    except (ObjectNotFound, HTTPError):
        return False
    return True


def _end_task_runs() -> None:
    with get_client(sync_client=True) as client:
        left = client.read_task_runs(
            flow_run_filter=FlowRunFilter.model_validate({"id": {"any_": [flow_run.id]}}),
            task_run_filter=TaskRunFilter.model_validate(
                {"state": {"type": {"any_": ["RUNNING", "PENDING", "SCHEDULED"]}}}
            ),
        )
        for task in left:
            client.set_task_run_state(
                task.id, Crashed(message="Its flow run died and was started again"), force=True
            )


def close_leftovers(tracked: TrackedRun) -> None:
    """Close MLflow runs that are still marked as running after the flow's MLflow run has ended.

    They belong to earlier starts, if MLflow was down when this one began, or were created twice
    because MLflow's answer was lost.
    """
    _end_mlflow_runs(tracked.tracking)
    if tracked.run_id is not None:
        _end_children(tracked.tracking, tracked.run_id)


def _end_mlflow_runs(tracking: Tracking) -> None:
    for run in tracking.running({FLOW_RUN: str(flow_run.id)}):
        _end_children(tracking, run)
        TrackedRun(tracking, run).end("KILLED")


def _end_children(tracking: Tracking, run: str) -> None:
    for child in tracking.running({"mlflow.parentRunId": run}):
        TrackedRun(tracking, child).end("KILLED")
