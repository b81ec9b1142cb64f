"""The whole experiment on one page: noisy preferences in, a steadier policy out.

python -m flows.rlhf
"""

from __future__ import annotations

from collections.abc import Callable

from prefect import flow

from flows.changes import RunChanges, changed
from flows.finish import finish, run_name, tracked_flow
from flows.recipes import RecipeName, recipe_named
from flows.rounds import first_champion, improve_in_rounds
from flows.run import Run
from flows.runner import task_runner
from flows.stages import (
    audit_labels,
    compare_votes,
    keep_lower_states,
    prepare,
    train_policies,
    train_scorers,
)

__all__ = [
    *("audit", "experiment", "first_round", "scorers"),
    *("label_audit", "policy", "reward", "rlhf"),
]


@flow(name="rlhf", flow_run_name=run_name, task_runner=task_runner())
def rlhf(recipe: RecipeName = "default", changes: RunChanges | None = None) -> dict[str, object]:
    """Preferences, label audit, scorers, policies, MetaRM rounds, report.

    Returns the report's key numbers and where the report lies.

    Args:
        recipe: The configuration to start from
        changes: What to do otherwise; what is left empty stays as the recipe has it
    """
    return _run("rlhf", experiment, recipe, changes)


@flow(name="policy", flow_run_name=run_name, task_runner=task_runner())
def policy(recipe: RecipeName = "default", changes: RunChanges | None = None) -> dict[str, object]:
    """Everything up to the policies of all arms, judged and reported; no MetaRM rounds.

    Args:
        recipe: The configuration to start from
        changes: What to do otherwise; what is left empty stays as the recipe has it
    """
    return _run("policy", first_round, recipe, changes)


@flow(name="reward", flow_run_name=run_name, task_runner=task_runner())
def reward(recipe: RecipeName = "default", changes: RunChanges | None = None) -> dict[str, object]:
    """Preferences to strength, relabelled pairs, reward model, Advantage Model and report.

    Args:
        recipe: The configuration to start from
        changes: What to do otherwise; what is left empty stays as the recipe has it
    """
    return _run("reward", scorers, recipe, changes)


@flow(name="label-audit", flow_run_name=run_name, task_runner=task_runner())
def label_audit(
    recipe: RecipeName = "default", changes: RunChanges | None = None
) -> dict[str, object]:
    """Preferences to strength, relabelled pairs and report.

    Args:
        recipe: The configuration to start from
        changes: What to do otherwise; what is left empty stays as the recipe has it
    """
    return _run("label-audit", audit, recipe, changes)


def _run(
    name: str, stages: Callable[[Run], int | None], recipe: RecipeName, changes: RunChanges | None
) -> dict[str, object]:
    """Run stages to a report; that of a part of the experiment lies beside that of the whole."""
    run = Run(changed(recipe_named(recipe), changes))
    with tracked_flow(run.config, name) as tracked:
        champion = stages(run)
        return finish(run, tracked, champion, suffix="" if name == "rlhf" else f"-{name}")


def experiment(run: Run) -> int | None:
    """All stages but the report; returns the champion's round, `None` without one."""
    policies(run)
    return improve_in_rounds(run)


def first_round(run: Run) -> int | None:
    """All stages before the MetaRM rounds; returns 1 if the arm `full` is promoted."""
    policies(run)
    compare_votes(run)
    return first_champion(run)


def policies(run: Run) -> None:
    """The policies of all arms, and all that they are trained on."""
    prepare_labels(run)
    train_scorers(run)
    train_policies(run)


def scorers(run: Run) -> None:
    """Everything before the first policy."""
    prepare_labels(run)
    train_scorers(run)
    compare_votes(run)


def audit(run: Run) -> None:
    """The stages of the label audit."""
    prepare_labels(run)
    compare_votes(run)


def prepare_labels(run: Run) -> None:
    """Preference pairs, the SFT policy, the ensemble's vote on the labels, relabelled pairs."""
    prepare(run)
    keep_lower_states(run)
    audit_labels(run)


if __name__ == "__main__":
    rlhf()
