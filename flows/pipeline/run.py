"""A run in progress: what has been submitted so far, by role.

`Run` submits stages, `PlannedRun` notes them down, `SharedRun` submits a stage once for all runs.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import Any, NamedTuple

from pydantic import BaseModel

from trimtab.flows.config.config import NUM_JUDGES, RunConfig, seeded
from trimtab.flows.config.names import registered_model_name
from trimtab.infra.settings import Settings
from trimtab.models.config.external_reward import ExternalRewardVotesConfig, RewardConfig
from trimtab.models.config.judge import endpoints_of
from trimtab.models.config.training import trainer_of
from trimtab.models.data.records import ArtifactRef
from trimtab.models.specs import StageSpec
from trimtab.tasks.board import board
from trimtab.tasks.execution import StageResult
from trimtab.tasks.registry import PREFIX
from trimtab.tasks.resources import ALL_CORES, ALONE, ONE_CORE, Resources
from trimtab.tasks.stages import TASKS, asset_task

# PrefectFuture[StageResult], which Prefect hands to a task as its result (its types do not say so),
# or the StageResult of an earlier run.
Future = Any


# Stages that write a run's page, its last.
PAGES = ("report", "compare")


class RoundRoles(NamedTuple):
    """The roles that a round's policy, its answers and what it was optimised against play."""

    policy: str
    evaluation: str
    scorer: str


def roles_of_round(number: int, meta_rm_from: int) -> RoundRoles:
    """Round 1 is PPO-max with rehearsal, the arm `full`, on the Advantage Model or on MetaRM."""
    if number == 1:
        scorer = "meta_rm_1" if meta_rm_from == 1 else "advantage_model"
        return RoundRoles("policy_full", "eval_full", scorer)
    return RoundRoles(f"policy_round_{number}", f"eval_round_{number}", f"meta_rm_{number}")


def judgement_of_round(number: int) -> str:
    """The role of the judgement that decides whether a round is promoted."""
    return "judge_full" if number == 1 else f"judge_round_{number}"


@dataclass
class Run:
    """A run under way: its configuration and every artifact so far by role.

    name: under which its stages share what they may spend on judges (`trimtab.tasks.judges`).
    review: lets a person review the labels once they are audited; None: nobody is asked.
    reviewed: the outcome, in words.
    """

    config: RunConfig
    roles: dict[str, Future] = field(default_factory=dict)
    name: str = ""
    review: Callable[[Run], None] | None = None
    reviewed: str = ""

    def __setitem__(self, role: str, future: Future) -> None:
        self.roles[role] = future

    def __getitem__(self, role: str) -> Future:
        return self.roles[role]

    def get(self, role: str) -> Future | None:
        """The future of a role; None for one that nothing plays."""
        return self.roles.get(role)

    def seeded(self, config: Any, offset: int = 0) -> Any:
        """A stage's configuration with its seed moved to the run's, and by `offset`."""
        return seeded(config, self.config.seed, offset)

    def submit(self, spec: StageSpec, config: Any, **keywords: Any) -> Future:
        """Hand a stage to Prefect: its configuration, and its inputs by name.

        It starts when its inputs are there, and the futures that it is to `wait_for`.
        """
        task = TASKS[spec.name]
        if spec.device not in task.tags:
            task = task.with_options(tags=[spec.device])
        task = asset_task(task, self._data, keywords.get("label") or spec.label)
        asking = (config, *self.config.rewards)
        endpoints = chain.from_iterable(map(endpoints_of, asking))
        if self.name and any(endpoint.is_limited for endpoint in endpoints):
            keywords["ledger"] = self.name
        board.submitted(is_last=spec.name in PAGES)
        with resources_of(task, config):
            return task.submit(config, **keywords)

    @cached_property
    def _data(self) -> str:
        """Recipe, seed and data, as policies compete by them."""
        return registered_model_name(self.config).removeprefix(PREFIX)

    def submit_to_judge(self, spec: StageSpec, config: Any, **keywords: Any) -> Future:
        """Submit a stage that asks a judge model; a local one takes a GPU and all cores."""
        if config.judge.local_model is None:
            return self.submit(spec, config, **keywords)
        on_gpu = dataclasses.replace(spec, device="gpu")
        return self.submit(on_gpu, config, resources=ALL_CORES, **keywords)

    def submit_to_reward(
        self,
        spec: StageSpec,
        config: RewardConfig | ExternalRewardVotesConfig,
        **keywords: Any,
    ) -> Future:
        """Submit a stage that scores by a reward from outside; a model has a GPU and all cores."""
        has_model = any(
            member.model or (member.judge and member.judge.local_model) for member in config.members
        )
        spec = dataclasses.replace(spec, device="gpu" if has_model else "cpu")
        resources = ALL_CORES if has_model else ONE_CORE
        return self.submit(spec, config, resources=resources, **keywords)

    def result(self, role: str) -> StageResult:
        """Wait for a role's artifact; raises the run's first failure, not its consequences."""
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
        """Whether models are trained from scratch: so small that ranks help, and threads do not.

        Each rank holds its own copy of the model, for which a base model may be too large.
        """
        trained = (self.config.sft, self.config.scorer_base)
        return all(sft is None or sft.model.base is None for sft in trained)

    @property
    def all_cores(self) -> Resources:
        """All cores, for a stage that has no similar stage running at the same time."""
        return Resources(ALONE, by_ranks=self.has_small_models)

    @property
    def last_round(self) -> int | None:
        """The last round with a policy so far, whether promoted or not; `None` without one."""
        rounds = [int(r.rpartition("_")[2]) for r in self.roles if r.startswith("policy_round_")]
        return max(rounds, default=1 if "policy_full" in self.roles else None)

    @property
    def judges(self) -> list[Future]:
        """The held-out rewards from outside, or reward models: not member 0, which vanilla PPO is
        optimised against."""
        if outside := self.config.held_out_rewards:
            return [self[f"held_out_reward_{index}"] for index in range(len(outside))]
        return [self[f"member_{index}"] for index in range(1, self._num_judges + 1)]

    @property
    def optimised_members(self) -> list[Future]:
        """The ensemble's other members, which policies may be optimised against."""
        others = (0, *range(self._num_judges + 1, self.config.ensemble.size))
        return [self[f"member_{index}"] for index in others]

    @property
    def _num_judges(self) -> int:
        return min(NUM_JUDGES, self.config.ensemble.size - 1)


