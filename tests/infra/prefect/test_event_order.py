"""Which events count as seen after the server was killed and started again."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from prefect.server.database import provide_database_interface
from prefect.server.events.ordering import EventArrivedEarly
from prefect.server.events.schemas.events import ReceivedEvent, Resource
from prefect.server.schemas.actions import DeploymentFlowRunCreate
from prefect.settings import PREFECT_API_DATABASE_CONNECTION_URL, temporary_settings
from prefect.types import _datetime

from trimtab.infra.prefect import event_order


async def _states(ages: list[timedelta]) -> list[UUID]:
    """States of a flow run, so old when the server started."""
    database = provide_database_interface()
    await database.create_db()
    async with database.session_context(begin_transaction=True) as session:
        flow = database.Flow(name="rlhf")
        session.add(flow)
        await session.flush()
        run = database.FlowRun(flow_id=flow.id)
        session.add(run)
        await session.flush()
        times = [event_order._started - age for age in ages]
        kind = {"flow_run_id": run.id, "type": "PENDING", "name": "Pending"}
        states = [database.FlowRunState(**kind, timestamp=time) for time in times]
        session.add_all(states)
        await session.flush()
        return [state.id for state in states]


@pytest.mark.slow
def test_a_state_whose_event_went_with_the_server_is_not_waited_for(tmp_path: Path) -> None:
    async def held_back() -> list[bool]:
        before, after = await _states([timedelta(seconds=1), timedelta(seconds=-1)])
        ordering = event_order.CausalOrdering("test")
        found = []
        for leader in (before, after, uuid4(), None):
            event = _event(leader)
            try:
                await ordering.wait_for_leader(event)
            except EventArrivedEarly:
                found.append(True)
            else:
                found.append(False)
                assert event.id not in ordering._waitlist
        # The state's own event may come yet, and is then not taken for one that came before.
        assert not await ordering.event_has_been_seen(before)
        return found

    address = f"sqlite+aiosqlite:///{tmp_path / 'prefect.db'}"
    with temporary_settings({PREFECT_API_DATABASE_CONNECTION_URL: address}):
        assert asyncio.run(held_back()) == [False, True, True, False]


def _event(follows: UUID | None) -> ReceivedEvent:
    now = _datetime.now("UTC")
    resource = Resource({"prefect.resource.id": "prefect.flow-run.1"})
    return ReceivedEvent(
        occurred=now, received=now, event="prefect.flow-run.Crashed", resource=resource, id=uuid4(),
        follows=follows,
    )  # fmt: skip


def test_a_body_cannot_switch_the_check_of_parameters_off() -> None:
    for given in ({}, {"enforce_parameter_schema": False}, {"enforce_parameter_schema": True}):
        body = DeploymentFlowRunCreate.model_validate({**given, "parameters": {"recipe": "smoke"}})
        assert body.enforce_parameter_schema is None  # the deployment decides
        assert body.parameters == {"recipe": "smoke"}
