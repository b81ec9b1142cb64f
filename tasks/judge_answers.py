"""Task `judge_answers`: a judge model's view of what policies answered."""

from __future__ import annotations

from prefect import task

from models.config.judge import JudgeAnswersConfig
from models.data.records import ArtifactRef
from tasks.execution import StageResult
from tasks.perform import Place, perform
from tasks.retries import CPU
from tasks.sources import import_constitution


@task(name="judge_answers", task_run_name="{label}", **CPU)
def judge_answers(
    config: JudgeAnswersConfig,
    evaluations: list[StageResult],
    names: list[str],
    label: str = "judge answers",
    place: Place | None = None,
) -> StageResult:
    """Win, tie or lose of every two policies; names: `<seed>.<policy>` of each evaluation.

    `place` as in `perform`. One of a local model takes a GPU where it is submitted with the tag
    `gpu`.
    """
    inputs: dict[str, StageResult | ArtifactRef] = dict(zip(names, evaluations, strict=True))
    inputs |= import_constitution(config.judge.constitution)
    return perform("judge_answers", config, inputs, label, place=place)
