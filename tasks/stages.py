"""The Prefect task of every stage, made of its specification (`trimtab.models.specs`)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from prefect import Task

from trimtab.infra.store.fetch import is_remote
from trimtab.models.config.data import PreferencesConfig
from trimtab.models.config.policy import PPOConfig
from trimtab.models.config.reward import ExternalRewardModelConfig
from trimtab.models.data.records import ArtifactRef
from trimtab.models.specs import SPECS
from trimtab.tasks.access import require_access
from trimtab.tasks.context import logger
from trimtab.tasks.events import COLLAPSED, emit
from trimtab.tasks.execution import StageResult
from trimtab.tasks.sources import (
    import_constitution,
    import_review,
    import_source,
    is_data,
    publish_digest,
)
from trimtab.tasks.stage_task import Hooks, stage_task


def _preference_files(config: PreferencesConfig) -> dict[str, ArtifactRef]:
    """Files of pairs and demonstrations under their content; the stage reads hub data sets itself.

    A run never depends on a path again, and a changed file is new work. A file of an unknown kind
    stays where it is: the stage says so.
    """
    require_access(config)
    return {
        f"{name}_{index}": import_source(source)
        for name, sources in (("source", config.sources), ("demonstrations", config.demonstrations))
        for index, source in enumerate(sources)
        if is_remote(source) or _holds_data(Path(source).expanduser())
    }


def _holds_data(path: Path) -> bool:
    return path.is_dir() or (path.exists() and is_data(path.name))


def _log_account(_: PreferencesConfig, result: StageResult, label: str) -> None:
    logger.info("%s: %s", label, result.summary["account"])
    if result.summary["warnings"]:
        logger.warning("%s: %s", label, result.summary["warnings"])


def _emit_collapse(config: PPOConfig, result: StageResult, label: str) -> None:
    """A collapse that the guard acted on is an event, for those who asked for notifications."""
    if result.summary["collapsed"] and config.guard.action != "warn" and not result.cached:
        emit(COLLAPSED, label, reason=result.summary["collapse_reason"])


def _review(config: Any) -> dict[str, ArtifactRef]:
    return {} if config.review is None else {"review": import_review(config.review)}


def _votes(config: Any) -> dict[str, ArtifactRef]:
    return {"votes": import_source(config.source)}


def _content_of_model(config: ExternalRewardModelConfig) -> dict[str, ArtifactRef]:
    """What a folder of a model holds, so that a changed one is asked anew; it is not copied."""
    require_access(config)
    folder = Path(config.model).expanduser()
    return {"content": publish_digest(folder)} if folder.is_dir() else {}


def _judge_constitution(config: Any) -> dict[str, ArtifactRef]:
    return import_constitution(config.judge.constitution)


def _constitution(config: Any) -> dict[str, ArtifactRef]:
    return import_constitution(config.constitution)


HOOKS: Final[Mapping[str, Hooks]] = {
    "preferences": Hooks(files=_preference_files, on_result=_log_account),
    "external_votes": Hooks(files=_votes),
    "external_reward_model": Hooks(files=_content_of_model),
    "relabel": Hooks(files=_review),
    "revise": Hooks(files=_constitution),
    "judge_preferences": Hooks(files=_judge_constitution),
    "judge_answers": Hooks(files=_judge_constitution),
    "ppo_max": Hooks(on_result=_emit_collapse),
}
TASKS: Final[Mapping[str, Task[..., StageResult]]] = {
    name: stage_task(spec, HOOKS.get(name, Hooks())) for name, spec in SPECS.items()
}
