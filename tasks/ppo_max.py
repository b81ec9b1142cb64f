"""Task `ppo_max`: PPO-max, with rehearsal where data for it is given."""

from __future__ import annotations

from prefect import task

from models.config.policy import PPOConfig
from tasks.events import COLLAPSED, tell
from tasks.execution import StageResult
from tasks.inputs import one_or_several
from tasks.perform import Place, perform
from tasks.retries import GPU


@task(name="ppo_max", task_run_name="{label}", **GPU)
def ppo_max(
    config: PPOConfig,
    policy: StageResult,
    reference: StageResult,
    scorer: StageResult | list[StageResult] | None,
    data: StageResult,
    rehearsal: StageResult | None = None,
    safety_scorer: StageResult | None = None,
    label: str = "ppo_max",
    place: Place | None = None,
    by_ranks: bool = False,
) -> StageResult:
    """A policy optimised against `scorer` and held near `reference`; the last two as in `perform`.

    Several scorers are an ensemble; `safety_scorer` has the first word (`PPOConfig.scoring`).
    Without a scorer the judge that the configuration names rates the responses.
    A collapse that the guard acted on is an event, for those who asked to be told.
    """
    result = perform(
        "ppo_max",
        config,
        {
            "policy": policy,
            "reference": reference,
            "data": data,
            **one_or_several("scorer", scorer),
            **({"rehearsal": rehearsal} if rehearsal else {}),
            **({"safety_scorer": safety_scorer} if safety_scorer else {}),
        },
        label,
        place=place,
        by_ranks=by_ranks,
    )
    if result.summary["collapsed"] and config.guard.action != "warn" and not result.cached:
        tell(COLLAPSED, label, reason=result.summary["collapse_reason"])
    return result
