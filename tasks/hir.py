"""Task `hir`: hindsight instruction relabelling."""

from __future__ import annotations

from prefect import task

from models.config.policy import HIRConfig
from tasks.execution import StageResult
from tasks.perform import Place, perform
from tasks.retries import GPU


@task(name="hir", task_run_name="{label}", **GPU)
def hir(
    config: HIRConfig,
    policy: StageResult,
    answers: list[StageResult],
    rehearsal: StageResult | None = None,
    label: str = "hir",
    place: Place | None = None,
    by_ranks: bool = False,
) -> StageResult:
    """A policy that follows instructions by which its answers were relabelled.

    The last two as in `perform`.
    """
    return perform(
        "hir",
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
