"""The experiment's label audit."""

from __future__ import annotations

from trimtab.flows.config.names import GivenName
from trimtab.flows.config.overrides import RunChanges
from trimtab.flows.config.recipes import RecipeName
from trimtab.flows.pipeline import experiment
from trimtab.flows.runs.flow import flow
from trimtab.flows.runs.lifecycle import run_flow


@flow(name="label-audit")
def label_audit(
    recipe: RecipeName = "default", changes: RunChanges | None = None, name: GivenName | None = None
) -> dict[str, object]:
    """Preferences to strength, relabelled pairs and report.

    Args:
        recipe: Settings to start from: models, data and size. On two cores audit (5,000 pairs of
            yours) takes 1 min; `trimtab recipes` lists all
        changes: Settings to change; empty fields keep the recipe's values
        name: Name of report and MLflow run; left empty, it is made of recipe, seed and changes,
            such as smoke-seed0
    """
    return run_flow("label-audit", experiment.label_audit, recipe, changes, name)
