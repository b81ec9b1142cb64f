"""Takes up flow runs that died, and ends what nobody else ends.

    python -m trimtab.infra.prefect.reconciler

Every few seconds it reads the states of the runs of Trimtab's deployments and follows RULES. It
keeps nothing but how long it has been watching: it may be killed at any moment, and two of them do
no harm (`trimtab.infra.prefect.fence`). The one-server stack runs it; for another Prefect server
run it anywhere with PREFECT_API_URL and PREFECT_API_AUTH_STRING, beside a worker for instance.

Left alone are runs that wait for their time or for a person, and those that are being cancelled.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from functools import cache
from typing import Any

from httpx import HTTPError, HTTPStatusError
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import FlowRunFilter, TaskRunFilter, WorkerFilter
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.exceptions import PrefectException
from prefect.states import AwaitingRetry, Cancelled

logger = logging.getLogger(__name__)

TAG = "trimtab"  # of the deployments, and so of their runs
SECONDS_BETWEEN_SWEEPS = 5.0
SILENCE = 90.0  # three heartbeats
# A crash may not be the end of it: the worker reports it once more, or that it was a cancellation.
SETTLED = 20.0
# From a worker's taking a run to its running, if that worker is dead; a live one says what happens.
STARTED = 300.0
HUNG = 3600.0
MAX_CRASHES = 20
LONG = 3600.0  # a run that went on for so long gets on, though it may crash now and then
LONGEST_PAUSE = 120.0
# What lies longer ago is not looked at.
HORIZON = timedelta(days=7)
HEARTBEAT = "prefect.flow-run.heartbeat"
_PAGE = 200


@dataclass(frozen=True)
class Seen:
    """A flow run as the server knows it.

    seconds: in its state. is_of_processes: in a pool whose runs are processes: they start at once
    and have heartbeats; a pod may wait for a GPU, and may have none. silent: seconds without a
    heartbeat; 0 where none is due. is_abandoned: no worker that is alive has it. crashes: those
    after one another. was_being_cancelled: when it crashed. message: of its state.
    """

    state: str
    seconds: float
    is_of_processes: bool = False
    silent: float = 0.0
    is_abandoned: bool = False
    crashes: int = 0
    was_being_cancelled: bool = False
    message: str = ""

    @property
    def pause(self) -> float:
        """Seconds until its next start: none after the first crash, then 20, 40, 80 and 120."""
        return min(LONGEST_PAUSE, 20.0 * 2 ** (self.crashes - 2)) if self.crashes > 1 else 0.0


@dataclass(frozen=True)
class Rule:
    """A run that is in `state` for more than `seconds`, and `applies`, comes into `to`."""

    state: str
    seconds: float
    applies: Callable[[Seen], bool]
    to: str
    because: str


# The first that applies.
RULES = (
    Rule(
        "RUNNING",
        SILENCE,
        lambda run: run.silent > SILENCE,
        "CRASHED",
        f"No heartbeat for {SILENCE:.0f} s: its process or its worker's host is dead",
    ),
    Rule(
        "PENDING",
        STARTED,
        lambda run: run.is_of_processes and run.is_abandoned,
        "CRASHED",
        f"Not running {STARTED:.0f} s after a worker took it, and that worker is dead",
    ),
    Rule(
        "PENDING",
        HUNG,
        lambda run: run.is_of_processes,
        "CRASHED",
        f"Not running {HUNG:.0f} s after a worker took it: its process hangs",
    ),
    Rule(
        "CRASHED",
        SETTLED,
        lambda run: run.was_being_cancelled,
        "CANCELLED",
        "It crashed while it was being cancelled",
    ),
    Rule(
        "CRASHED",
        SETTLED,
        lambda run: run.crashes >= MAX_CRASHES,
        "FAILED",
        "Crashed {run.crashes} times in a row, the last time with: {run.message}. It is not "
        "started again by itself; a new run finds in the store what was finished",
    ),
    Rule(
        "CRASHED",
        SETTLED,
        lambda run: True,
        "SCHEDULED",
        "It continues from its last checkpoint",
    ),
)


def decide(run: Seen) -> State[Any] | None:
    """The state that a run is to come into; None where it is to stay as it is."""
    for rule in RULES:
        if rule.state == run.state and run.seconds > rule.seconds and rule.applies(run):
            message = rule.because.format(run=run)
            if rule.to == "SCHEDULED":
                at = datetime.now().astimezone() + timedelta(seconds=run.pause)
                return AwaitingRetry(scheduled_time=at, message=message)
            return State(type=StateType(rule.to), message=message)
    return None


def server_time(headers: Mapping[str, str]) -> datetime:
    """When the server gave an answer, by its own clock; by ours if it does not say.

    A busy server's is seconds late, which lets a run be for as long.
    """
    date = headers.get("date")
    return parsedate_to_datetime(date) if date else datetime.now(UTC)


class Reconciler:
    """One sweep over the runs of a server. watched: seconds for which the server has answered."""

    def __init__(self, client: SyncPrefectClient, watched: float) -> None:
        self.client, self.watched = client, watched
        self.now = server_time(client.request("GET", "/health").headers)
        self.pool_type = cache(lambda pool: client.read_work_pool(pool).type)
        self.workers = cache(self._workers)

    def sweep(self) -> None:
        """Do for every run what the rules say, and end the tasks of runs that have ended."""
        recent = {"after_": self.now - HORIZON}
        for run in [
            *self._runs({"state": _has_type("RUNNING", "PENDING")}),
            *self._runs({"state": _has_type("CRASHED"), "end_time": recent}),
        ]:
            try:
                self._follow_rules(run)
            except (HTTPStatusError, PrefectException) as error:  # of this run, such as no pool
                logger.warning("%s: %s", run.name, error)
        self._end_tasks()

    def _runs(self, condition: dict[str, Any]) -> list[FlowRun]:
        runs: list[FlowRun] = []
        while True:
            page = self.client.read_flow_runs(
                flow_run_filter=_our_runs(condition), limit=_PAGE, offset=len(runs)
            )
            runs += page
            if len(page) < _PAGE:
                return runs

    def _follow_rules(self, run: FlowRun) -> None:
        seen = self.see(run)
        to = decide(seen)
        # What has changed meanwhile is looked at the next time.
        if to is None or self.client.read_flow_run(run.id).state_id != run.state_id:
            return
        self.client.set_flow_run_state(run.id, to)
        logger.info("%s was %s, is %s: %s", run.name, seen.state, to.name, to.message)

    def see(self, run: FlowRun) -> Seen:
        """A run as the rules take it, which is in one of their states."""
        state = run.state
        assert state is not None
        pool = run.work_pool_name
        seen = Seen(
            state.type.value,
            seconds=(self.now - state.timestamp).total_seconds(),
            is_of_processes=pool is not None and self.pool_type(pool) == "process",
            message=state.message or "",
        )
        # An outage of the server keeps signs of life from it.
        if state.is_running() and min(self.watched, seen.seconds) > SILENCE:
            return replace(seen, silent=self._silent(run, seen))
        if state.is_pending() and self.watched > SILENCE and pool is not None:
            worker = run.labels.get("prefect.worker.name")
            return replace(seen, is_abandoned=worker not in self.workers(pool))
        if state.is_crashed() and seen.seconds > SETTLED:
            states = self.client.read_flow_run_states(run.id)
            states.sort(key=lambda state: state.timestamp)
            starts = [at for at, state in enumerate(states) if state.is_pending()]
            last = states[starts[-1] if starts else 0 :]
            return replace(
                seen,
                crashes=crashes_in_a_row(states),
                was_being_cancelled=any(state.is_cancelling() for state in last),
            )
        return seen

    def _silent(self, run: FlowRun, seen: Seen) -> float:
        """Seconds since its last heartbeat, or since it runs; 0 for a pod that never had one."""
        events = self.client.request(
            "POST",
            "/events/filter",
            json={
                "filter": {
                    "event": {"name": [HEARTBEAT]},
                    "resource": {"id": [f"prefect.flow-run.{run.id}"]},
                    "occurred": {"since": f"{self.now - HORIZON}"},
                },
                "limit": 1,
            },
        ).json()["events"]
        if not events:
            return seen.seconds if seen.is_of_processes else 0.0
        heard = datetime.fromisoformat(events[0]["received"])
        return min(seen.seconds, (self.now - heard).total_seconds())

    def _workers(self, pool: str) -> set[str]:
        """The names of a pool's workers that are alive."""
        online = WorkerFilter.model_validate({"status": {"any_": ["ONLINE"]}})
        return {worker.name for worker in self.client.read_workers_for_work_pool(pool, online)}

    def _end_tasks(self) -> None:
        """End the tasks that still run of a run that has failed or was cancelled.

        Its process ends what it can; one that was killed could not.
        """
        ended = {"before_": self.now - timedelta(seconds=60), "after_": self.now - HORIZON}
        left = self.client.read_task_runs(
            flow_run_filter=_our_runs(
                {"state": _has_type("FAILED", "CANCELLED"), "end_time": ended}
            ),
            task_run_filter=TaskRunFilter.model_validate(
                {"state": _has_type("PENDING", "RUNNING", "SCHEDULED")}
            ),
        )
        for task in left:
            to: State[Any] = Cancelled(message="Its flow run has ended")
            self.client.set_task_run_state(task.id, to, force=True)


