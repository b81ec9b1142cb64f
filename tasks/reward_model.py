"""Task `reward_model`: one reward model, ensemble member or final."""

from __future__ import annotations

from prefect import task

from models.config.reward import RewardModelConfig
from tasks.execution import StageResult
from tasks.perform import Place, perform
from tasks.retries import GPU


@task(name="reward_model", task_run_name="{label}", **GPU)
def reward_model(
    config: RewardModelConfig,
    policy: StageResult,
    preferences: StageResult,
    pairs: StageResult | None = None,
    states: StageResult | None = None,
    label: str = "reward_model",
    place: Place | None = None,
    by_ranks: bool = False,
    is_patient: bool = False,
) -> StageResult:
    """A reward model on raw pairs, or on relabelled `pairs`; the last three as in `perform`."""
    return perform(
        "reward_model",
        config,
        {
            "policy": policy,
            "preferences": preferences,
            **({"pairs": pairs} if pairs else {}),
            **({"states": states} if states else {}),
        },
        label,
        place=place,
        by_ranks=by_ranks,
        is_patient=is_patient,
    )
