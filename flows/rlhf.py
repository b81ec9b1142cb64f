"""The whole experiment on one page: noisy preferences in, a steadier policy out.

python -m flows.rlhf
"""

from __future__ import annotations

from collections.abc import Callable

from prefect import flow

from flows.config import RunConfig
from flows.finish import finish, tracked_flow
from flows.recipes import default
from flows.run import Run
from flows.stages import (
    audit_labels,
    improve_in_rounds,
    keep_lower_states,
    prepare,
    train_policies,
    train_scorers,
)

__all__ = ["audit", "experiment", "label_audit", "reward", "rlhf", "scorers"]


@flow(name="rlhf", flow_run_name="rlhf-{config.recipe}-seed{config.seed}")
def rlhf(config: RunConfig | None = None) -> dict[str, object]:
    """Preferences, label audit, scorers, policies, MetaRM rounds, report.

    Returns the report's key numbers and where the report lies.
    """
    run = Run(config or default())
    with tracked_flow(run.config, "rlhf") as tracked:
        champion = experiment(run)
        return finish(run, tracked, champion)


@flow(name="reward", flow_run_name="reward-{config.recipe}-seed{config.seed}")
def reward(config: RunConfig | None = None) -> dict[str, object]:
    """Preferences to strength, relabelled pairs, reward model, Advantage Model and report."""
    return _without_policy("reward", scorers, config)


@flow(name="label-audit", flow_run_name="audit-{config.recipe}-seed{config.seed}")
def label_audit(config: RunConfig | None = None) -> dict[str, object]:
    """Preferences to strength, relabelled pairs and report."""
    return _without_policy("label-audit", audit, config)


def _without_policy(
    name: str, stages: Callable[[Run], None], config: RunConfig | None
) -> dict[str, object]:
    run = Run(config or default())
    with tracked_flow(run.config, name) as tracked:
        stages(run)
        return finish(run, tracked, None, suffix=f"-{name}")


def experiment(run: Run) -> str | None:
    """All stages but the report; returns the champion's role, `None` without one."""
    scorers(run)
    train_policies(run)
    return improve_in_rounds(run) if "full" in run.config.arms else None


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
