"""Reproduce a table or figure of the papers: run its arms for each seed, and judge the claim."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial

from trimtab.flows.config.config import RunConfig
from trimtab.flows.config.errors import ConfigError
from trimtab.flows.config.over_seeds import (
    SEEDS,
    Seeds,
    find_exhibits,
    study_config,
    study_name,
)
from trimtab.flows.config.overrides import RunChanges, apply_changes, format_overrides
from trimtab.flows.config.recipes import RecipeName
from trimtab.flows.pipeline.run import Future, Run, SharedRun
from trimtab.flows.runs.flow import flow
from trimtab.flows.runs.lifecycle import report_about, require_startable, tracked_flow
from trimtab.flows.studies import arms, sweeps
from trimtab.infra.processes.launch import TrainerStoppedError
from trimtab.infra.tracking.runs import TrackedRun
from trimtab.models.config.data import WORLD_VERSION
from trimtab.models.config.reporting import StudyConfig
from trimtab.models.specs import STUDY
from trimtab.models.studies.registry import Exhibit, ExhibitName, Paper
from trimtab.tasks.report_export import export_report, lineage_of

logger = logging.getLogger("trimtab")


@flow(name="study", subject="{paper}-{exhibit}")
def study(
    paper: Paper = "part-2",
    exhibit: ExhibitName = "figure-3",
    scale: RecipeName = "default",
    seeds: Seeds = list(SEEDS),  # noqa: B006  (Prefect's form shows it; nobody changes it)
    changes: RunChanges | None = None,
) -> dict[str, str]:
    """Reproduce a paper's table or figure over several seeds: spread, and whether its claim held.

    Arms that several exhibits need are trained once. Returns each exhibit's status: held, in part,
    not held, cannot tell.

    Args:
        paper: Secrets of RLHF Part I or II, the Advantage Model paper, or a study of our own
        exhibit: The table or figure, or all of the paper
        scale: The recipe of the runs, without pre-training loss, weights by risk and bounds by
            label, and with a guard at 20 nats
        seeds: Seeds of the runs, each a world of its own
        changes: Settings to change; empty fields keep the values of a study
    """
    exhibits = find_exhibits(paper, exhibit, seeds)
    config = study_config(scale, changes)
    require_startable(config)
    submitted: dict[Hashable, Future] = {}
    words = (*format_overrides(changes), "--scale", scale, "--seeds", *map(str, seeds))
    configs = [apply_changes(config, {"seed": seed}) for seed in seeds]
    name = study_name(config, f"{paper}-{exhibit}", seeds)
    runs: dict[Exhibit, dict[int, Run]] = {
        exhibit: {
            config.seed: SharedRun(config, name=name.name, submitted=submitted)
            for config in configs
        }
        for exhibit in exhibits
    }
    with tracked_flow(configs[0], name) as tracked:
        for wanted, runs_by_seed in runs.items():
            for run in runs_by_seed.values():
                submit_arms(wanted, run)
        return read_all(runs, partial(_read, config=config, tracked=tracked, words=words))


def submit_arms(exhibit: Exhibit, run: Run) -> None:
    """Submit the stages that an exhibit is read from; ConfigError outside of its world."""
    if exhibit.in_world and not run.config.is_synthetic:
        raise ConfigError(
            f"{exhibit.slug} needs the synthetic world, found the recipe {run.config.recipe}; "
            "allowed: smoke, default, papers"
        )
    module = sweeps if hasattr(sweeps, exhibit.arms) else arms
    submit = getattr(module, exhibit.arms)
    submit(run) if exhibit.varied is None else submit(run, exhibit.varied)


def read_all(
    runs: Mapping[Exhibit, dict[int, Run]], read: Callable[[Exhibit, dict[int, Run]], str]
) -> dict[str, str]:
    """The status of each exhibit. If one fails, the others are still read, then it is raised.

    TrainerStoppedError, raised when the study is asked to stop, ends all of them at once.
    """
    statuses: dict[str, str] = {}
    failed: list[Exception] = []
    for exhibit, runs_by_seed in runs.items():
        try:
            statuses[exhibit.slug] = read(exhibit, runs_by_seed)
        except TrainerStoppedError:
            raise
        except Exception as error:
            logger.error("%s has no page: %s", exhibit.slug, error)
            failed.append(error)
    if failed:
        raise failed[0]
    return statuses


def _read(
    exhibit: Exhibit,
    runs: dict[int, Run],
    config: RunConfig,
    tracked: TrackedRun,
    words: Sequence[str],
) -> str:
    """Wait for the arms, read them and export the page; returns the status.

    words: those of the command behind paper and exhibit.
    """
    results = {
        f"{seed}.{role}": run.result(role) for seed, run in runs.items() for role in run.roles
    }
    reading = StudyConfig(
        paper=exhibit.paper,
        exhibit=exhibit.name,
        scale=config.recipe,
        seeds=tuple(runs),
        command=shlex.join(["trimtab", "study", exhibit.paper, exhibit.name, *words]),
        world_version=WORLD_VERSION if config.is_synthetic else None,
        lineage=lineage_of(results),
    )
    label = f"{exhibit.title} of {exhibit.paper}"
    first = next(iter(runs.values()))
    report = first.submit(STUDY, reading, artifacts=results, label=label).result()
    name = study_name(config, exhibit.slug, list(runs))
    numbers = export_report(tracked, report, results, name.name, report_about(name))
    return str(numbers["status"])
