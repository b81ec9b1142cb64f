"""Task `comparisons`: sample the policy, let simulated annotators compare."""

from __future__ import annotations

from prefect import task

from models.config.data import ComparisonsConfig
from tasks.execution import StageResult
from tasks.perform import ALONE, perform
from tasks.retries import GPU


@task(name="comparisons", task_run_name="{label}", **GPU)
def comparisons(
    config: ComparisonsConfig,
    data: StageResult,
    policy: StageResult,
    label: str = "comparisons",
    by_ranks: bool = False,
) -> StageResult:
    """Preference pairs with planted noise, split by prompt; `by_ranks` as in `perform`."""
    inputs = {"data": data, "policy": policy}
    return perform("comparisons", config, inputs, label, place=ALONE, by_ranks=by_ranks)
