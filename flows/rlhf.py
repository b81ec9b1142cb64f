"""The whole experiment: noisy preferences in, a steadier policy out."""

from __future__ import annotations

from prefect import flow

from flows.changes import RunChanges
from flows.experiment import experiment, run_flow
from flows.finish import run_name
from flows.recipes import RecipeName
from flows.runner import task_runner


@flow(name="rlhf", flow_run_name=run_name, task_runner=task_runner())
def rlhf(recipe: RecipeName = "default", changes: RunChanges | None = None) -> dict[str, object]:
    """Preferences, label audit, scorers, policies, MetaRM rounds, report.

    Returns the report's key numbers and where the report lies.

    Args:
        recipe: The configuration to start from
        changes: What to do otherwise; what is left empty stays as the recipe has it
    """
    return run_flow("rlhf", experiment, recipe, changes)
