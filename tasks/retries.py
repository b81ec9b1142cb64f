"""Kinds of tasks: which take a GPU slot, and which failures are worth another try."""

from __future__ import annotations

from typing import Any

from infra.processes.launch import TrainerKilledError
from infra.store.manifest import StoreUnavailableError
from infra.tracking.registry import RegistryError
from tasks.cache_key import CodeChangedError

_PASSING = (TrainerKilledError, StoreUnavailableError, RegistryError, CodeChangedError)


def may_pass(_task: Any, _task_run: Any, state: Any) -> bool:
    """Whether a task failed of something that is often over a moment later: a kill, an outage.

    A trainer goes on from its newest checkpoint, and with other code from the beginning.
    """
    return isinstance(state.data, _PASSING)


_AGAIN: dict[str, Any] = {
    "retries": 3,
    "retry_delay_seconds": [2, 10, 30],
    "retry_condition_fn": may_pass,
}
CPU: dict[str, Any] = {"tags": ["cpu"], **_AGAIN}
GPU: dict[str, Any] = {"tags": ["gpu"], **_AGAIN}
