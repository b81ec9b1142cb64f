"""Task `ai_labels`: a judge's preferences as the labels of training pairs."""

from __future__ import annotations

from prefect import task

from models.config.judge import AILabelsConfig
from tasks.execution import StageResult
from tasks.perform import perform
from tasks.retries import CPU


@task(name="ai_labels", task_run_name="{label}", **CPU)
def ai_labels(
    config: AILabelsConfig,
    preferences: StageResult,
    judgements: StageResult,
    label: str = "AI labels",
) -> StageResult:
    """The pairs, of which those to train on prefer what the judge prefers."""
    inputs = {"preferences": preferences, "judgements": judgements}
    return perform("ai_labels", config, inputs, label)
