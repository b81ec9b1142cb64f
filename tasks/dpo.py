"""Task `dpo`: direct preference optimisation."""

from __future__ import annotations

from prefect import task

from models.config.policy import DPOConfig
from tasks.execution import StageResult
from tasks.perform import Place, perform
from tasks.retries import GPU


@task(name="dpo", task_run_name="{label}", **GPU)
def dpo(
    config: DPOConfig,
    policy: StageResult,
    reference: StageResult,
    preferences: StageResult,
    pairs: StageResult | None = None,
    states: StageResult | None = None,
    rehearsal: StageResult | None = None,
    label: str = "dpo",
    place: Place | None = None,
    by_ranks: bool = False,
) -> StageResult:
    """A policy optimised on raw pairs, or on relabelled `pairs`; the last two as in `perform`."""
    return perform(
        "dpo",
        config,
        {
            "policy": policy,
            "reference": reference,
            "preferences": preferences,
            **({"pairs": pairs} if pairs else {}),
            **({"states": states} if states else {}),
            **({"rehearsal": rehearsal} if rehearsal else {}),
        },
        label,
        place=place,
        by_ranks=by_ranks,
    )
