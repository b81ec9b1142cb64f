"""The whole experiment: noisy preferences in, a steadier policy out."""

from __future__ import annotations

from trimtab.flows import experiment
from trimtab.flows.flow import flow
from trimtab.flows.names import GivenName
from trimtab.flows.overrides import RunChanges
from trimtab.flows.recipes import RecipeName


@flow(name="rlhf")
def rlhf(
    recipe: RecipeName = "default", changes: RunChanges | None = None, name: GivenName | None = None
) -> dict[str, object]:
    """Preferences, label audit, scorers, policies, MetaRM rounds, report.

    Returns the report's key numbers and where the report lies.

    Args:
        recipe: The recipe to start from
        changes: Settings to change; empty fields keep the recipe's values
        name: Name in the report, MLflow and Prefect; by default made of recipe, seed and changes
    """
    return experiment.run_flow("rlhf", experiment.rlhf, recipe, changes, name)
