"""Task `world`: draw the synthetic world."""

from __future__ import annotations

from prefect import task

from models.config.data import WorldConfig
from tasks.execution import StageResult
from tasks.perform import perform
from tasks.retries import CPU


@task(name="world", task_run_name="{label}", **CPU)
def world(
    config: WorldConfig,
    label: str = "world",
) -> StageResult:
    """Prompts, demonstrations and tokenizer of the synthetic world."""
    return perform("world", config, {}, label)
