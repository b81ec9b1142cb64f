"""Events that automations tell people of (`trimtab deploy --notify`)."""

from __future__ import annotations

import os
import time
from typing import Any

from prefect.events import emit_event
from prefect.runtime import flow_run

from trimtab.infra.prefect.server import EMBEDDED_VARIABLE

PROMOTED = "trimtab.policy.promoted"
COLLAPSED = "trimtab.policy.collapsed"
ADVANCED = "trimtab.run.advanced"
SECONDS_BETWEEN_ADVANCES = 60.0
_advanced_at = -SECONDS_BETWEEN_ADVANCES


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


def advanced() -> None:
    """Emit, at most once a minute, that the flow run under way gets on.

    The event has the run's tags, by which automations know the runs of Trimtab's deployments.
    """
    global _advanced_at
    now = time.monotonic()
    if flow_run.id is None or EMBEDDED_VARIABLE in os.environ:
        return
    if now - _advanced_at < SECONDS_BETWEEN_ADVANCES:
        return
    _advanced_at = now
    emit_event(
        ADVANCED,
        resource={
            "prefect.resource.id": f"prefect.flow-run.{flow_run.id}",
            "prefect.resource.name": str(flow_run.name),
        },
        related=[
            {"prefect.resource.id": f"prefect.tag.{tag}", "prefect.resource.role": "tag"}
            for tag in flow_run.tags
        ],
    )
