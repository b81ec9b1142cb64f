"""The policy of every arm: trained, evaluated, and judged against SFT.

The arms are the rows of trimtab.models.config.arms. Artifacts between an arm's
start and its policy have roles that begin with the arm's name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trimtab.flows.config.config import RunConfig, ppo_of, with_changes
from trimtab.flows.pipeline.data import trunk_for
from trimtab.flows.pipeline.run import Future, Run, roles_of_round
from trimtab.models import specs
from trimtab.models.config.arms import ARMS, Arm, critic_from_policy
from trimtab.models.config.policy import (
    PolicyConfig,
    RehearsalConfig,
    SampleResponsesConfig,
)
from trimtab.models.reporting.kit.names import policy_name
from trimtab.tasks.resources import ALL_CORES, ALONE, Resources, Slot

OUTCOMES = ("win", "tie", "lose", "net", "net_low", "net_high")


def train_policies(run: Run) -> None:
    """Train every arm from the SFT policy, and evaluate it on the evaluation prompts."""
    config, scorer = run.config, main_scorer(run)
    if any(uses_rehearsal(config, arm) for arm in config.arms):
        run["rehearsal"] = run.submit(
            specs.REHEARSAL,
            run.seeded(rehearsal_for(config)),
            data=run["data"],
            policy=run["sft"],
            scorer=scorer,
        )
    # One arm, which takes all cores, would wait for SFT's answers on one.
    measure(run, "sft", run["sft"], scorer, slot=Slot(0, len(config.arms)))
    # An arm that started earlier would take cores from what the other arms still need.
    wait_for = [run.get("rehearsal") or scorer]
    for index, arm in enumerate(config.arms):
        slot = Slot(index, len(config.arms))
        # The rounds wait for the arm `full`: all cores are for its answers.
        train_policy(run, arm, slot, wait_for, ALONE if arm == "full" else slot)


def train_policy(
    run: Run,
    arm: Arm,
    slot: Slot | None = None,
    wait_for: Sequence[Future] = (),
    answers_slot: Slot | None = None,
) -> None:
    """Train an arm in the slot `slot`, after the futures of `wait_for`, and evaluate it."""
    resources = Resources(slot, by_ranks=run.has_small_models)
    scheduling = {"resources": resources, "wait_for": wait_for}
    untrained = ARMS[arm].trained_by == "nothing"
    policy = run["sft"] if untrained else _trained(run, arm, scheduling)
    scorer = scorer_of(run, arm)
    first = scorer[0] if isinstance(scorer, list) else scorer
    changes: dict[str, Any] = {}  # of the evaluation, for answers that SFT's differ from
    if arm == "best_of_n":
        changes = {"num_candidates": run.config.best_of_n.num_responses}
    elif arm == "hir":
        changes = {"instruction": run.config.hir.learn.instructions[-1]}
    measure(run, arm, policy, first, slot=answers_slot, **changes)


def measure(
    run: Run,
    name: str,
    policy: Future,
    scorer: Future,
    *,
    slot: Slot | None = None,
    offset: int = 0,
    **changes: Any,
) -> None:
    """Let a policy answer the evaluation prompts; another `offset` gives other answers.

    `changes`: fields of the evaluation's configuration to change for this policy.
    """
    config = run.config.evaluate.model_copy(update=changes)
    run[f"eval_{name}"] = run.submit(
        specs.EVALUATE,
        run.seeded(config, offset),
        policy=policy,
        reference=run["sft"],
        data=run["data"],
        scorer=scorer,
        judge=run.judges,
        label=f"evaluate {name.replace('round_', 'round ')}",
        resources=Resources(slot, by_ranks=run.has_small_models),
    )


def judge_policies(run: Run) -> None:
    """Every arm's answers against those of SFT."""
    for arm in run.config.arms:
        judge(run, f"judge_{arm}", f"eval_{arm}", "eval_sft", label=f"judge {arm}")


