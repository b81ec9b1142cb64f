"""The Prefect task of every stage, made of its specification (`trimtab.models.specs`), and when
that is tried again."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

from prefect import Task
from prefect.assets import Asset, AssetProperties
from prefect.context import AssetContext
from prefect.states import Completed
from prefect.tasks import MaterializingTask
from pydantic import BaseModel

from trimtab.infra.processes.launch import TrainerKilledError
from trimtab.infra.store.fetch import is_remote
from trimtab.infra.store.manifest import StoreUnavailableError
from trimtab.infra.tracking.registry import RegistryError
from trimtab.models.config.data import PreferencesConfig
from trimtab.models.config.external_reward import ExternalRewardVotesConfig, RewardConfig
from trimtab.models.config.policy import PPOConfig
from trimtab.models.data.records import ArtifactRef
from trimtab.models.specs import SPECS, StageSpec
from trimtab.tasks.access import require_access
from trimtab.tasks.cache_key import CodeChangedError, function_version
from trimtab.tasks.context import logger, run_stage_task
from trimtab.tasks.events import COLLAPSED, emit
from trimtab.tasks.execution import StageResult
from trimtab.tasks.resources import ONE_CORE, Resources
from trimtab.tasks.sources import (
    import_constitution,
    import_review,
    import_source,
    is_data,
    publish_digest,
    publish_text,
)

_PASSING = (TrainerKilledError, StoreUnavailableError, RegistryError, CodeChangedError)


def is_transient(_task: Any, _task_run: Any, state: Any) -> bool:
    """Whether a task failed for a transient reason: a kill, an outage, or an edit of its code.

    On retry a trainer continues from its newest checkpoint; after an edit it starts anew.
    """
    return isinstance(state.data, _PASSING)


RETRIES: dict[str, Any] = {
    "retries": 3,
    "retry_delay_seconds": [2, 10, 30],
    "retry_condition_fn": is_transient,
}

Files = Callable[[Any], Mapping[str, ArtifactRef]]
OnResult = Callable[[Any, StageResult, str], None]


@dataclass(frozen=True)
class Hooks:
    """Further work of a stage's task.

    files: brings files that a configuration names into the store, as inputs by name.
    on_result: is called with the configuration, the result and the label.
    """

    files: Files | None = None
    on_result: OnResult | None = None


def stage_task(spec: StageSpec, hooks: Hooks) -> Task[..., StageResult]:
    """The Prefect task of a stage: `config`, its inputs, `label`, `resources` and `ledger`.

    A missing or unknown input is a TypeError.
    """

    def run(
        config: BaseModel, label: str, resources: Resources, ledger: str | None, **inputs: Any
    ) -> StageResult:
        named = {**spec.named(inputs), **(hooks.files(config) if hooks.files else {})}
        result = run_stage_task(spec, config, named, label, resources, ledger)
        if hooks.on_result is not None:
            hooks.on_result(config, result, label)
        if result.cached:  # as Prefect names what it finds in its own cache
            state: Any = Completed(name="Cached", message="found in the store", data=result)
            return cast(StageResult, state)  # which Prefect unwraps
        _describe(result)
        return result

    run.__name__ = run.__qualname__ = spec.name
    run.__doc__ = spec.doc
    run.__signature__ = _signature(spec)  # type: ignore[attr-defined]
    options: Any = {"name": spec.name, "task_run_name": "{label}", "tags": [spec.device], **RETRIES}
    if spec.makes:  # which one is said when it is submitted
        return MaterializingTask(run, assets=[], materialized_by="trimtab", **options)
    return Task(run, **options)


def _describe(result: StageResult) -> None:
    """Say of the asset that a task has made which artifact it is."""
    context = AssetContext.get()
    for asset in context.downstream_assets if context else ():
        asset.add_metadata(dataclasses.asdict(result.ref))


def asset_task(
    task: Task[..., StageResult], data: str, label: str | None
) -> Task[..., StageResult]:
    """The task with the asset that it makes, if it makes one; `data` names recipe and data.

    Runs of the same recipe and data make it anew; Prefect relates it to those that it is made of.
    """
    if not isinstance(task, MaterializingTask):
        return task
    name = f"{SPECS[task.name].makes}: {label or task.name}"
    key = re.sub(r"[^a-z0-9.]+", "-", (label or task.name).lower())
    asset = Asset(key=f"trimtab://{data}/{key}", properties=AssetProperties(name=name))
    return task.with_options(assets=[asset])


def _signature(spec: StageSpec) -> inspect.Signature:
    """`(config, *, <inputs>, label, resources, ledger)`, as Prefect shows and checks it."""
    empty = inspect.Parameter.empty

    def keyword(name: str, default: Any, annotation: Any = empty) -> inspect.Parameter:
        kind = inspect.Parameter.KEYWORD_ONLY
        return inspect.Parameter(name, kind, default=default, annotation=annotation)

    positional = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [
        inspect.Parameter("config", positional, annotation=spec.config),
        *(keyword(name, empty if name in spec.needed else None) for name in spec.inputs),
        keyword("label", spec.label or spec.name, str),
        keyword("resources", ONE_CORE, Resources),
        keyword("ledger", None, str | None),
    ]
    return inspect.Signature(parameters, return_annotation=StageResult)


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


def _content_of_reward(
    config: RewardConfig | ExternalRewardVotesConfig,
) -> dict[str, ArtifactRef]:
    """The digests of folders and of functions' sources, so that a changed one is asked anew."""
    require_access(config)
    content = []
    for member in config.members:
        if member.function is not None:
            content.append(publish_text(f"{function_version(member.function)}\n"))
        elif member.model is not None and (folder := Path(member.model).expanduser()).is_dir():
            content.append(publish_digest(folder))
    return {f"content_{index}": ref for index, ref in enumerate(content)}


def _judge_constitution(config: Any) -> dict[str, ArtifactRef]:
    return import_constitution(config.judge.constitution)


HOOKS: Final[Mapping[str, Hooks]] = {
    "preferences": Hooks(files=_preference_files, on_result=_log_account),
    "external_votes": Hooks(files=lambda config: {"votes": import_source(config.source)}),
    "external_reward_votes": Hooks(files=_content_of_reward),
    "external_reward": Hooks(files=_content_of_reward),
    "relabel": Hooks(files=_review),
    "revise": Hooks(files=lambda config: import_constitution(config.constitution)),
    "judge_preferences": Hooks(files=_judge_constitution),
    "judge_answers": Hooks(files=_judge_constitution),
    "ppo_max": Hooks(on_result=_emit_collapse),
}
TASKS: Final[Mapping[str, Task[..., StageResult]]] = {
    name: stage_task(spec, HOOKS.get(name, Hooks())) for name, spec in SPECS.items()
}
