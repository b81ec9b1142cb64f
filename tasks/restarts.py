"""Flow runs that died and are started again: close what earlier starts left as running."""

from __future__ import annotations

from typing import Any

from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, TaskRunFilter
from prefect.client.schemas.objects import StateType
from prefect.exceptions import Abort
from prefect.runtime import flow_run
from prefect.states import Cancelled, Crashed, State

from trimtab.infra.tracking.runs import TrackedRun, Tracking
from trimtab.tasks.context import FLOW_RUN, base_context

# Automations resume a crashed run; one that crashes every time must stop.
MAX_STARTS = 20


class TooManyStartsError(RuntimeError):
    """A flow run that crashed every time it was started."""


def close_earlier_starts() -> None:
    """Close task runs and MLflow runs of earlier starts; raises TooManyStartsError.

    Ends the flow run as Cancelled where an earlier start was to be cancelled, and was not.
    """
    if flow_run.run_count <= 1:
        return
    _end_task_runs()
    tracking = base_context().tracking
    tracking.call(lambda _: None)  # once connected, it sends what the earlier starts could not
    tracking.flush()
    _end_mlflow_runs(tracking)
    _cancel_if_asked_to()
    if flow_run.run_count > MAX_STARTS:
        raise TooManyStartsError(
            f"this flow run was started {MAX_STARTS} times and crashed every time; the log of the "
            "stage that was running is in its work folder. Start a new run to try again: finished "
            "stages are found in the store"
        )


def _cancel_if_asked_to() -> None:
    """A worker that is slow to say that it cancelled a run leaves it Crashed, and thus resumed."""
    with get_client(sync_client=True) as client:
        states = sorted(client.read_flow_run_states(flow_run.id), key=lambda each: each.timestamp)
        kinds = [state.type for state in states if state.is_cancelling() or state.is_cancelled()]
        if kinds and kinds[-1] == StateType.CANCELLING:
            cancelled: State[Any] = Cancelled(message="Cancelled before it was started again")
            client.set_flow_run_state(flow_run.id, cancelled, force=True)
            raise Abort("cancelled before it was started again")


def _end_task_runs() -> None:
    with get_client(sync_client=True) as client:
        left = client.read_task_runs(
            flow_run_filter=FlowRunFilter.model_validate({"id": {"any_": [flow_run.id]}}),
            task_run_filter=TaskRunFilter.model_validate(
                {"state": {"type": {"any_": ["RUNNING", "PENDING", "SCHEDULED"]}}}
            ),
        )
        for each in left:
            client.set_task_run_state(
                each.id, Crashed(message="Its flow run died and was started again"), force=True
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
        tracking.attach(run).end("KILLED")


def _end_children(tracking: Tracking, run: str) -> None:
    for child in tracking.running({"mlflow.parentRunId": run}):
        tracking.attach(child).end("KILLED")
