"""The plan of a run: the flow's stages, recorded instead of run, with an estimate of each.

The flow's functions are called with a `PlannedRun` in place of their `Run`, so the plan has the
stages, roles, configurations and inputs that a run would have, whatever becomes of the flow.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain, groupby

from pydantic import ValidationError

from trimtab.flows.config.config import RunConfig
from trimtab.flows.pipeline import experiment
from trimtab.flows.pipeline.run import PlannedRun, PlannedStage, stages_in
from trimtab.models.config.external_reward import RewardConfig
from trimtab.models.config.training import ModelConfig, TrainerConfig, trainer_of
from trimtab.models.estimates.amounts import Amounts, amounts_of_preferences, amounts_of_world
from trimtab.models.estimates.hours import Range, gpu_seconds, operations, rate_of
from trimtab.models.estimates.machine import OPERATIONS_A_SECOND, Card, Machine
from trimtab.models.estimates.shapes import ModelShape, PlanError, shape_of
from trimtab.models.estimates.stages import work_of
from trimtab.models.estimates.stages.sampling import num_rehearsed
from trimtab.models.estimates.work import StageInputs, Work

# A sampled token costs some more than one that is passed with others.
SAMPLED_AS_PASSED = 4
SECONDS_OF_A_STAGE = 1.0
# Inputs of a stage by which it scores, in this order.
SCORERS = ("scorer", "judge", "held_out_scorer")
ONCE = ("win_matrix", "judge_answers")  # stages of a comparison that all its seeds share


@dataclass(frozen=True)
class PlanRow:
    """A stage of the plan with every role it plays."""

    roles: tuple[str, ...]
    stage: PlannedStage
    inputs: StageInputs
    work: Work

    @property
    def name(self) -> str:
        """The roles as one text."""
        return ", ".join(self.roles)

    @property
    def operations(self) -> float:
        """Multiplications and additions of one run of the stage."""
        return operations(trainer_of(self.stage.config), self.inputs, self.work)

    def sharded(self, zero_stage: int, num_ranks: int) -> Work | None:
        """The stage's work with `num_ranks` ranks under ZeRO; None if the stage cannot use them."""
        config = self.stage.config
        changes = {"num_ranks": num_ranks, "zero": {"stage": zero_stage}, "optimiser": "adamw"}
        values = config.model_dump()
        (values if isinstance(config, TrainerConfig) else values["train"]).update(changes)
        try:
            changed = type(config).model_validate(values)
        except ValidationError:
            return None
        return work_of(self.stage.stage, changed, self.inputs)


@dataclass(frozen=True)
class Plan:
    """All of it: rows, of one seed, in the order in which stages can start."""

    config: RunConfig
    flow: str
    shape: ModelShape
    amounts: Amounts
    machine: Machine
    rows: list[PlanRow]
    num_seeds: int = 1

    @property
    def parallel(self) -> Iterator[list[PlanRow]]:
        """Step by step, the stages with a model that can run at once."""
        with_model = [row for row in self.rows if row.work.phases]
        for _, rows in groupby(with_model, key=lambda row: row.stage.step):
            yield list(rows)

    def costs(self) -> dict[str, list[float]]:
        """Costs of the stages of all seeds, by the stage's name: seconds on some machine.

        For shares of the whole, not for how long it takes: its operations, and what a stage takes
        however small it is. The last stage writes the page.
        """
        costs = defaultdict[str, list[float]](list)
        for row in self.rows:
            size = row.inputs.shape.policy_parameters
            more = 2 * size * (SAMPLED_AS_PASSED - 1) * row.work.sampled_tokens
            cost = SECONDS_OF_A_STAGE + (row.operations + more) / OPERATIONS_A_SECOND
            costs[row.stage.stage] += self.times(row) * [cost]
        costs["compare" if self.flow == "compare" else "report"].append(SECONDS_OF_A_STAGE)
        return dict(costs)

    def times(self, row: PlanRow) -> int:
        """The number of runs of a stage in all seeds."""
        return 1 if row.stage.stage in ONCE else self.num_seeds

    def gpu_hours(self, rows: Iterable[PlanRow], card: Card) -> Range:
        """Hours of all of these stages' GPUs together, in all seeds, if they are such cards."""
        rate = rate_of(card)
        hours = Range(0, 0)
        for row in rows:
            trainer = trainer_of(row.stage.config)
            seconds = gpu_seconds(trainer, row.inputs, row.work, card, rate)
            hours += seconds.times(self.times(row) / 3600)
        return hours

    def needed(self, row: PlanRow) -> int:
        """Bytes of a device that a stage takes at its peak: tensors and overhead."""
        tensors = row.work.peak[1].total if self.machine.has_gpus else row.work.needed
        return tensors + self.machine.overhead(row.work.num_ranks)

    def largest_at_once(self, rows: Sequence[PlanRow]) -> list[PlanRow]:
        """Stages that may share one device, the largest of those that run at once."""
        return sorted(rows, key=self.needed, reverse=True)[: self.machine.slots]


