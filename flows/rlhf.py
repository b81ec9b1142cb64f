"""The whole experiment on one page: noisy preferences in, a steadier policy out.

python -m flows.rlhf
"""

from __future__ import annotations

from prefect import flow

from flows.config import RunConfig
from flows.finish import finish, tracked_flow
from flows.recipes import default
from flows.stages import (
    Run,
    audit_labels,
    improve_in_rounds,
    prepare,
    train_policies,
    train_scorers,
)

__all__ = ["label_audit", "rlhf"]


@flow(name="rlhf", flow_run_name="rlhf-{config.recipe}-seed{config.seed}")
def rlhf(config: RunConfig | None = None) -> dict[str, object]:
    """Preferences, label audit, scorers, policies, MetaRM rounds, report.

    Returns the report's key numbers and where the report lies.
    """
    run = Run(config or default())
    with tracked_flow(run.config, "rlhf") as tracked:
        prepare(run)
        audit_labels(run)
        train_scorers(run)
        train_policies(run)
        champion = improve_in_rounds(run) if "full" in run.config.arms else None
        return finish(run, tracked, champion)


@flow(name="label-audit", flow_run_name="audit-{config.recipe}-seed{config.seed}")
def label_audit(config: RunConfig | None = None) -> dict[str, object]:
    """Preferences to strength, relabelled pairs, scorers and report; no policy is trained."""
    run = Run(config or default())
    with tracked_flow(run.config, "label-audit") as tracked:
        prepare(run)
        audit_labels(run)
        train_scorers(run)
        return finish(run, tracked, None)


if __name__ == "__main__":
    rlhf()
