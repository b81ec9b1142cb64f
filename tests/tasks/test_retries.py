"""Which failures of a task are worth another try."""

from __future__ import annotations

import pytest
from prefect.states import Failed

from trimtab.infra.processes.launch import TrainerError, TrainerKilledError, TrainerStoppedError
from trimtab.infra.store.manifest import CorruptArtifactError, StoreUnavailableError
from trimtab.infra.tracking.registry import RegistryError
from trimtab.tasks.cache_key import CodeChangedError
from trimtab.tasks.stages import is_transient


@pytest.mark.parametrize(
    ("error", "again"),
    [
        (TrainerKilledError("by SIGKILL"), True),
        (StoreUnavailableError("503"), True),
        (RegistryError("connection refused"), True),
        (CodeChangedError("sft"), True),
        (TrainerError("ValueError: learning rate is negative"), False),
        (TrainerStoppedError("SIGTERM"), False),
        (CorruptArtifactError("truncated"), False),
    ],
)
def test_only_what_may_pass_is_worth_another_try(error: Exception, again: bool) -> None:
    assert is_transient(None, None, Failed(data=error)) is again
