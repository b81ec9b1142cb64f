"""Task `features`: a scorer's features of the test answers."""

from __future__ import annotations

from prefect import task

from models.config.reward import FeaturesConfig
from tasks.execution import StageResult
from tasks.perform import perform
from tasks.retries import GPU


@task(name="features", task_run_name="{label}", **GPU)
def features(
    config: FeaturesConfig, scorer: StageResult, preferences: StageResult, label: str = "features"
) -> StageResult:
    """Where the answers lie, and how much chosen and rejected ones mix."""
    return perform("features", config, {"scorer": scorer, "preferences": preferences}, label)
