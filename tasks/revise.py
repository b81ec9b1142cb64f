"""Task `revise`: a model criticises and revises a policy's answers by a constitution."""

from __future__ import annotations

from prefect import task

from models.config.policy import ReviseConfig
from tasks.execution import StageResult
from tasks.perform import ALONE, perform
from tasks.retries import GPU
from tasks.sources import import_constitution


@task(name="revise", task_run_name="{label}", **GPU)
def revise(
    config: ReviseConfig,
    data: StageResult,
    policy: StageResult,
    label: str = "revise",
) -> StageResult:
    """What a policy learns to say instead, to the prompts that its answers are revised for."""
    return perform(
        "revise",
        config,
        {"data": data, "policy": policy, **import_constitution(config.constitution)},
        label,
        place=ALONE,
    )
