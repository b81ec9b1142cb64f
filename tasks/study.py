"""Task `study`: one table or figure of a paper, read from runs of several seeds."""

from __future__ import annotations

from prefect import task

from models.config.reporting import StudyConfig
from tasks.execution import StageResult
from tasks.perform import perform
from tasks.retries import CPU


@task(name="study", task_run_name="{label}", **CPU)
def study(config: StudyConfig, artifacts: dict[str, StageResult], label: str) -> StageResult:
    """The exhibit over everything that the seeds' runs made, by `<seed>.<role>`."""
    return perform("study", config, artifacts, label, reads_weights=False)
