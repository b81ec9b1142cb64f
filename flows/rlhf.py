"""The whole experiment on one page: noisy preferences in, a steadier policy out.

python -m flows.rlhf
"""

from __future__ import annotations

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

__all__ = ["audit", "experiment", "label_audit", "rlhf"]


@flow(name="rlhf", flow_run_name="rlhf-{config.recipe}-seed{config.seed}")
def rlhf(config: RunConfig | None = None) -> dict[str, object]:
    """Preferences, label audit, scorers, policies, MetaRM rounds, report.

    Returns the report's key numbers and where the report lies.
    """
    run = Run(config or default())
    with tracked_flow(run.config, "rlhf") as tracked:
        champion = experiment(run)
        return finish(run, tracked, champion)


def experiment(run: Run) -> str | None:
    """All stages but the report; returns the champion's role, `None` without one."""
    audit(run)
    train_policies(run)
    return improve_in_rounds(run) if "full" in run.config.arms else None


@flow(name="label-audit", flow_run_name="audit-{config.recipe}-seed{config.seed}")
def label_audit(config: RunConfig | None = None) -> dict[str, object]:
    """Preferences to strength, relabelled pairs, scorers and report; no policy is trained."""
    run = Run(config or default())
    with tracked_flow(run.config, "label-audit") as tracked:
        audit(run)
        return finish(run, tracked, None)


def audit(run: Run) -> None:
    """The stages of the label audit."""
    prepare(run)
    keep_lower_states(run)
    audit_labels(run)
    train_scorers(run)


if __name__ == "__main__":
    rlhf()
