"""Task `meta_rm`: shift a scorer to the current policy's answers."""

from __future__ import annotations

from prefect import task

from models.config.reward import MetaRMConfig
from tasks.execution import StageResult
from tasks.perform import ALONE, perform
from tasks.retries import GPU


@task(name="meta_rm", task_run_name="{label}", **GPU)
def meta_rm(
    config: MetaRMConfig,
    scorer: StageResult,
    policy: StageResult,
    data: StageResult,
    preferences: StageResult,
    pairs: StageResult,
    states: StageResult | None = None,
    label: str = "meta_rm",
    by_ranks: bool = False,
) -> StageResult:
    """The scorer of the next round; `by_ranks` as in `perform`."""
    return perform(
        "meta_rm",
        config,
        {
            "scorer": scorer,
            "policy": policy,
            "data": data,
            "preferences": preferences,
            "pairs": pairs,
            **({"states": states} if states else {}),
        },
        label,
        place=ALONE,
        by_ranks=by_ranks,
    )
