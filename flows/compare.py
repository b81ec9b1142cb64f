"""The flow `compare`: several methods on the same data and budget, over several seeds."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from trimtab.flows.config.names import GivenName
from trimtab.flows.config.over_seeds import (
    METHODS,
    SEEDS,
    CompareChanges,
    Seeds,
    comparison_name,
    configs_of_seeds,
)
from trimtab.flows.config.recipes import RecipeName
from trimtab.flows.pipeline import experiment
from trimtab.flows.pipeline.run import Run
from trimtab.flows.runs.flow import flow
from trimtab.flows.runs.lifecycle import (
    completed_state,
    report_about,
    require_startable,
    tracked_flow,
)
from trimtab.models.config.arms import Arm
from trimtab.models.config.reporting import CompareConfig
from trimtab.models.specs import COMPARE, SPECS
from trimtab.tasks.report_export import export_report, lineage_of

Arms = Annotated[list[Arm], Field(min_length=1)]
# Stages that the page reads a policy's cost and training curve from: not those that all arms share.
STAGES_READ = {name for name, spec in SPECS.items() if spec.makes == "policy"}
STAGES_READ |= {"rehearsal", "sample_responses"}
STAGES_READ -= {"sft", "constitutional_sft"}


@flow(name="compare")
def compare(
    recipe: RecipeName = "default",
    arms: Arms = list(METHODS),  # noqa: B006  (Prefect's form shows it; nobody changes it)
    seeds: Seeds = list(SEEDS),  # noqa: B006  (as above)
    changes: CompareChanges | None = None,
    name: GivenName | None = None,
) -> dict[str, object]:
    """Train several arms from one SFT policy per seed, and compare them on one page.

    The page shows score against KL, every pair of policies judged, ratings and cost. Stages that
    arms share run once.
    Returns the key numbers and where the page lies.

    Args:
        recipe: The recipe of the runs
        arms: The arms to compare, besides SFT
        seeds: Seeds of the runs, each with a synthetic world of its own
        changes: Settings to change in all runs; empty fields keep the recipe's values
        name: Name of the page, in MLflow and Prefect too; by default made of the above
    """
    configs = configs_of_seeds(recipe, arms, seeds, changes)
    config = configs[0]
    require_startable(config, "compare", len(seeds))
    run_name = comparison_name(config, arms, seeds, name)
    runs = [Run(config, name=run_name.name) for config in configs]
    with tracked_flow(config, run_name) as tracked:
        experiment.compare(*runs)
        results = {
            f"{run.config.seed}.{role}": run.result(role) for run in runs for role in run.roles
        }
        page = CompareConfig(
            recipe=config.recipe,
            seeds=tuple(seeds),
            arms=tuple(arms),
            num_candidates=config.best_of_n.num_responses,
            dpo_loss=config.dpo.loss,
            lineage=lineage_of(results),
        )
        read = {
            name: result
            for name, result in results.items()
            if result.ref.stage in STAGES_READ or name.endswith((".preferences", ".eval_best_of_n"))
        }
        matrix = {"win_matrix": runs[-1].result("win_matrix")}
        report = runs[-1].submit(COMPARE, page, artifacts=matrix | read).result()
        numbers = export_report(tracked, report, results, run_name.name, report_about(run_name))
    return completed_state(numbers)
