"""One flow run, one process: another one ends, before it touches anything.

A worker that takes a flow run puts it into Pending and starts a process. Where that process is
slow, or loses its heartbeats, the run counts as crashed and is taken once more: two processes then
have one run. Each Pending belongs to the first process that claims it, with an input of the flow
run: the server takes each key once. A process that finds the last Pending to be another's ends;
one that claimed an earlier one has been started again since.

It ends at once and with status 0, of which a worker says nothing to the server: no state, artifact
or metric is written any more. Its trainers die with it, and the other has their checkpoints.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from http import HTTPStatus
from uuid import UUID, uuid4

from httpx import HTTPError, HTTPStatusError
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.exceptions import PrefectException

# Tells a process that a worker starts which flow run it has.
FLOW_RUN_VARIABLE = "PREFECT__FLOW_RUN_ID"
SECONDS_BETWEEN_LOOKS = 20.0
_process = uuid4().hex
_claimed: UUID | None = None  # the Pending that this process has


def end_if_started_again() -> None:
    """End this process if its flow run is another's.

    Nothing outside of a worker's process, nor while the server does not answer: it starts nothing
    then either.
    """
    identifier = os.environ.get(FLOW_RUN_VARIABLE)
    try:
        if identifier is None or _is_ours(UUID(identifier)):
            return
    except (HTTPError, PrefectException):
        return
    print(
        f"flow run {identifier} was started again while a process was slow or silent: this one, "
        f"{os.getpid()}, ends, another goes on",
        file=sys.stderr,
        flush=True,
    )
    os._exit(0)


def watch_for_newer_start() -> None:
    """`end_if_started_again` now, and from now on every so often in a thread of its own."""
    end_if_started_again()
    if FLOW_RUN_VARIABLE in os.environ:
        threading.Thread(target=_watch, name="fence", daemon=True).start()


def _watch() -> None:
    while True:
        time.sleep(SECONDS_BETWEEN_LOOKS)
        end_if_started_again()


def _is_ours(flow_run: UUID) -> bool:
    """Whether the last Pending of a flow run is this process's, which claims its first one."""
    global _claimed
    with get_client(sync_client=True) as client:
        states = client.read_flow_run_states(flow_run)
        pending = [state for state in states if state.name == "Pending"]
        if not pending:
            return True
        last = max(pending, key=lambda state: state.timestamp).id
        if _claimed is None and _is_claimed(client, flow_run, f"start-{last}"):
            _claimed = last
        return _claimed == last


def _is_claimed(client: SyncPrefectClient, flow_run: UUID, key: str) -> bool:
    """Whether this process has the key now, or had it: an answer may have been lost."""
    path = f"/flow_runs/{flow_run}/input"
    try:
        client.request("POST", path, json={"key": key, "value": _process})  # type: ignore[arg-type]
    except HTTPStatusError as error:
        if error.response.status_code != HTTPStatus.CONFLICT:
            raise
        return bool(client.request("GET", f"{path}/{key}").text == _process)  # type: ignore[arg-type]
    return True
