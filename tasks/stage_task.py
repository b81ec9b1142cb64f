"""From a stage's specification to its Prefect task."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from prefect import Task, task
from pydantic import BaseModel

from models.data.records import ArtifactRef
from models.specs import StageSpec
from tasks.context import run_stage_task
from tasks.execution import StageResult
from tasks.resources import ONE_CORE, Resources
from tasks.retries import RETRIES

Files = Callable[[Any], Mapping[str, ArtifactRef]]
OnResult = Callable[[Any, StageResult, str], None]


def stage_task(
    spec: StageSpec,
    doc: str,
    *,
    label: str | None = None,
    resources: Resources = ONE_CORE,
    files: Files | None = None,
    on_result: OnResult | None = None,
) -> Task[..., StageResult]:
    """The Prefect task of a stage: `config`, its inputs as keywords, `label` and `resources`.

    doc: what the stage makes. label: what the task run is called, by default the stage's name.
    files: brings files that a configuration names into the store, as inputs.
    on_result: called with the configuration, the result and the label.
    A missing or unknown input is a TypeError.
    """

    def run(config: BaseModel, label: str, resources: Resources, **inputs: Any) -> StageResult:
        named = {**spec.named(inputs), **(files(config) if files else {})}
        result = run_stage_task(spec, config, named, label, resources)
        if on_result is not None:
            on_result(config, result, label)
        return result

    run.__name__ = run.__qualname__ = spec.name
    run.__doc__ = doc
    run.__signature__ = _signature(spec, label or spec.name, resources)  # type: ignore[attr-defined]
    made: Task[..., StageResult] = task(
        name=spec.name, task_run_name="{label}", tags=[spec.device], **RETRIES
    )(run)
    return made


def _signature(spec: StageSpec, label: str, resources: Resources) -> inspect.Signature:
    """`(config, *, <inputs>, label, resources)`, as Prefect shows and checks it."""
    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [
        inspect.Parameter("config", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=spec.config)
    ]
    for name in spec.inputs:
        default = inspect.Parameter.empty if name in spec.needed else None
        parameters.append(inspect.Parameter(name, keyword, default=default))
    parameters.append(inspect.Parameter("label", keyword, default=label, annotation=str))
    parameters.append(
        inspect.Parameter("resources", keyword, default=resources, annotation=Resources)
    )
    return inspect.Signature(parameters, return_annotation=StageResult)
