"""Task `lower_states`: the frozen lower layers' output for all preference pairs."""

from __future__ import annotations

from prefect import task

from models.config.reward import LowerStatesConfig
from tasks.execution import StageResult
from tasks.perform import ALONE, perform
from tasks.retries import GPU


@task(name="lower_states", task_run_name="lower states", **GPU)
def lower_states(
    config: LowerStatesConfig, policy: StageResult, preferences: StageResult
) -> StageResult:
    """What every scorer that trains its upper layers only reads instead of computing it."""
    return perform(
        "lower_states",
        config,
        {"policy": policy, "preferences": preferences},
        "lower states",
        place=ALONE,
    )
