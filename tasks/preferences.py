"""Task `preferences`: bring people's preference files into the store, then read and split them."""

from __future__ import annotations

from pathlib import Path

from prefect import task

from infra.store.fetch import is_remote
from models.config.data import PreferencesConfig
from tasks.access import demand_access
from tasks.execution import StageResult
from tasks.perform import logger, perform
from tasks.retries import CPU
from tasks.sources import import_source, is_data


@task(name="preferences", task_run_name="{label}", **CPU)
def preferences(config: PreferencesConfig, label: str = "preferences") -> StageResult:
    """Pairs, prompts and demonstrations from files; hub data sets are read by the stage itself.

    A file enters the store under its content, so that a run never depends on a path again and a
    changed file is new work. A file of another kind stays where it is: the stage says so.
    """
    demand_access(config)
    inputs = {
        f"{name}_{index}": import_source(source)
        for name, sources in (("source", config.sources), ("demonstrations", config.demonstrations))
        for index, source in enumerate(sources)
        if is_remote(source) or _holds_data(Path(source).expanduser())
    }
    result = perform("preferences", config, inputs, label)
    logger.info("%s: %s", label, result.summary["account"])
    if result.summary["warnings"]:
        logger.warning("%s: %s", label, result.summary["warnings"])
    return result


def _holds_data(path: Path) -> bool:
    return path.is_dir() or (path.exists() and is_data(path.name))
