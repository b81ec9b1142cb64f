"""Event ordering for Prefect's server: events from before its start count as seen.

A run's states are events that follow one another. Prefect holds an event back from automations, for
up to a quarter of an hour, until they have received the one it follows, and remembers in memory
what they received. After a restart of the server it would hold back the crash of an older run. A
server that is killed also loses the events of the last moments; the states that they tell of are
in the database, and have the same id.

PREFECT_SERVER_EVENTS_CAUSAL_ORDERING=trimtab.infra.prefect.event_order
"""

from __future__ import annotations

from uuid import UUID

import sqlalchemy as sa
from prefect.server.database import provide_database_interface
from prefect.server.events.ordering import memory
from prefect.server.events.schemas.events import Event
from prefect.types import _datetime

_started = _datetime.now("UTC")


class CausalOrdering(memory.CausalOrdering):
    """Prefect's own, with a look into the database."""

    async def event_has_been_seen(self, event: UUID | Event) -> bool:
        """Whether an event was handed to automations, now or before the server's start."""
        identifier = event.id if isinstance(event, Event) else event
        return await super().event_has_been_seen(event) or await _is_of_before(identifier)


async def _is_of_before(identifier: UUID) -> bool:
    database = provide_database_interface()
    event, state = database.Event, database.FlowRunState
    queries = (
        sa.select(event.received).where(event.id == identifier),
        sa.select(state.timestamp).where(state.id == identifier),
    )
    async with database.session_context() as session:
        times = [await session.scalar(query) for query in queries]
    return any(time is not None and time < _started for time in times)
