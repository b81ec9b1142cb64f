"""Trimtab's flows: Prefect's own, but a mistake in their parameters ends the run as Failed, and
their tasks run in threads of the flow's process or on the workers of a Dask cluster.

Prefect raises for an unknown parameter before the flow run is Running, so the run counts as crashed
and is restarted. Not every deployment's schema refuses such a parameter. Prefect also reads the
block that a parameter names ({"$ref": ...}), whichever it is, with the login of the run's process,
before the flow begins; the message about a mistake then holds what is in it. Parameters are plain
values here.

On a cluster (TRIMTAB_DASK) a task takes one of its worker's resource "GPU" for each of its ranks,
or one of "CPU" if it needs no GPU (`trimtab.flows.pipeline.run.resources_of`).

Prefect leaves a task whose inputs failed as Pending (NotReady), also after its flow run has ended:
the threads' runner ends it as Cancelled.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import CancelledError
from contextlib import suppress
from inspect import Signature
from typing import Any, ParamSpec, TypeVar

from prefect import Flow, flow_engine
from prefect.exceptions import ParameterTypeError
from prefect.futures import PrefectConcurrentFuture
from prefect.task_runners import TaskRunner, ThreadPoolTaskRunner
from prefect.utilities import callables
from prefect.utilities.callables import ParameterSchema, get_parameter_defaults

from trimtab.flows.config.errors import ConfigError
from trimtab.infra.prefect.fence import watch_for_newer_start
from trimtab.infra.settings import Settings
from trimtab.tasks.restarts import cancel_tasks

P = ParamSpec("P")
R = TypeVar("R")


class PlainParametersFlow(Flow[P, R]):
    """A flow that refuses unknown parameters, and references to blocks in others."""

    def validate_parameters(self, parameters: dict[str, Any]) -> dict[str, Any]:
        """Prefect's method, which it calls before the run is Running.

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
    """Decorate a function that is a flow.

    subject: ends the name that its run has until the configuration is known.
    """
    run_name = f"{name}-{subject}"
    return lambda function: PlainParametersFlow(
        function, name=name, flow_run_name=run_name, task_runner=task_runner()
    )


# What follows replaces two functions of Prefect 3.8.8.
_original_flow_parameters = flow_engine._flow_parameters
_original_generate_schema = callables.generate_parameter_schema
_schemas: list[tuple[Signature, dict[str, str], ParameterSchema]] = []


def _flow_parameters(flow: Flow[..., Any], flow_run: Any, parameters: Any) -> dict[str, Any]:
    """Replaces Prefect's: passes the parameters on unchecked; `validate_parameters` checks them
    within the run."""
    if parameters or flow_run is None or not isinstance(flow, PlainParametersFlow):
        return _original_flow_parameters(flow, flow_run, parameters)
    return {**get_parameter_defaults(flow.fn), **flow_run.parameters}


def _generate_schema_once(signature: Signature, docstrings: dict[str, str]) -> ParameterSchema:
    """Replaces Prefect's, which makes a flow's schema three times to deploy it, half a second each.

    Made schemas are compared one by one: a signature with a list as a default has no hash.
    """
    for known_signature, known_docstrings, schema in _schemas:
        if (known_signature, known_docstrings) == (signature, docstrings):
            return schema.model_copy(deep=True)
    schema = _original_generate_schema(signature, docstrings)
    _schemas.append((signature, docstrings, schema.model_copy(deep=True)))
    return schema


flow_engine._flow_parameters = _flow_parameters
callables.generate_parameter_schema = _generate_schema_once


def _has_reference(value: Any) -> bool:
    if isinstance(value, dict):
        return "$ref" in value or any(map(_has_reference, value.values()))
    return isinstance(value, list | tuple) and any(map(_has_reference, value))


class ThreadRunner(ThreadPoolTaskRunner):
    """Prefect's thread runner; at exit it cancels tasks that never finished."""

    def __init__(self, max_workers: int | None = None) -> None:
        super().__init__(max_workers)
        self._submitted: list[PrefectConcurrentFuture[Any]] = []

    def submit(self, *arguments: Any, **keywords: Any) -> PrefectConcurrentFuture[Any]:
        """Prefect's method; the future is noted."""
        future = super().submit(*arguments, **keywords)
        self._submitted.append(future)
        return future

    def __exit__(self, exc_type: Any, exc_value: Any, traceback: Any) -> None:
        """Wait for the threads. A flow that fails raises nothing here; one that is stopped does."""
        super().__exit__(exc_type, exc_value, traceback)
        if exc_type is None:
            cancel_tasks([f.task_run_id for f in self._submitted if _is_unfinished(f)])


def _is_unfinished(future: PrefectConcurrentFuture[Any]) -> bool:
    """Whether the task of a future whose thread has ended did not get to an end."""
    with suppress(CancelledError):  # nor to a beginning: Prefect's server knows nothing of it
        future.wait()
        return not future.state.is_final()
    return False


def task_runner() -> TaskRunner[Any]:
    """The runner that the environment asks for; ConfigError where what it needs is missing."""
    address = Settings.from_env().dask
    if address is None:
        return ThreadRunner()
    try:
        from prefect_dask import DaskTaskRunner
    except ModuleNotFoundError as error:
        raise ConfigError("TRIMTAB_DASK is set: pip install 'trimtab[dask]'") from error

    class ClusterRunner(DaskTaskRunner):
        @property
        def client(self) -> Any:
            """The connection, made when the first task is submitted."""
            try:
                return super().client
            except OSError as error:
                message = f"TRIMTAB_DASK is {address}, where no scheduler answers: {error}"
                raise ConfigError(message) from error

    return ClusterRunner(address=address)
