"""The arms: how each trains a policy, and how the policy is evaluated and judged against SFT.

| arm                      | start              | optimised against or learned from                |
|--------------------------|--------------------|--------------------------------------------------|
| `vanilla`                | SFT                | the first member, trained on raw labels; no trick|
| `ppo_max_rm`             | SFT                | the reward model of relabelled pairs             |
| `ppo_max_am`             | SFT                | the Advantage Model                              |
| `full`                   | SFT                | the Advantage Model, with rehearsal              |
| `ppo_max_ensemble`       | SFT                | the ensemble's members that do not judge, as one |
| `ppo_max_safety`         | SFT                | a reward model of helpfulness and one of safety  |
| `ppo_max_no_sft`         | the base model     | the Advantage Model                              |
| `rlaif_direct`           | SFT                | the ratings of `ppo.scoring.judge` [RLAIF]       |
| `rejection_sampling_ppo` | rejection sampling | the Advantage Model [Llama 2]                    |
| `dpo`, `cpl`             | SFT                | the relabelled pairs                             |
| `rejection_sampling`, `rest`, `hir` | SFT     | samples that the Advantage Model has scored      |
| `best_of_n`              | SFT                | nothing: the best of n answers                   |

Of the PPO arms only `full` uses rehearsal; other methods do if their `rehearsal_coef` is above 0.
Artifacts between an arm's start and its policy have roles that begin with the arm's name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trimtab.flows.config.config import Arm, RunConfig
from trimtab.flows.pipeline.data import trunk_for
from trimtab.flows.pipeline.run import Future, Run, roles_of_round
from trimtab.models import specs
from trimtab.models.config.policy import PolicyConfig, PPOConfig, SampleResponsesConfig
from trimtab.tasks.resources import ALL_CORES, ALONE, Resources, Slot

OUTCOMES = ("win", "tie", "lose", "net", "net_low", "net_high")


def train_policies(run: Run) -> None:
    """Train every arm from the SFT policy, and evaluate it on the evaluation prompts."""
    config = run.config
    if any(uses_rehearsal(config, arm) for arm in config.arms):
        run["rehearsal"] = run.submit(
            specs.REHEARSAL,
            run.seeded(config.rehearsal),
            data=run["data"],
            policy=run["sft"],
            scorer=run["advantage_model"],
        )
    measure(run, "sft", run["sft"], run["advantage_model"])
    # An arm that started earlier would take cores from what the other arms still need.
    wait_for = [run["rehearsal" if "rehearsal" in run.roles else "advantage_model"]]
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
    """Train an arm in the slot `slot`, once what it is to wait for is there, and evaluate it."""
    resources = Resources(slot, by_ranks=run.has_small_models)
    scheduling = {"resources": resources, "wait_for": wait_for}
    policy = run["sft"] if arm == "best_of_n" else _trained(run, arm, scheduling)
    scorer = scorer_of(run, arm)
    first = scorer[0] if isinstance(scorer, list) else scorer
    changes: dict[str, Any] = {}  # what an arm's answers differ in from those of SFT
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


def ppo_of(run: Run, arm: Arm) -> PPOConfig:
    """The PPO configuration of an arm. If a judge scores, the critic starts from the policy."""
    ppo = run.config.ppo
    if arm == "vanilla":
        return vanilla(ppo)
    return ppo.model_copy(update={"critic_init": "policy"}) if arm == "rlaif_direct" else ppo


def outcomes_by_judge(numbers: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A row for each set of prompts and who judged it, of the numbers of a head-to-head."""
    judged = [name.removesuffix("_win") for name in numbers if name.endswith("_win")]
    return [
        {"judged": name, **{each: round(numbers[f"{name}_{each}"], 3) for each in OUTCOMES}}
        for name in judged
    ]


def vanilla(ppo: PPOConfig) -> PPOConfig:
    """PPO with every trick but the ratio clip switched off: the baseline that over-optimises.

    As its critic is not trained before, learning rates rise over a tenth of the steps [PPO 5.1].
    """
    return ppo.model_copy(
        update={
            "score_treatment": "raw",
            "score_clip": None,
            "normalise_advantages": False,
            "advantage_clip": None,
            "kl_coef": 0.0,
            "kl_target": None,
            "ratio_denominator": "sampling",
            "entropy_coef": 0.0,
            "entropy_clip": None,
            "value_clip": None,
            "critic_pretrain_steps": 0,
            "warmup_fraction": 0.1,
            "ptx_coef": 0.0,
            "rehearsal_coef": 0.0,
            "guard": ppo.guard.model_copy(update={"action": "warn"}),
        }
    )


