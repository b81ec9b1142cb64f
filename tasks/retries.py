"""Which failures of a task are transient, and how often it is tried again."""

from __future__ import annotations

from typing import Any

from trimtab.infra.processes.launch import TrainerKilledError
from trimtab.infra.store.manifest import StoreUnavailableError
from trimtab.infra.tracking.registry import RegistryError
from trimtab.tasks.cache_key import CodeChangedError

_PASSING = (TrainerKilledError, StoreUnavailableError, RegistryError, CodeChangedError)


def is_transient(_task: Any, _task_run: Any, state: Any) -> bool:
    """Whether a task failed for a transient reason: a kill, an outage, or an edit of its code.

    On retry a trainer continues from its newest checkpoint; after an edit it starts anew.
    """
    return isinstance(state.data, _PASSING)


RETRIES: dict[str, Any] = {
    "retries": 3,
    "retry_delay_seconds": [2, 10, 30],
    "retry_condition_fn": is_transient,
}
