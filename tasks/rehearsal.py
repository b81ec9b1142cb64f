"""Task `rehearsal`: clustered selective rehearsal data."""

from __future__ import annotations

from prefect import task

from models.config.policy import RehearsalConfig
from tasks.execution import StageResult
from tasks.perform import perform
from tasks.retries import GPU


@task(name="rehearsal", task_run_name="{label}", **GPU)
def rehearsal(
    config: RehearsalConfig,
    data: StageResult,
    policy: StageResult,
    scorer: StageResult,
    label: str = "rehearsal",
) -> StageResult:
    """The best of the SFT policy's own answers in every cluster of prompts."""
    return perform("rehearsal", config, {"data": data, "policy": policy, "scorer": scorer}, label)
