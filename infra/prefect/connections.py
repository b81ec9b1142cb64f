"""Clients of Prefect's API that outlast a restart of the server.

Prefect's client tries again for about a minute where no server listens, but only if this client has
reached it before: a wrong address is then found at once. A flow run makes new clients all the time,
such as one for the slots of a task, and failed where one was made while the server was restarted.
Here it counts that any client of the process has reached that server.
"""

from __future__ import annotations

from typing import Any

from prefect.client.base import PrefectHttpxAsyncClient, PrefectHttpxSyncClient

_reached: set[str] = set()


def share_connections() -> None:
    """Have all clients of this process try again as those do that were connected before."""
    for kind in (PrefectHttpxAsyncClient, PrefectHttpxSyncClient):
        kind._has_connected = property(_has_reached, _note)  # type: ignore[assignment]


def _has_reached(client: Any) -> bool:
    return str(client.base_url) in _reached


def _note(client: Any, is_connected: bool) -> None:
    if is_connected:  # a new client says that it is not, before it has an address
        _reached.add(str(client.base_url))
