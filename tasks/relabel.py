"""Task `relabel`: flips, soft labels and margins."""

from __future__ import annotations

from prefect import task

from models.config_rewards import RelabelConfig
from tasks.kinds import CPU
from tasks.perform import perform
from tasks.stage import StageResult


@task(name="relabel", task_run_name="{label}", **CPU)
def relabel(
    config: RelabelConfig,
    preferences: StageResult,
    strength: StageResult,
    label: str = "relabel",
) -> StageResult:
    """The training pairs with the treatment their strength calls for."""
    return perform("relabel", config, {"preferences": preferences, "strength": strength}, label)
