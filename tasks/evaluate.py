"""Task `evaluate`: a policy's answers to the evaluation prompts, measured."""

from __future__ import annotations

from prefect import task

from models.config.reporting import EvaluateConfig
from tasks.execution import StageResult
from tasks.perform import Place, perform
from tasks.retries import GPU


@task(name="evaluate", task_run_name="{label}", **GPU)
def evaluate(
    config: EvaluateConfig,
    policy: StageResult,
    reference: StageResult,
    data: StageResult,
    scorer: StageResult,
    judges: list[StageResult],
    label: str = "evaluate",
    place: Place | None = None,
    by_ranks: bool = False,
) -> StageResult:
    """Answers with likelihoods and scores; `place` and `by_ranks` as in `perform`."""
    return perform(
        "evaluate",
        config,
        {
            "policy": policy,
            "reference": reference,
            "data": data,
            "scorer": scorer,
            **{f"judge_{index}": judge for index, judge in enumerate(judges)},
        },
        label,
        place=place,
        by_ranks=by_ranks,
    )
