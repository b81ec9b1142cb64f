"""A run under way: what has been submitted so far, by the role it plays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from flows.config import NUM_JUDGES, RunConfig
from flows.runner import resources_of
from models.config.judge import with_share
from tasks.execution import StageResult

# PrefectFuture[StageResult], which Prefect hands to a task as its result (its types do not say so),
# or the StageResult of an earlier run.
Future = Any


@dataclass(frozen=True)
class RoundRoles:
    """The roles that a round's policy, its answers and what it was optimised against play."""

    policy: str
    evaluation: str
    scorer: str


def roles_of_round(number: int) -> RoundRoles:
    """Round 1 is PPO-max on the Advantage Model, with rehearsal: the arm `full`."""
    if number == 1:
        return RoundRoles("policy_full", "eval_full", "advantage_model")
    return RoundRoles(f"policy_round_{number}", f"eval_round_{number}", f"meta_rm_{number}")


@dataclass
class Run:
    """A run under way: its configuration and every artifact so far by role.

    num_sharing: how many stages of a name share the limits of what they ask
    (`flows.judge_shares`).
    """

    config: RunConfig
    roles: dict[str, Future] = field(default_factory=dict)
    num_sharing: Mapping[str, int] = field(default_factory=dict)

    def __setitem__(self, role: str, future: Future) -> None:
        self.roles[role] = future

    def __getitem__(self, role: str) -> Future:
        return self.roles[role]

    def submit(self, task: Any, *arguments: Any, **keywords: Any) -> Future:
        """Hand a stage's task to Prefect; a dry run (flows.plan) notes it down instead.

        It starts when its inputs are there, and what it is to `wait_for` besides.
        """
        if task.name in self.num_sharing:
            config, *others = arguments
            arguments = (with_share(config, self.num_sharing[task.name]), *others)
        with resources_of(task, arguments[0]):
            return task.submit(*arguments, **keywords)

    def result(self, role: str) -> StageResult:
        """Wait for a role's artifact; raises the run's first failure, not that of what waited."""
        future = self.roles[role]
        if isinstance(future, StageResult):
            return future
        future.wait()
        if not future.state.is_completed():
            for other in self.roles.values():
                if not isinstance(other, StageResult) and other.state.is_failed():
                    other.result()
        result: StageResult = future.result()
        return result

    @property
    def has_small_models(self) -> bool:
        """Models from scratch: too small to gain by a second thread, but by a second rank.

        Each rank holds a model of its own, for which a base model may be too large.
        """
        return self.config.sft.model.base is None

    @property
    def last_round(self) -> int | None:
        """The last round with a policy so far, whether promoted or not; `None` without one."""
        found = [1] if "policy_full" in self.roles else []
        found += [int(r.rpartition("_")[2]) for r in self.roles if r.startswith("policy_round_")]
        return max(found, default=None)

    @property
    def judges(self) -> list[Future]:
        """The held-out judges: not member 0, which vanilla PPO is optimised against."""
        return [self[f"member_{index}"] for index in range(1, self._num_judges + 1)]

    @property
    def optimised_members(self) -> list[Future]:
        """The ensemble's other members, which policies may be optimised against."""
        others = (0, *range(self._num_judges + 1, self.config.ensemble.size))
        return [self[f"member_{index}"] for index in others]

    @property
    def _num_judges(self) -> int:
        return min(NUM_JUDGES, self.config.ensemble.size - 1)
