"""Where a flow's tasks run: threads of its own process, or the workers of a Dask cluster.

On a cluster (TRIMTAB_DASK) a task takes one of its worker's resource "GPU", or "CPU" if it needs no
GPU.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from prefect.task_runners import TaskRunner, ThreadPoolTaskRunner

from flows.config import ConfigError
from infra.settings import Settings


def task_runner() -> TaskRunner[Any]:
    """The runner that the environment asks for; ConfigError where what it needs is missing."""
    address = Settings.from_env().dask
    if address is None:
        return ThreadPoolTaskRunner()
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


def resources_of(task: Any) -> AbstractContextManager[Any]:
    """What to submit a task in, so that a cluster runs it where a GPU is free if it needs one."""
    if Settings.from_env().dask is None:
        return nullcontext()
    import dask

    return dask.annotate(resources={"GPU" if "gpu" in task.tags else "CPU": 1})
