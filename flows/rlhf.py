"""The whole experiment: noisy preferences in, a steadier policy out."""

from __future__ import annotations

from flows import experiment
from flows.flow import flow
from flows.names import GivenName
from flows.overrides import RunChanges
from flows.recipes import RecipeName


@flow(name="rlhf")
def rlhf(
    recipe: RecipeName = "default", changes: RunChanges | None = None, name: GivenName | None = None
) -> dict[str, object]:
    """Preferences, label audit, scorers, policies, MetaRM rounds, report.

    Returns the report's key numbers and where the report lies.

    Args:
        recipe: The configuration to start from
        changes: What to do otherwise; what is left empty stays as the recipe has it
        name: The run's name, for report, MLflow and Prefect; by default what data and changes give
    """
    return experiment.run_flow("rlhf", experiment.rlhf, recipe, changes, name)
