"""A process whose flow run has been started again ends, before it touches anything.

A worker that takes a flow run puts it into Pending and starts a process. Where that process is
slow, or loses its heartbeats, the run counts as crashed and is taken once more: two processes then
have one run. The newer one goes on. A process knows that it is the older one by the last Pending of
its run, which is later than its own start. Both are times of the server, whose answers bear its
clock; a process's age needs no clock.

It ends at once and with status 0, of which a worker says nothing to the server: no state, artifact
or metric is written any more. Its trainers die with it, and the newer start has their checkpoints.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from uuid import UUID

import psutil
from httpx import HTTPError
from prefect.client.orchestration import get_client
from prefect.exceptions import PrefectException

# Of the process that a worker starts for a flow run.
FLOW_RUN_VARIABLE = "PREFECT__FLOW_RUN_ID"
SECONDS_BETWEEN_LOOKS = 20.0
# An answer's time has whole seconds. A run is not taken again within seconds.
_TOLERANCE = timedelta(seconds=3)
_born = time.monotonic() - (time.time() - psutil.Process().create_time())


def server_time(headers: Mapping[str, str]) -> datetime:
    """When the server gave an answer, by its own clock to a second; by ours if it does not say."""
    given = headers.get("date")
    return parsedate_to_datetime(given) if given else datetime.now(UTC)


def end_if_started_again() -> None:
    """End this process if a worker has taken its flow run since it began.

    Nothing outside of a worker's process, nor while the server does not answer: it starts nothing
    then either.
    """
    identifier = os.environ.get(FLOW_RUN_VARIABLE)
    try:
        if identifier is None or not _is_taken_since(UUID(identifier)):
            return
    except (HTTPError, PrefectException):
        return
    print(
        f"flow run {identifier} was started again while this process, {os.getpid()}, was slow or "
        "silent: this one ends, the newer start goes on",
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


def _is_taken_since(flow_run: UUID) -> bool:
    """Whether the last Pending of a flow run is later than the start of this process."""
    age = timedelta(seconds=time.monotonic() - _born)  # before the server is asked what time it is
    with get_client(sync_client=True) as client:
        answer = client.request("GET", "/flow_run_states/", params={"flow_run_id": str(flow_run)})
    begun = server_time(answer.headers) - age + _TOLERANCE
    taken = [each["timestamp"] for each in answer.json() if each["name"] == "Pending"]
    return any(datetime.fromisoformat(each) > begun for each in taken)
