"""Task `strength`: the ensemble's vote on every pair."""

from __future__ import annotations

from prefect import task

from models.config.reward import StrengthConfig
from tasks.execution import StageResult
from tasks.perform import perform
from tasks.retries import CPU


@task(name="strength", task_run_name="{label}", **CPU)
def strength(
    config: StrengthConfig,
    members: list[StageResult],
    label: str = "strength",
) -> StageResult:
    """Mean and spread of every pair's preference strength."""
    return perform(
        "strength",
        config,
        {f"member_{index}": member for index, member in enumerate(members)},
        label,
        reads_weights=False,
    )
