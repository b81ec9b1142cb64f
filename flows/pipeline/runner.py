"""Where a flow's tasks run: threads of its own process, or the workers of a Dask cluster.

On a cluster (TRIMTAB_DASK) a task takes one of its worker's resource "GPU" for each of its ranks,
or one of "CPU" if it needs no GPU.

Prefect leaves a task whose inputs failed as Pending (NotReady), also after its flow run has ended:
the threads' runner ends it as Cancelled.
"""

from __future__ import annotations

from concurrent.futures import CancelledError
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any

from prefect.futures import PrefectConcurrentFuture
from prefect.task_runners import TaskRunner, ThreadPoolTaskRunner

from trimtab.flows.config.config import ConfigError
from trimtab.infra.settings import Settings
from trimtab.models.config.training import trainer_of
from trimtab.tasks.restarts import cancel_tasks


class ThreadRunner(ThreadPoolTaskRunner):
    """Prefect's own; where it is left without an exception, no task stays unfinished."""

    def __init__(self, max_workers: int | None = None) -> None:
        super().__init__(max_workers)
        self._submitted: list[PrefectConcurrentFuture[Any]] = []

    def submit(self, *arguments: Any, **keywords: Any) -> PrefectConcurrentFuture[Any]:
        """As Prefect's own."""
        future = super().submit(*arguments, **keywords)
        self._submitted.append(future)
        return future

    def __exit__(self, exc_type: Any, exc_value: Any, traceback: Any) -> None:
        """Wait for the threads. A flow that fails raises nothing here; one that is stopped does."""
        super().__exit__(exc_type, exc_value, traceback)
        if exc_type is None:
            cancel_tasks([each.task_run_id for each in self._submitted if _is_left(each)])


def _is_left(future: PrefectConcurrentFuture[Any]) -> bool:
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
