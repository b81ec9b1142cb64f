"""Task `rejection_sampling`: fine-tuning on the best of several answers."""

from __future__ import annotations

from prefect import task

from models.config.policy import RejectionSamplingConfig
from tasks.execution import StageResult
from tasks.perform import Place, perform
from tasks.retries import GPU


@task(name="rejection_sampling", task_run_name="{label}", **GPU)
def rejection_sampling(
    config: RejectionSamplingConfig,
    policy: StageResult,
    answers: list[StageResult],
    rehearsal: StageResult | None = None,
    label: str = "rejection_sampling",
    place: Place | None = None,
    by_ranks: bool = False,
) -> StageResult:
    """A policy that has learned its best answers; the last two as in `perform`."""
    return perform(
        "rejection_sampling",
        config,
        {
            "policy": policy,
            **{f"answers_{number}": each for number, each in enumerate(answers)},
            **({"rehearsal": rehearsal} if rehearsal else {}),
        },
        label,
        place=place,
        by_ranks=by_ranks,
    )
