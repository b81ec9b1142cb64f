"""The experiment without MetaRM rounds."""

from __future__ import annotations

from trimtab.flows import experiment
from trimtab.flows.flow import flow
from trimtab.flows.names import GivenName
from trimtab.flows.overrides import RunChanges
from trimtab.flows.recipes import RecipeName


@flow(name="policy")
def policy(
    recipe: RecipeName = "default", changes: RunChanges | None = None, name: GivenName | None = None
) -> dict[str, object]:
    """Everything up to the policies of all arms, judged and reported; no MetaRM rounds.

    Args:
        recipe: The recipe to start from
        changes: Settings to change; empty fields keep the recipe's values
        name: Name in the report, MLflow and Prefect; by default made of recipe, seed and changes
    """
    return experiment.run_flow("policy", experiment.policy, recipe, changes, name)
