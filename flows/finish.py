"""The end of a run: report, registered policies, links, and where to look."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from flows.config import RunConfig
from flows.run import Run, roles_of_round
from infra.launch import drain_on_sigterm
from infra.tracking import TrackedRun
from models.report.config import ReportConfig
from tasks.perform import start_tracked_run
from tasks.registry import mark_tried, register_policy
from tasks.report import announce, lineage_of, report
from tasks.stage import StageResult


@contextmanager
def tracked_flow(config: RunConfig, name: str) -> Iterator[TrackedRun]:
    """The MLflow run of a flow run, with the whole configuration as parameters.

    Meanwhile a SIGTERM stops the running trainers at a checkpoint, and then the flow.
    """
    tags = {"trimtab.recipe": config.recipe, "trimtab.seed": str(config.seed)}
    title = f"{name} {config.recipe} seed {config.seed}"
    with drain_on_sigterm(), start_tracked_run(title, tags) as tracked:
        tracked.log_params(config.model_dump(mode="json"))
        yield tracked


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
    summary = report.submit(
        ReportConfig(
            title=f"Trimtab: {config.recipe}",
            recipe=config.recipe,
            seed=config.seed,
            config=config.model_dump(mode="json"),
            lineage=lineage_of(results),
            arms=tuple(arm for arm in config.arms if f"policy_{arm}" in results),
            rounds=tuple(rounds),
            champion=promoted.removeprefix("policy_") if promoted else None,
            has_gold=config.is_synthetic,
        ),
        {role: done for role, done in results.items() if not role.startswith("cross_fitted_")},
    ).result()
    numbers = announce(tracked, summary, results, f"{config.recipe}-seed{config.seed}{suffix}")
    _register(run, tracked, champion, summary)  # last: without a registry it is an error
    return numbers


def _register(run: Run, tracked: TrackedRun, champion: int | None, summary: StageResult) -> None:
    """The last round's policy is the candidate, the promoted one the champion.

    Arms that the rounds do not continue are not registered.
    """
    last = run.last_round
    if last is None:
        return
    aliases: dict[int, tuple[str, ...]] = {last: ("candidate",)}
    if champion is not None:
        aliases[champion] = (*aliases.get(champion, ()), "champion")
    versions = {
        number: register_policy.submit(
            tracked.run_id,
            run.config.recipe,
            number,
            run.result(roles_of_round(number).policy),
            summary,
            names,
        ).result()
        for number, names in aliases.items()
    }
    mark_tried(run.config.recipe, versions[last], run.config.fingerprint)