def scorer_of(run: Run, arm: Arm) -> Future | list[Future]:
    """The scorer that an arm is optimised against, or several of them.

    For an arm without a scorer: the one that its answers are measured with.
    """
    if arm == "ppo_max_ensemble":
        return run.optimised_members
    roles: dict[Arm, str] = {
        "full": roles_of_round(1, run.config.rounds.meta_rm_from).scorer,
        "vanilla": "member_0",
        "ppo_max_rm": "reward_model",
        "ppo_max_safety": "helpfulness_model",
    }
    return run[roles.get(arm, "advantage_model")]


def uses_rehearsal(config: RunConfig, arm: Arm) -> bool:
    """Whether an arm, or the arm that it starts from, uses rehearsal."""
    learns: Arm = "rejection_sampling" if arm == "rejection_sampling_ppo" else arm
    if learns in SAMPLED_METHODS:
        return _sampled_method(config, learns).learner.rehearsal_coef > 0
    if arm in ("dpo", "cpl"):
        return (config.dpo if arm == "dpo" else config.cpl).rehearsal_coef > 0
    return arm == "full"


def _trained(run: Run, arm: Arm, scheduling: Mapping[str, Any]) -> Future:
    """An arm's policy; trained once, even if another arm starts from it."""
    if f"policy_{arm}" not in run.roles:
        run[f"policy_{arm}"] = SUBMIT_ARM.get(arm, _ppo)(run, arm, scheduling)
    return run[f"policy_{arm}"]


def _ppo(run: Run, arm: Arm, scheduling: Mapping[str, Any]) -> Future:
    """PPO from SFT, the base model or, as in Llama 2, the policy of rejection sampling."""
    start = reference = _base(run) if arm == "ppo_max_no_sft" else run["sft"]
    if arm == "rejection_sampling_ppo":
        start = _trained(run, "rejection_sampling", scheduling)
    return run.submit(
        specs.PPO_MAX,
        run.seeded(ppo_of(run, arm)),
        policy=start,
        reference=reference,
        scorer=None if arm == "rlaif_direct" else scorer_of(run, arm),
        data=run["data"],
        rehearsal=run["rehearsal"] if arm == "full" else None,
        safety_scorer=run["safety_model"] if arm == "ppo_max_safety" else None,
        label=f"PPO {arm}",
        **scheduling,
    )


def _base(run: Run) -> Future:
    """The policy before SFT."""
    untrained = run.config.sft.model_copy(update={"fine_tune": False})
    run["base"] = run.submit(
        specs.SFT,
        run.seeded(untrained),
        data=run["data"],
        label="base model",
        resources=ALL_CORES,
    )
    return run["base"]


def _rehearsed(run: Run, arm: Arm) -> Future | None:
    """The rehearsal artifact for an arm; None if the arm does not use it."""
    return run["rehearsal"] if uses_rehearsal(run.config, arm) else None


def _learn_pairs(run: Run, arm: Arm, scheduling: Mapping[str, Any]) -> Future:
    """DPO or CPL on the relabelled pairs; only DPO has a reference."""
    config: PolicyConfig = run.config.cpl
    spec, reference = specs.CPL, {}
    if arm == "dpo":
        config, spec, reference = run.config.dpo, specs.DPO, {"reference": run["sft"]}
    return run.submit(
        spec,
        run.seeded(config),
        policy=run["sft"],
        **reference,
        preferences=run["preferences"],
        pairs=run["relabelled"],
        trunk=trunk_for(run, config.train),
        rehearsal=_rehearsed(run, arm),
        label=arm.upper(),
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


SAMPLED_METHODS: tuple[Arm, ...] = ("rejection_sampling", "rest", "hir")


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
            scorer=run["advantage_model"],
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


# Of the others the policy is trained by PPO, or is SFT's (`best_of_n`).
SUBMIT_ARM: dict[Arm, Callable[[Run, Arm, Mapping[str, Any]], Future]] = {
    "dpo": _learn_pairs,
    "cpl": _learn_pairs,
    **dict.fromkeys(SAMPLED_METHODS, _sample_and_learn),
}
