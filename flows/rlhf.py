"""The whole experiment on one page: noisy preferences in, a steadier policy out.

python -m flows.rlhf
"""

from __future__ import annotations

from collections.abc import Callable

from prefect import flow

from flows.config import RunConfig
from flows.finish import finish, tracked_flow
from flows.recipes import default
from flows.rounds import first_champion, improve_in_rounds
from flows.run import Run
from flows.stages import (
    audit_labels,
    keep_lower_states,
    prepare,
    train_policies,
    train_scorers,
)

__all__ = [
    *("audit", "experiment", "first_round", "scorers"),
    *("label_audit", "policy", "reward", "rlhf"),
]


@flow(name="rlhf", flow_run_name="rlhf-{config.recipe}-seed{config.seed}")
def rlhf(config: RunConfig | None = None) -> dict[str, object]:
    """Preferences, label audit, scorers, policies, MetaRM rounds, report.

    Returns the report's key numbers and where the report lies.
    """
    return _run("rlhf", experiment, config)


@flow(name="policy", flow_run_name="policy-{config.recipe}-seed{config.seed}")
def policy(config: RunConfig | None = None) -> dict[str, object]:
    """Everything up to the policies of all arms, judged and reported; no MetaRM rounds."""
    return _run("policy", first_round, config)


@flow(name="reward", flow_run_name="reward-{config.recipe}-seed{config.seed}")
def reward(config: RunConfig | None = None) -> dict[str, object]:
    """Preferences to strength, relabelled pairs, reward model, Advantage Model and report."""
    return _run("reward", scorers, config)


@flow(name="label-audit", flow_run_name="audit-{config.recipe}-seed{config.seed}")
def label_audit(config: RunConfig | None = None) -> dict[str, object]:
    """Preferences to strength, relabelled pairs and report."""
    return _run("label-audit", audit, config)


def _run(
    name: str, stages: Callable[[Run], int | None], config: RunConfig | None
) -> dict[str, object]:
    """Run stages to a report; that of a part of the experiment lies beside that of the whole."""
    run = Run(config or default())
    with tracked_flow(run.config, name) as tracked:
        champion = stages(run)
        return finish(run, tracked, champion, suffix="" if name == "rlhf" else f"-{name}")


def experiment(run: Run) -> int | None:
    """All stages but the report; returns the champion's round, `None` without one."""
    scorers(run)
    train_policies(run)
    return improve_in_rounds(run)


def first_round(run: Run) -> int | None:
    """All stages before the MetaRM rounds; returns 1 if the arm `full` is promoted."""
    scorers(run)
    train_policies(run)
    return first_champion(run)


def scorers(run: Run) -> None:
    """Everything before the first policy."""
    audit(run)
    train_scorers(run)


def audit(run: Run) -> None:
    """The stages of the label audit."""
    prepare(run)
    keep_lower_states(run)
    audit_labels(run)


if __name__ == "__main__":
    rlhf()
