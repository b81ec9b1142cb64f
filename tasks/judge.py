"""Task `judge`: win, tie or lose between two evaluated policies."""

from __future__ import annotations

from prefect import task

from models.config.reporting import EvaluateConfig
from tasks.execution import StageResult
from tasks.perform import perform
from tasks.retries import CPU


@task(name="judge", task_run_name="{label}", **CPU)
def judge(
    config: EvaluateConfig,
    ours: StageResult,
    theirs: StageResult,
    label: str = "judge",
) -> StageResult:
    """Verdicts on every prompt set, and whether `ours` is promoted."""
    return perform("judge", config, {"ours": ours, "theirs": theirs}, label)
