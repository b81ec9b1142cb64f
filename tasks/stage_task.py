"""From a stage's specification to its Prefect task."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from prefect import Task, task
from prefect.states import Completed
from pydantic import BaseModel

from trimtab.models.data.records import ArtifactRef
from trimtab.models.specs import StageSpec
from trimtab.tasks.context import run_stage_task
from trimtab.tasks.execution import StageResult
from trimtab.tasks.resources import ONE_CORE, Resources
from trimtab.tasks.retries import RETRIES

Files = Callable[[Any], Mapping[str, ArtifactRef]]
OnResult = Callable[[Any, StageResult, str], None]


@dataclass(frozen=True)
class Hooks:
    """What happens in a stage's task beside running the stage.

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
        return result

    run.__name__ = run.__qualname__ = spec.name
    run.__doc__ = spec.doc
    run.__signature__ = _signature(spec)  # type: ignore[attr-defined]
    made: Task[..., StageResult] = task(
        name=spec.name, task_run_name="{label}", tags=[spec.device], **RETRIES
    )(run)
    return made


def _signature(spec: StageSpec) -> inspect.Signature:
    """`(config, *, <inputs>, label, resources, ledger)`, as Prefect shows and checks it."""
    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [
        inspect.Parameter("config", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=spec.config)
    ]
    for name in spec.inputs:
        default = inspect.Parameter.empty if name in spec.needed else None
        parameters.append(inspect.Parameter(name, keyword, default=default))
    parameters.append(
        inspect.Parameter("label", keyword, default=spec.label or spec.name, annotation=str)
    )
    parameters.append(
        inspect.Parameter("resources", keyword, default=ONE_CORE, annotation=Resources)
    )
    parameters.append(inspect.Parameter("ledger", keyword, default=None, annotation=str | None))
    return inspect.Signature(parameters, return_annotation=StageResult)