def _our_runs(condition: dict[str, Any]) -> FlowRunFilter:
    ours = {"tags": {"all_": [TAG]}, "deployment_id": {"is_null_": False}}
    return FlowRunFilter.model_validate({**ours, **condition})


def _has_type(*types: str) -> dict[str, Any]:
    return {"type": {"any_": list(types)}}


def crashes_in_a_row(states: Sequence[State[Any]]) -> int:
    """The number of crashes since a run ended otherwise or ran for long; states in their order."""
    crashes, next_ = 0, states[-1]
    for state in reversed(states):
        ran = state.is_running() and (next_.timestamp - state.timestamp).total_seconds()
        if ran > LONG or (state.is_final() and not state.is_crashed()):
            break
        if state.is_crashed() and (state is next_ or not next_.is_crashed()):
            crashes += 1  # a process and its worker may both report one
        next_ = state
    return crashes


def watch() -> None:
    """Sweep until this process is killed."""
    since = last = time.monotonic()
    while True:
        now = time.monotonic()
        if now - last > SILENCE / 3:  # the server did not answer, or this process was stopped
            since = now
        try:
            with get_client(sync_client=True) as client:
                Reconciler(client, now - since).sweep()
            last = now
        except (HTTPError, PrefectException) as error:
            logger.warning("Prefect's server: %s", error)
        time.sleep(SECONDS_BETWEEN_SWEEPS)


if __name__ == "__main__":
    logging.basicConfig(format="%(asctime)s %(message)s")
    logger.setLevel(logging.INFO)
    watch()
