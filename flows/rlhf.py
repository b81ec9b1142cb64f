"""The whole experiment: noisy preferences in, a steadier policy out."""

from __future__ import annotations

from trimtab.flows.config.names import GivenName
from trimtab.flows.config.overrides import RunChanges
from trimtab.flows.config.recipes import RecipeName
from trimtab.flows.pipeline import experiment
from trimtab.flows.runs.flow import flow
from trimtab.flows.runs.lifecycle import run_flow


@flow(name="rlhf")
def rlhf(
    recipe: RecipeName = "default", changes: RunChanges | None = None, name: GivenName | None = None
) -> dict[str, object]:
    """Preferences, label audit, scorers, policies, MetaRM rounds, report.

    Returns the report's key numbers and where the report lies.

    Args:
        recipe: Settings to start from: model, data and size. Whole, on two cores: smoke (checks the
            installation) takes 1 min, default (the demo) 5 min, hh-smollm2 (Anthropic's HH pairs
            with SmolLM2-135M) 86 min; `trimtab recipes` lists all
        changes: Settings to change; empty fields keep the recipe's values
        name: Name of report and MLflow run; left empty, it is made of recipe, seed and changes,
            such as smoke-seed0
    """
    return run_flow("rlhf", experiment.rlhf, recipe, changes, name)
