"""Task `sft`: supervised fine-tuning on demonstrations."""

from __future__ import annotations

from prefect import task

from models.config.training import SFTConfig
from tasks.execution import StageResult
from tasks.perform import ALONE, perform
from tasks.retries import GPU


@task(name="sft", task_run_name="{label}", **GPU)
def sft(
    config: SFTConfig,
    data: StageResult,
    label: str = "sft",
    by_ranks: bool = False,
) -> StageResult:
    """The policy everything else starts from; `by_ranks` as in `perform`."""
    return perform("sft", config, {"data": data}, label, place=ALONE, by_ranks=by_ranks)