def make_plan(config: RunConfig, flow: str, machine: Machine, num_seeds: int = 1) -> Plan:
    """The plan of `config` under one of `trimtab.flows.FLOWS`, for `num_seeds` seeds.

    Raises trimtab.models.estimates.shapes.PlanError if the size of the model or data is unknown.
    """
    run = PlannedRun(config)
    getattr(experiment, flow.replace("-", "_"))(run)
    shape, limit = shape_of(config.sft.model), config.sft.model.max_length
    if config.is_synthetic:
        amounts = amounts_of_world(config.world, config.comparisons, limit)
    else:
        amounts = amounts_of_preferences(config.preferences, limit)
    stages: dict[int, tuple[PlannedStage, list[str]]] = {}
    for role, stage in run.roles.items():
        stages.setdefault(id(stage), (stage, []))[1].append(role)
    rows = []
    for stage, roles in stages.values():
        inputs = _stage_inputs(stage, _shape_of(stage, shape), amounts, machine)
        scorers = [stages_in(stage.inputs.get(name)) for name in SCORERS]
        for scorer in list(chain.from_iterable(scorers))[:1]:
            inputs = replace(inputs, scorer_shape=_scorer_shape(scorer, shape))
        work = work_of(stage.stage, stage.config, inputs)
        rows.append(PlanRow(tuple(roles), stage, inputs, work))
    rows.sort(key=lambda row: row.stage.step)
    return Plan(config, flow, shape, amounts, machine, rows, num_seeds)


def _shape_of(stage: PlannedStage, shape: ModelShape) -> ModelShape:
    """The shape of a stage's model: of another base, if it starts from one, else `shape`."""
    policies = [stage, *stages_in(stage.inputs.get("policy"))]
    bases = [shape_of(policy.config.model) for policy in policies if policy.stage == "sft"]
    return bases[0] if bases else shape


def _scorer_shape(scorer: PlannedStage, shape: ModelShape) -> ModelShape:
    """As `_shape_of`, of a scorer; MetaRM's is that of the scorer that comes in."""
    if scorer.stage == "meta_rm":
        return _scorer_shape(scorer.inputs["scorer"], shape)
    if scorer.stage == "external_reward":
        return next(_shapes_of_models(scorer.config), shape)
    return _shape_of(scorer, shape)


def _shapes_of_models(reward: RewardConfig) -> Iterator[ModelShape]:
    """The shapes of a reward's models, of those that are here."""
    for name in filter(None, (member.model for member in reward.members)):
        with suppress(PlanError):
            yield shape_of(ModelConfig(base=name), "reward.model", is_trained=False)


def _stage_inputs(
    stage: PlannedStage, shape: ModelShape, amounts: Amounts, machine: Machine
) -> StageInputs:
    scorers = [stages_in(stage.inputs.get(name)) for name in ("scorer", "safety_scorer")]
    held_out = [stages_in(stage.inputs.get(name)) for name in ("judge", "held_out_scorer")]
    labels = stage.inputs.get("pairs")
    if labels is not None:
        share = labels.config.keep_to - labels.config.keep_from
        if labels.config.max_pairs is not None:
            share = min(share, labels.config.max_pairs / max(1, amounts.train_pairs))
        amounts = amounts.scaled(share)
    return StageInputs(
        shape,
        amounts,
        scorer_heads=tuple(chain.from_iterable(map(_heads, chain.from_iterable(scorers)))),
        num_behaviours=len(stages_in(stage.inputs.get("behaviour"))),
        num_heldout_models=sum(len(_heads(model)) for model in chain.from_iterable(held_out)),
        num_rehearsed=sum(
            num_rehearsed(kept.config, amounts) for kept in stages_in(stage.inputs.get("rehearsal"))
        ),
        starts_as_reference=stage.inputs.get("policy") is stage.inputs.get("reference"),
        is_relabelled=labels is not None,
        sampled=tuple(answers.config for answers in stages_in(stage.inputs.get("responses"))),
        num_policies=len(stages_in(stage.inputs.get("evaluations"))),
        has_gpus=machine.has_gpus,
        has_trunk="trunk" in stage.inputs,
        revised=next((revise.config for revise in stages_in(stage.inputs.get("revisions"))), None),
    )


def _heads(scorer: PlannedStage) -> list[int]:
    """Heads of a scorer's models; MetaRM keeps those of the scorer that comes in."""
    if scorer.stage == "meta_rm":
        return _heads(scorer.inputs["scorer"])
    if scorer.stage == "external_reward":
        return [1 for member in scorer.config.members if member.model is not None]
    return [2 if scorer.stage == "advantage_model" else 1]
