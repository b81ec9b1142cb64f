"""The end of a run: report, registered policies, links, and where to look."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from flows.config import RunConfig
from flows.run import Run
from infra.launch import drain_on_sigterm
from infra.tracking import TrackedRun
from models.report.config import ReportConfig
from tasks.perform import start_tracked_run
from tasks.registry import register_policy
from tasks.report import announce, lineage_of, report


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
    run: Run, tracked: TrackedRun, champion: str | None, suffix: str = ""
) -> dict[str, object]:
    """Wait for everything, write the report, register its policies; returns the key numbers.

    `suffix` keeps the report of a part of the experiment beside that of the whole.
    """
    results = {role: run.result(role) for role in run.roles}
    config = run.config
    rounds = [role for role in results if role.startswith("policy_round_")]
    summary = report.submit(
        ReportConfig(
            title=f"Trimtab: {config.recipe}",
            recipe=config.recipe,
            seed=config.seed,
            config=config.model_dump(mode="json"),
            lineage=lineage_of(results),
            arms=tuple(arm for arm in config.arms if f"policy_{arm}" in results),
            rounds=tuple(int(role.rpartition("_")[2]) for role in rounds),
            champion=champion.removeprefix("policy_") if champion else None,
            has_gold=config.is_synthetic,
        ),
        {role: done for role, done in results.items() if not role.startswith("cross_fitted_")},
    ).result()
    for role, aliases in _registered(champion, results).items():
        register_policy.submit(tracked.run_id, results[role], config.recipe, aliases).result()
    return announce(tracked, summary, results, f"{config.recipe}-seed{config.seed}{suffix}")


def _registered(champion: str | None, roles: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Aliases by role: the last policy of the rounds is the candidate, the promoted one champion.

    `roles` are in the order of making. Arms that the rounds do not continue are not registered.
    """
    chain = [r for r in roles if r == "policy_full" or r.startswith("policy_round_")]
    aliases: dict[str, tuple[str, ...]] = dict.fromkeys(chain[-1:], ("candidate",))
    if champion is not None:
        aliases[champion] = (*aliases.get(champion, ()), "champion")
    return aliases
