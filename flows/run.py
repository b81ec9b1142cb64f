"""A run under way: what has been submitted so far, by the role it plays."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from flows.config import RunConfig
from tasks.stage import StageResult

# PrefectFuture[StageResult]: Prefect hands a task the future's result, which its types do not say.
Future = Any

# Judges never take part in optimising a policy: they are the members of the raw-label ensemble.
NUM_JUDGES = 3


@dataclass
class Run:
    """A run under way: its configuration and every artifact so far by role."""

    config: RunConfig
    roles: dict[str, Future] = field(default_factory=dict)

    def __setitem__(self, role: str, future: Future) -> None:
        self.roles[role] = future

    def __getitem__(self, role: str) -> Future:
        return self.roles[role]

    def submit(self, task: Any, *arguments: Any, **keywords: Any) -> Future:
        """Hand a stage's task to Prefect; a dry run (flows.plan) notes it down instead."""
        return task.submit(*arguments, **keywords)

    def result(self, role: str) -> StageResult:
        """Wait for a role's artifact; raises the run's first failure, not that of what waited."""
        future = self.roles[role]
        future.wait()
        if not future.state.is_completed():
            for other in self.roles.values():
                if other.state.is_failed():
                    other.result()
        result: StageResult = future.result()
        return result

    @property
    def judges(self) -> list[Future]:
        """The held-out judges: not member 0, which vanilla PPO is optimised against."""
        last = min(NUM_JUDGES, self.config.ensemble.size - 1)
        return [self[f"member_{index}"] for index in range(1, last + 1)]
