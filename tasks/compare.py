"""Task `compare`: the page about several ways to optimise a policy."""

from __future__ import annotations

from prefect import task

from models.config.reporting import CompareConfig
from tasks.execution import StageResult
from tasks.perform import perform
from tasks.retries import CPU


@task(name="compare", task_run_name="compare", **CPU)
def compare(config: CompareConfig, artifacts: dict[str, StageResult]) -> StageResult:
    """The page over the win matrix and, by `<seed>.<role>`, what made the policies."""
    return perform("compare", config, artifacts, "compare", reads_weights=False)
