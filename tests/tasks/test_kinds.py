"""What every stage's task has in common."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
from prefect.states import Failed

from infra.launch import TrainerError, TrainerKilledError, TrainerStoppedError
from infra.manifest import CorruptArtifactError, StoreUnavailableError
from infra.registry import RegistryError
from tasks.kinds import may_pass

ROOT = Path(__file__).parents[2]
STAGES = [
    path.stem
    for path in (ROOT / "models" / "engine").glob("*.py")
    if "\nCONFIG = " in path.read_text()
]


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_names_its_kind_and_is_tried_again(stage: str) -> None:
    task = getattr(importlib.import_module(f"tasks.{stage}"), stage)
    assert task.tags in ({"cpu"}, {"gpu"})
    assert task.retries == 3
    assert task.retry_condition_fn is may_pass


@pytest.mark.parametrize(
    ("error", "again"),
    [
        (TrainerKilledError("by SIGKILL"), True),
        (StoreUnavailableError("503"), True),
        (RegistryError("connection refused"), True),
        (TrainerError("ValueError: learning rate is negative"), False),
        (TrainerStoppedError("SIGTERM"), False),
        (CorruptArtifactError("truncated"), False),
    ],
)
def test_only_what_may_pass_is_worth_another_try(error: Exception, again: bool) -> None:
    assert may_pass(None, None, Failed(data=error)) is again
