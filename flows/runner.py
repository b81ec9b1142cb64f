"""Where a flow's tasks run: threads of its own process, or the workers of a Dask cluster.

TRIMTAB_DASK  address of the cluster's scheduler, such as tls://10.0.0.5:8786; unset, threads

There a task takes one of its worker's resource "GPU", or "CPU" if it needs no GPU.
"""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from prefect.task_runners import TaskRunner, ThreadPoolTaskRunner

from flows.config import ConfigError

DASK = "TRIMTAB_DASK"


def on_cluster() -> bool:
    """Whether tasks run on the workers of a cluster, not on this host."""
    return bool(os.environ.get(DASK))


def task_runner() -> TaskRunner[Any]:
    """The runner that the environment asks for; ConfigError where what it needs is missing."""
    address = os.environ.get(DASK)
    if not address:
        return ThreadPoolTaskRunner()
    try:
        from prefect_dask import DaskTaskRunner
    except ModuleNotFoundError as error:
        raise ConfigError(f"{DASK} is set: pip install 'trimtab[dask]'") from error

    class ClusterRunner(DaskTaskRunner):
        @property
        def client(self) -> Any:
            """The connection, made when the first task is submitted."""
            try:
                return super().client
            except OSError as error:
                message = f"{DASK} is {address}, where no scheduler answers: {error}"
                raise ConfigError(message) from error

    return ClusterRunner(address=address)


def resources_of(task: Any) -> AbstractContextManager[Any]:
    """What to submit a task in, so that a cluster runs it where a GPU is free if it needs one."""
    if not on_cluster():
        return nullcontext()
    import dask

    return dask.annotate(resources={"GPU" if "gpu" in task.tags else "CPU": 1})
