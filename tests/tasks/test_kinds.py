"""Which failures of a task are worth another try."""

from __future__ import annotations

import pytest
from prefect.states import Failed

from infra.launch import TrainerError, TrainerKilledError, TrainerStoppedError
from infra.manifest import CorruptArtifactError, StoreUnavailableError
from infra.registry import RegistryError
from tasks.kinds import may_pass
from tasks.stage_key import CodeChangedError


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
    assert may_pass(None, None, Failed(data=error)) is again
