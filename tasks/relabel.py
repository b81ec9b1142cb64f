"""Task `relabel`: flips, soft labels and margins, and a person's verdicts."""

from __future__ import annotations

from prefect import task

from models.config.reward import RelabelConfig
from models.data.records import ArtifactRef
from tasks.execution import StageResult
from tasks.perform import perform
from tasks.retries import CPU
from tasks.sources import import_source


@task(name="relabel", task_run_name="{label}", **CPU)
def relabel(
    config: RelabelConfig,
    preferences: StageResult,
    strength: StageResult,
    label: str = "relabel",
) -> StageResult:
    """The training pairs with the treatment that their strength, or their review, calls for.

    The review enters the store under its content: another content is new work.
    """
    inputs: dict[str, StageResult | ArtifactRef] = {
        "preferences": preferences,
        "strength": strength,
    }
    if config.review is not None:
        inputs["review"] = import_source(config.review)
    return perform("relabel", config, inputs, label)