def resources_of(task: Any, config: Any) -> AbstractContextManager[Any]:
    """The context to submit a task in, so that a cluster runs it where enough GPUs are free.

    `config` is its stage's: a rank takes a GPU.
    """
    if Settings.from_env().dask is None:
        return nullcontext()
    import dask

    if "gpu" not in task.tags:
        return dask.annotate(resources={"CPU": 1})
    trainer = trainer_of(config)
    return dask.annotate(resources={"GPU": 1 if trainer is None else trainer.ranks})


@dataclass(frozen=True)
class PlannedStage:
    """A stage as a flow submitted it; `step` is 1 + the latest step of what it waits for."""

    stage: str
    config: Any
    inputs: dict[str, Any]
    step: int


@dataclass
class PlannedRun(Run):
    """A run that records its stages instead of running them. Every round counts as promoted."""

    waited_for: int = 0

    def submit(
        self, spec: StageSpec, config: Any, *, wait_for: Sequence[Any] = (), **keywords: Any
    ) -> PlannedStage:
        """The stage with its inputs; TypeError for one that is missing or unknown."""
        arguments = inspect.signature(TASKS[spec.name].fn).bind(config, **keywords).arguments
        inputs = {name: value for name, value in arguments.items() if stages_in(value)}
        before = [stage.step for value in inputs.values() for stage in stages_in(value)]
        before += [stage.step for stage in wait_for]
        step = 1 + max([self.waited_for, *before])
        return PlannedStage(spec.name, config, inputs, step)

    def result(self, role: str) -> StageResult:
        """A promotion; whatever is submitted from here on waits for the role."""
        self.waited_for = max(self.waited_for, self[role].step)
        return StageResult(ArtifactRef(self[role].stage, "", ""), {"is_promoted": True}, False, 0.0)


def stages_in(value: Any) -> list[PlannedStage]:
    """The planned stages that an input is: one, several or none."""
    if isinstance(value, dict):
        value = list(value.values())
    values = value if isinstance(value, list) else [value]
    return [item for item in values if isinstance(item, PlannedStage)]


# A stage's label, cores and start: no part of its result.
_NOT_COMPARED = {"label", "resources", "wait_for"}


@dataclass
class SharedRun(Run):
    """A run that submits a stage only if none of those with the same `submitted` has.

    The store would find it too; this way the timeline shows it once, and no task waits for a lock.
    """

    submitted: dict[Hashable, Future] = field(default_factory=dict)

    def submit(self, spec: StageSpec, config: Any, **keywords: Any) -> Future:
        """Hand a stage to Prefect, or return the future of one like it."""
        compared = {
            name: _identity(value)
            for name, value in {"config": config, **keywords}.items()
            if name not in _NOT_COMPARED and value is not None
        }
        key = (spec.name, frozenset(compared.items()))
        if key not in self.submitted:
            self.submitted[key] = super().submit(spec, config, **keywords)
        return self.submitted[key]


def _identity(value: Any) -> Hashable:
    """Configurations by their values, futures by their identity."""
    if isinstance(value, BaseModel):
        return type(value).__name__, value.model_dump_json()
    if isinstance(value, list | tuple):
        return tuple(map(_identity, value))
    if isinstance(value, dict):
        return tuple((name, _identity(item)) for name, item in value.items())
    return id(value)
