"""The end of a run: report, registered policies, links, and where to look."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

from prefect.runtime import flow_run

from flows.config import RunConfig
from flows.run import Run, roles_of_round
from infra.gpus import unused_gpus
from infra.launch import drain_on_sigterm
from infra.tracking import TrackedRun
from models.report.config import ReportConfig
from tasks.perform import start_tracked_run
from tasks.registry import register_policies
from tasks.report import announce, lineage_of, report
from tasks.restarts import end_earlier, take_over

logger = logging.getLogger("trimtab")


def run_name() -> str:
    """The name of the flow run under way: flow, recipe and, where it is changed, seed."""
    parameters = flow_run.parameters
    changes = parameters.get("changes") or {}
    given = changes if isinstance(changes, dict) else changes.model_dump(exclude_unset=True)
    seed = f"-seed{given['seed']}" if "seed" in given else ""
    return f"{flow_run.flow_name}-{parameters['recipe']}{seed}"


@contextmanager
def tracked_flow(config: RunConfig, name: str) -> Iterator[TrackedRun]:
    """The MLflow run of a flow run, with the whole configuration as parameters.

    Meanwhile a SIGTERM stops the running trainers at a checkpoint, and then the flow.
    """
    take_over()
    if line := unused_gpus(os.environ):
        logger.warning("%s", line)
    tags = {"trimtab.recipe": config.recipe, "trimtab.seed": str(config.seed)}
    title = f"{name} {config.recipe} seed {config.seed}"
    with drain_on_sigterm(), start_tracked_run(title, tags) as tracked:
        tracked.log(params=config.model_dump(mode="json"))
        try:
            yield tracked
        finally:
            tracked.tracking.background.settle()
            end_earlier(tracked)


def finish(
    run: Run, tracked: TrackedRun, champion: int | None, suffix: str = ""
) -> dict[str, object]:
    """Wait for everything, write the report, register the policies; returns the key numbers.

    `champion` is the last round that was promoted. `suffix` keeps the report of a part of the
    experiment beside that of the whole.
    """
    results = {role: run.result(role) for role in run.roles}
    config = run.config
    rounds = range(2, (run.last_round or 1) + 1)
    promoted = roles_of_round(champion).policy if champion else None
    summary = run.submit(
        report,
        ReportConfig(
            title=f"Trimtab: {config.recipe}",
            recipe=config.recipe,
            seed=config.seed,
            config=config.model_dump(mode="json"),
            lineage=lineage_of(results),
            arms=tuple(arm for arm in config.arms if f"eval_{arm}" in results),
            rounds=tuple(rounds),
            champion=promoted.removeprefix("policy_") if promoted else None,
            has_gold=config.is_synthetic,
        ),
        {role: done for role, done in results.items() if not role.startswith("cross_fitted_")},
    ).result()
    numbers = announce(tracked, summary, results, f"{config.recipe}-seed{config.seed}{suffix}")
    rounds_to_keep = sorted(number for number in {champion, run.last_round} if number is not None)
    policies = {number: run.result(roles_of_round(number).policy) for number in rounds_to_keep}
    # Last: without a registry it is an error. Arms that rounds do not go on from are left out.
    run.submit(
        register_policies,
        *(tracked.run_id, config.recipe, policies, champion, summary, config.fingerprint),
    ).result()
    return numbers
