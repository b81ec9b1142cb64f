"""Trimtab's flows: Prefect's own, but a mistake in their parameters ends the run as Failed.

Prefect's engine raises outside of the flow run where a parameter is none of the flow's, which its
server does not refuse by every deployment's schema: the run then counts as crashed, and is started
again. It also reads the block that a parameter names ({"$ref": ...}), whichever it is, with the
login of the run's process, before the flow begins; the message about a mistake then holds what is
in it. Parameters are plain values here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from prefect import Flow, flow_engine
from prefect.exceptions import ParameterTypeError
from prefect.utilities.callables import get_parameter_defaults

from trimtab.flows.pipeline.runner import task_runner
from trimtab.infra.prefect.fence import watch_for_newer_start

P = ParamSpec("P")
R = TypeVar("R")


class PlainParametersFlow(Flow[P, R]):
    """A flow that refuses unknown parameters, and references to blocks in others."""

    def validate_parameters(self, parameters: dict[str, Any]) -> dict[str, Any]:
        """As Prefect's own, which calls it before it says that the run is running.

        ParameterTypeError for a parameter that is none of the flow's or refers to a block.
        """
        watch_for_newer_start()
        known = list(self.parameters.properties)
        if unknown := sorted(parameters.keys() - set(known)):
            raise ParameterTypeError(
                f"{', '.join(unknown)}: no parameter of the flow {self.name}; allowed: "
                f"{', '.join(known)}"
            )
        for name, value in parameters.items():
            if _has_reference(value):
                raise ParameterTypeError(
                    f"{name}: found a reference to a block ($ref); allowed: plain values"
                )
        return super().validate_parameters(parameters)


def flow(name: str, subject: str = "{recipe}") -> Callable[[Callable[P, R]], Flow[P, R]]:
    """Make a function a flow, with the task runner of them all.

    subject: with the flow's name, what its run is named until its configuration is known.
    """

    def made(function: Callable[P, R]) -> Flow[P, R]:
        return PlainParametersFlow(
            function, name=name, flow_run_name=f"{name}-{subject}", task_runner=task_runner()
        )

    return made


_checked_by_prefect = flow_engine._flow_parameters


def _flow_parameters(flow: Flow[..., Any], flow_run: Any, parameters: Any) -> dict[str, Any]:
    """As Prefect's own, which raises for unknown parameters before there is a flow run to fail."""
    if parameters or flow_run is None or not isinstance(flow, PlainParametersFlow):
        return _checked_by_prefect(flow, flow_run, parameters)
    return {**get_parameter_defaults(flow.fn), **flow_run.parameters}


flow_engine._flow_parameters = _flow_parameters


def _has_reference(value: Any) -> bool:
    if isinstance(value, dict):
        return "$ref" in value or any(map(_has_reference, value.values()))
    return isinstance(value, list | tuple) and any(map(_has_reference, value))
