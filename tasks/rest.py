"""Task `rest`: the Improve steps of reinforced self-training."""

from __future__ import annotations

from prefect import task

from models.config.policy import RestConfig
from tasks.execution import StageResult
from tasks.perform import Place, perform
from tasks.retries import GPU


@task(name="rest", task_run_name="{label}", **GPU)
def rest(
    config: RestConfig,
    policy: StageResult,
    answers: list[StageResult],
    rehearsal: StageResult | None = None,
    label: str = "rest",
    place: Place | None = None,
    by_ranks: bool = False,
) -> StageResult:
    """A policy that has learned answers above rising thresholds; the last two as in `perform`."""
    return perform(
        "rest",
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