def judge(
    run: Run, role: str, ours: str, theirs: str, *, label: str | None = None, offset: int = 0
) -> None:
    """`role`: one policy's answers against another's, each given by the role of its answers."""
    run[role] = run.submit(
        specs.HEAD_TO_HEAD,
        run.seeded(run.config.evaluate, offset),
        ours=run[ours],
        theirs=run[theirs],
        label=label or role.replace("_", " "),
    )


def outcomes_by_judge(numbers: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A row for each set of prompts and its judge, of the numbers of a head-to-head."""
    judged = [name.removesuffix("_win") for name in numbers if name.endswith("_win")]
    return [
        {"judged": name, **{o: round(numbers[f"{name}_{o}"], 3) for o in OUTCOMES}}
        for name in judged
    ]


def main_scorer(run: Run) -> Future:
    """What SFT's answers are measured by, and samples: the reward from outside, or else the
    Advantage Model."""
    return run.get("reward") or run["advantage_model"]


def scorer_of(run: Run, arm: Arm) -> Future | list[Future]:
    """The scorer that an arm is optimised against, or several of them.

    For an arm without a scorer: the one that its answers are measured with.
    """
    if "reward" in run.roles:
        return run["reward"]
    scorer = ARMS[arm].scorer or "advantage_model"
    if scorer == "members":
        return run.optimised_members
    if scorer == "first_round":
        scorer = roles_of_round(1, run.config.rounds.meta_rm_from).scorer
    return run[scorer]


def held_out_of(run: Run, scorer: Future | list[Future] | None) -> list[Future] | None:
    """The scorers that the collapse guard compares `scorer` with: members of the ensemble that
    neither judge policies nor are optimised; None where there are none."""
    if not run.config.needs_votes:
        return None
    optimised = scorer if isinstance(scorer, list) else [scorer]
    others = [m for m in run.optimised_members if not any(m is other for other in optimised)]
    return others[: run.config.ppo.guard.num_held_out] or None


def rehearsal_for(config: RunConfig) -> RehearsalConfig:
    """The settings of rehearsal, with the clusters that PPO weighs its KL penalty by."""
    by_risk = config.ppo.kl_weights == "risk"
    return with_changes(config.rehearsal, {"cluster_policy_prompts": True} if by_risk else {})


def uses_rehearsal(config: RunConfig, arm: Arm) -> bool:
    """Whether an arm, or the arm that it starts from, uses rehearsal."""
    row = ARMS[arm]
    if row.start in ARMS:
        return uses_rehearsal(config, row.start)
    if row.trained_by == "samples":
        return _sampled_method(config, arm).learner.rehearsal_coef > 0
    if row.trained_by == "pairs":
        return bool(getattr(config, arm).rehearsal_coef > 0)
    return row.rehearses


def _trained(run: Run, arm: Arm, scheduling: Mapping[str, Any]) -> Future:
    """An arm's policy; trained once, even if another arm starts from it."""
    if f"policy_{arm}" not in run.roles:
        run[f"policy_{arm}"] = _TRAIN[ARMS[arm].trained_by](run, arm, scheduling)
    return run[f"policy_{arm}"]


def _start(run: Run, arm: Arm, scheduling: Mapping[str, Any]) -> Future:
    """The policy that an arm starts from, trained once for all arms that start from it."""
    start = ARMS[arm].start
    if start in ARMS:
        return _trained(run, start, scheduling)
    if start not in run.roles:  # the model before SFT
        untrained = run.config.sft.model_copy(update={"fine_tune": False})
        run[start] = run.submit(
            specs.SFT,
            run.seeded(untrained),
            data=run["data"],
            label="base model",
            resources=ALL_CORES,
        )
    return run[start]


def _ppo(run: Run, arm: Arm, scheduling: Mapping[str, Any]) -> Future:
    row = ARMS[arm]
    start = _start(run, arm, scheduling)
    scorer, ppo = scorer_of(run, arm) if row.scorer else None, ppo_of(run.config, arm)
    return run.submit(
        specs.PPO_MAX,
        run.seeded(critic_from_policy(ppo) if "reward" in run.roles else ppo),
        policy=start,
        reference=run["sft"] if row.start in ARMS else start,
        scorer=scorer,
        held_out_scorer=held_out_of(run, scorer),
        data=run["data"],
        rehearsal=run["rehearsal"] if row.rehearses else None,
        safety_scorer=run[row.safety_scorer] if row.safety_scorer else None,
        label=row.label if row.has_objective else f"PPO {arm}",
        **scheduling,
    )


def _rehearsed(run: Run, arm: Arm) -> Future | None:
    """The rehearsal artifact for an arm; None if the arm does not use it."""
    return run["rehearsal"] if uses_rehearsal(run.config, arm) else None


def _learn_pairs(run: Run, arm: Arm, scheduling: Mapping[str, Any]) -> Future:
    """On the relabelled pairs, by the stage and the settings that have the arm's name."""
    spec, config = specs.SPECS[arm], getattr(run.config, arm)
    return run.submit(
        spec,
        run.seeded(config),
        policy=run["sft"],
        **({"reference": run["sft"]} if config.needs_reference else {}),
        preferences=run["preferences"],
        pairs=run["relabelled"],
        trunk=trunk_for(run, config.train, is_scorer=False),
        rehearsal=_rehearsed(run, arm),
        label=policy_name(arm, run.config.dpo.loss),
        **scheduling,
    )


@dataclass(frozen=True)
class SampledMethod:
    """A method that samples the policy, learns, and samples again.

    answers: how the policy is sampled, each time. learns_all: it learns from all samples so far,
    and not from the last alone.
    """

    spec: specs.StageSpec
    label: str
    learner: PolicyConfig
    answers: Sequence[SampleResponsesConfig]
    learns_all: bool = False


def _sampled_method(config: RunConfig, arm: Arm) -> SampledMethod:
    if arm == "rejection_sampling":
        sampling = config.rejection_sampling
        answers = [sampling.answers] * sampling.num_iterations
        learns_all, learner = sampling.from_all_iterations, sampling.fine_tune
        return SampledMethod(
            specs.REJECTION_SAMPLING, "rejection sampling", learner, answers, learns_all
        )
    if arm == "rest":
        rest = config.rest
        answers = [rest.answers] * rest.num_grow_steps
        return SampledMethod(specs.REST, "ReST improve", rest.improve, answers)
    hir = config.hir
    best = hir.answers.model_copy(update={"instruction": hir.learn.instructions[-1]})
    answers = [hir.answers, *[best] * (hir.num_iterations - 1)]
    return SampledMethod(specs.HIR, "HIR", hir.learn, answers, learns_all=True)


def _sample_and_learn(run: Run, arm: Arm, scheduling: Mapping[str, Any]) -> Future:
    """Sample the policy, let it learn, and again; the last policy."""
    method = _sampled_method(run.config, arm)
    policy, sampled = run["sft"], []
    for number, config in enumerate(method.answers, start=1):
        run[f"{arm}_answers_{number}"] = run.submit(
            specs.SAMPLE_RESPONSES,
            run.seeded(config, number),
            data=run["data"],
            policy=policy,
            scorer=main_scorer(run),
            label=f"answers for {arm} {number}",
            **scheduling,
        )
        sampled.append(run[f"{arm}_answers_{number}"])
        policy = run.submit(
            method.spec,
            run.seeded(method.learner, number),
            policy=policy,
            responses=list(sampled if method.learns_all else sampled[-1:]),
            rehearsal=_rehearsed(run, arm),
            label=f"{method.label} {number}",
            **scheduling,
        )
        if number < len(method.answers):
            run[f"{arm}_policy_{number}"] = policy
    return policy


_TRAIN: dict[str, Callable[[Run, Arm, Mapping[str, Any]], Future]] = {
    "ppo": _ppo,
    "pairs": _learn_pairs,
    "samples": _sample_and_learn,
}
