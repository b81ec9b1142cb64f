"""Event ordering for Prefect's server: nothing waits for an event from before its start.

A run's states are events that follow one another. Prefect holds an event back from automations, for
up to a quarter of an hour, until they have received the one it follows, and remembers in memory
what they received. After a restart of the server it would hold back the crash of an older run. A
server that is killed also loses the events of the last moments; the states that they tell of are
in the database, and have the same id.

Each Prefect server of ours loads this module, which therefore also has it check the parameters of
every run that is made from a deployment. A body with `enforce_parameter_schema: false` would skip
the check: a process would start, only for the run to fail (`trimtab.flows.runs.flow`), and who
asked for it would not be told.

PREFECT_SERVER_EVENTS_CAUSAL_ORDERING=trimtab.infra.prefect.event_order
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

import sqlalchemy as sa
from prefect.server.database import provide_database_interface
from prefect.server.events.ordering import EventArrivedEarly, memory
from prefect.server.events.schemas.events import ReceivedEvent
from prefect.server.schemas.actions import DeploymentFlowRunCreate
from prefect.types import _datetime

_started = _datetime.now("UTC")


# This process follows the deployment's setting, which a run's body cannot override.
_body: Any = DeploymentFlowRunCreate
_body.enforce_parameter_schema = property(lambda _: None)  # "as the deployment says"


class CausalOrdering(memory.CausalOrdering):
    """Prefect's own, with a look into the database."""

    async def wait_for_leader(self, event: ReceivedEvent) -> None:
        """Wait for the event that this one follows, unless that is from before the start.

        Raises EventArrivedEarly where it is to come yet.
        """
        try:
            await super().wait_for_leader(event)
        except EventArrivedEarly:
            if event.follows is None or not await _is_of_before(event.follows):
                raise
            await self.forget_follower(event)


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
