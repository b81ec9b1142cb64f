"""Trimtab's flows: Prefect's own, but their parameters are plain values and no blocks.

Prefect reads the block that a parameter names ({"$ref": ...}), whichever it is, with the login of
the run's process, before the flow begins; the message about a mistake then holds what is in it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from prefect import Flow
from prefect.exceptions import ParameterTypeError

from trimtab.flows.lifecycle import run_name
from trimtab.flows.runner import task_runner

P = ParamSpec("P")
R = TypeVar("R")


class PlainParametersFlow(Flow[P, R]):
    """A flow that refuses references to blocks in its parameters."""

    def validate_parameters(self, parameters: dict[str, Any]) -> dict[str, Any]:
        """As Prefect's own; ParameterTypeError where a parameter refers to a block."""
        for name, value in parameters.items():
            if _has_reference(value):
                raise ParameterTypeError(
                    f"{name}: found a reference to a block ($ref); allowed: plain values"
                )
        return super().validate_parameters(parameters)


def flow(name: str) -> Callable[[Callable[P, R]], Flow[P, R]]:
    """Make a function a flow, with the run's name and the task runner of them all."""

    def made(function: Callable[P, R]) -> Flow[P, R]:
        return PlainParametersFlow(
            function, name=name, flow_run_name=run_name, task_runner=task_runner()
        )

    return made


def _has_reference(value: Any) -> bool:
    if isinstance(value, dict):
        return "$ref" in value or any(map(_has_reference, value.values()))
    return isinstance(value, list | tuple) and any(map(_has_reference, value))
