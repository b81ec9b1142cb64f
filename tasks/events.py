"""Events that automations tell people of (`trimtab deploy --notify`)."""

from __future__ import annotations

from typing import Any

from prefect.events import emit_event
from prefect.runtime import flow_run

PROMOTED = "trimtab.policy.promoted"
COLLAPSED = "trimtab.policy.collapsed"


def emit(event: str, policy: str, **payload: Any) -> None:
    """Emit an event about a policy, related to the flow run under way."""
    related = []
    if flow_run.id:
        related.append(
            {
                "prefect.resource.id": f"prefect.flow-run.{flow_run.id}",
                "prefect.resource.role": "flow-run",
                "prefect.resource.name": str(flow_run.name),
            }
        )
    emit_event(
        event,
        resource={
            "prefect.resource.id": f"trimtab.policy.{policy.replace(' ', '-')}",
            "prefect.resource.name": policy,
        },
        related=related,
        payload=payload,
    )
