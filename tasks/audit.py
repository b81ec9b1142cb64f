"""Task `audit`: the label audit for a person."""

from __future__ import annotations

from prefect import task

from models.config.reporting import AuditConfig
from tasks.execution import StageResult
from tasks.perform import perform
from tasks.retries import CPU


@task(name="audit", task_run_name="{label}", **CPU)
def audit(
    config: AuditConfig,
    preferences: StageResult,
    members: list[StageResult],
    strength: StageResult,
    relabelled: StageResult,
    label: str = "audit",
) -> StageResult:
    """The page to review pairs with, and the audited set; all other stages go first."""
    inputs = {
        "preferences": preferences,
        **{f"member_{index}": member for index, member in enumerate(members)},
        "strength": strength,
        "relabelled": relabelled,
    }
    return perform("audit", config, inputs, label, is_patient=True)
