"""Task `advantage_model`: the Advantage Model."""

from __future__ import annotations

from prefect import task

from models.config.reward import AdvantageModelConfig
from tasks.execution import StageResult
from tasks.inputs import one_or_several
from tasks.perform import Place, perform
from tasks.retries import GPU


@task(name="advantage_model", task_run_name="{label}", **GPU)
def advantage_model(
    config: AdvantageModelConfig,
    policy: StageResult,
    preferences: StageResult,
    pairs: StageResult | None = None,
    states: StageResult | None = None,
    behaviour: StageResult | list[StageResult] | None = None,
    label: str = "advantage_model",
    place: Place | None = None,
) -> StageResult:
    """An Advantage Model on raw pairs, or on relabelled `pairs`.

    `behaviour`: the policies that wrote the comparisons, where it weighs by them.
    """
    return perform(
        "advantage_model",
        config,
        {
            "policy": policy,
            "preferences": preferences,
            **({"pairs": pairs} if pairs else {}),
            **({"states": states} if states else {}),
            **one_or_several("behaviour", behaviour),
        },
        label,
        place=place,
    )
