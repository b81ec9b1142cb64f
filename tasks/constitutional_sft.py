"""Task `constitutional_sft`: supervised fine-tuning on revisions."""

from __future__ import annotations

from prefect import task

from models.config.policy import ConstitutionalSFTConfig
from tasks.execution import StageResult
from tasks.perform import ALONE, perform
from tasks.retries import GPU


@task(name="constitutional_sft", task_run_name="{label}", **GPU)
def constitutional_sft(
    config: ConstitutionalSFTConfig,
    data: StageResult,
    policy: StageResult,
    revisions: StageResult,
    label: str = "constitutional SFT",
) -> StageResult:
    """The policy everything else starts from, once it has learned its revised answers."""
    return perform(
        "constitutional_sft",
        config,
        {"data": data, "policy": policy, "revisions": revisions},
        label,
        place=ALONE,
    )
