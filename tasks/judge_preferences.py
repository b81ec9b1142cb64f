"""Task `judge_preferences`: a judge model's view of preference pairs."""

from __future__ import annotations

from prefect import task

from models.config.judge import JudgePreferencesConfig
from models.data.records import ArtifactRef
from tasks.execution import StageResult
from tasks.perform import Place, perform
from tasks.retries import CPU
from tasks.sources import import_constitution


@task(name="judge_preferences", task_run_name="{label}", **CPU)
def judge_preferences(
    config: JudgePreferencesConfig,
    preferences: StageResult,
    label: str = "judge preferences",
    place: Place | None = None,
) -> StageResult:
    """Soft labels, and how often the judge agrees with the labels given; `place` as in `perform`.

    One of a local model takes a GPU where it is submitted with the tag `gpu`.
    """
    inputs: dict[str, StageResult | ArtifactRef] = {"preferences": preferences}
    inputs |= import_constitution(config.judge.constitution)
    return perform("judge_preferences", config, inputs, label, place=place)
