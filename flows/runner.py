"""Where a flow's tasks run: threads of its own process, or the workers of a Dask cluster.

On a cluster (TRIMTAB_DASK) a task takes one of its worker's resource "GPU" for each of its ranks,
or one of "CPU" if it needs no GPU.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from prefect.task_runners import TaskRunner, ThreadPoolTaskRunner

from trimtab.flows.config import ConfigError
from trimtab.infra.settings import Settings
from trimtab.models.config.training import trainer_of


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


def resources_of(task: Any, config: Any) -> AbstractContextManager[Any]:
    """What to submit a task in, so that a cluster runs it where as many GPUs are free as it needs.

    `config` is its stage's: a rank takes a GPU.
    """
    if Settings.from_env().dask is None:
        return nullcontext()
    import dask

    if "gpu" not in task.tags:
        return dask.annotate(resources={"CPU": 1})
    trainer = trainer_of(config)
    return dask.annotate(resources={"GPU": 1 if trainer is None else trainer.ranks})
