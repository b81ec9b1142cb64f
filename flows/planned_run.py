"""A run that notes its stages down instead of running them: for the plan, and to count them."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from flows.run import Run
from models.data.records import ArtifactRef
from tasks.execution import StageResult


@dataclass(frozen=True)
class PlannedStage:
    """A stage as the flow submitted it; `step` is 1 + the latest step of what it waits for."""

    stage: str
    config: Any
    inputs: dict[str, Any]
    step: int


@dataclass
class PlannedRun(Run):
    """A run that notes its stages down. Every judgement is taken to promote."""

    waited_for: int = 0

    def submit(
        self, task: Any, *arguments: Any, wait_for: Sequence[Any] = (), **keywords: Any
    ) -> PlannedStage:
        """The stage with its inputs by the names of the task's parameters."""
        bound = inspect.signature(task.fn).bind(*arguments, **keywords).arguments
        inputs = {name: value for name, value in bound.items() if stages_in(value)}
        before = [stage.step for value in inputs.values() for stage in stages_in(value)]
        before += [stage.step for stage in wait_for]
        step = 1 + max([self.waited_for, *before])
        return PlannedStage(task.name, bound["config"], inputs, step)

    def result(self, role: str) -> StageResult:
        """A promotion; whatever is submitted from here on waits for the role."""
        self.waited_for = max(self.waited_for, self[role].step)
        return StageResult(ArtifactRef(self[role].stage, "", ""), {"is_promoted": True}, False, 0.0)


def stages_in(value: Any) -> list[PlannedStage]:
    """The planned stages that an input is: one, several or none."""
    values = value if isinstance(value, list) else [value]
    return [item for item in values if isinstance(item, PlannedStage)]
