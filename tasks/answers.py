"""Task `answers`: several scored answers of a policy to each prompt."""

from __future__ import annotations

from prefect import task

from models.config.policy import AnswersConfig
from tasks.execution import StageResult
from tasks.perform import Place, perform
from tasks.retries import GPU


@task(name="answers", task_run_name="{label}", **GPU)
def answers(
    config: AnswersConfig,
    data: StageResult,
    policy: StageResult,
    scorer: StageResult,
    label: str = "answers",
    place: Place | None = None,
    by_ranks: bool = False,
) -> StageResult:
    """What rejection sampling, ReST and HIR learn from; the last two as in `perform`."""
    return perform(
        "answers",
        config,
        {
            "data": data,
            "policy": policy,
            "scorer": scorer,
        },
        label,
        place=place,
        by_ranks=by_ranks,
    )
