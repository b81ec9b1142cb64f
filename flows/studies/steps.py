"""Steps that add roles to a run. A role that the run has already is not submitted again; a stage
that several exhibits need is found in the store by its key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from trimtab.flows.config.config import with_changes
from trimtab.flows.pipeline.data import (
    cache_trunk,
    prepare,
    prompts_for,
    scorer_base,
    strength_for,
    trunk_for,
)
from trimtab.flows.pipeline.labels import ask_judge, audit_labels
from trimtab.flows.pipeline.policies import measure
from trimtab.flows.pipeline.run import Run
from trimtab.models.config.policy import PPOConfig, RehearsalConfig
from trimtab.models.config.reward import AdvantageModelConfig, MetaRMConfig, RelabelConfig
from trimtab.models.specs import (
    ADVANTAGE_MODEL,
    COMPARISONS,
    DPO,
    HEAD_TO_HEAD,
    META_RM,
    PPO_MAX,
    REHEARSAL,
    RELABEL,
    REWARD_MODEL,
    StageSpec,
)
from trimtab.models.studies.variants import Variant

AS_GIVEN = RelabelConfig(flip_below=None)


def changed(run: Run, changes: Mapping[str, Any]) -> Run:
    """The run with another configuration, which adds its roles to those of `run`."""
    return replace(run, config=with_changes(run.config, changes))


def add(run: Run, role: str, spec: StageSpec, config: Any, **keywords: Any) -> None:
    """Submit a stage under a role, unless the run has it.

    keywords: of `Run.submit`, with inputs given by their roles. A required input that is not given
    is the role of its name, as `preferences`.
    """
    if role in run.roles:
        return
    for name in spec.inputs:
        roles = keywords.get(name, name if name in spec.required else None)
        if isinstance(roles, list):
            keywords[name] = [run[other] for other in roles]
        elif isinstance(roles, str):
            keywords[name] = run[roles]
    run[role] = run.submit(spec, config, **keywords)


def add_strength(run: Run) -> None:
    """Pairs, SFT policy, ensemble and `strength`."""
    if "strength" not in run.roles:
        prepare(run)
        ask_judge(run)
        cache_trunk(run)
        audit_labels(run)


def add_scorers(
    run: Run, variants: Mapping[str, Variant], suffix: str = "", **changes: Any
) -> None:
    """`scorer_<variant><suffix>`: reward models by the treatment of their labels. changes: of
    RewardModelConfig."""
    for name, variant in variants.items():
        add_scorer(run, f"{name}{suffix}", treatment_of(run, variant), **changes)


def treatment_of(run: Run, variant: Variant) -> RelabelConfig:
    """Labels as given but for the variant's changes; where it smooths them, by the recipe's
    alpha."""
    alpha = {"smoothing": run.config.relabel.smoothing} if "smooth" in variant.changes else {}
    return with_changes(AS_GIVEN, {**variant.changes, **alpha})


def add_scorer(run: Run, name: str, labels: RelabelConfig = AS_GIVEN, **changes: Any) -> None:
    """`scorer_<name>`: a reward model on the pairs as `labels` treats them."""
    add_strength(run)
    add(run, f"pairs_{name}", RELABEL, labels)
    add_scorer_of_pairs(run, name, **changes)


def add_scorer_of_pairs(run: Run, name: str, **changes: Any) -> None:
    """`scorer_<name>`: a reward model on the pairs of `pairs_<name>`."""
    config = run.config.reward_model
    add(
        run,
        f"scorer_{name}",
        REWARD_MODEL,
        run.seeded(with_changes(config, changes)),
        policy=scorer_base(run),
        pairs=f"pairs_{name}",
        trunk=trunk_for(run, config.train),
        label=f"reward model {name}",
    )


def add_advantage_model(
    run: Run, role: str, config: AdvantageModelConfig, pairs: str, label: str
) -> None:
    """An Advantage Model on the pairs of the role `pairs`."""
    add(
        run,
        role,
        ADVANTAGE_MODEL,
        run.seeded(config),
        policy=scorer_base(run),
        pairs=pairs,
        strength=strength_for(run, config),
        trunk=trunk_for(run, config.train),
        behaviour=["sft"] if config.use_importance_weights else None,
        data=prompts_for(run),
        label=label,
    )


def add_pairs_of_two_policies(run: Run) -> None:
    """`preferences` that SFT and `policy_first`, a policy of PPO on `scorer_raw`, wrote half each,
    sampled at the temperature that likelihoods are taken at: ratios are of who wrote the answers.
    """
    add_policy(run, "first", ppo_without_rehearsal(run), "scorer_raw")
    plain = {"temperature": 1.0, "expert_temperature": 1.0}
    run["preferences"] = run.submit(
        COMPARISONS,
        run.seeded(with_changes(run.config.comparisons, plain), 1),
        data=run["data"],
        policy=[run["sft"], run["policy_first"]],
        label="comparisons of two policies",
    )


def add_weighed(
    run: Run, role: str, config: AdvantageModelConfig, behaviour: Sequence[str], label: str
) -> None:
    """An Advantage Model of the pairs of two policies, pi_phi being `policy_first`; `behaviour`:
    the roles that are taken for those who wrote them."""
    add(
        run,
        role,
        ADVANTAGE_MODEL,
        run.seeded(config),
        policy="policy_first",
        behaviour=[*behaviour],
        data=prompts_for(run),
        label=label,
    )


def add_both_scorers(run: Run) -> None:
    """`scorer_raw` and `advantage_raw`: reward model and Advantage Model on the pairs as given."""
    add_scorer(run, "raw")
    label = "Advantage Model, pairs raw"
    add_advantage_model(run, "advantage_raw", run.config.advantage_model, "pairs_raw", label)


def add_meta_rm(
    run: Run, role: str, config: MetaRMConfig, policy: str, label: str, offset: int = 0
) -> None:
    """`scorer_raw` as MetaRM trains it on, on the answers of the role `policy`."""
    add(
        run,
        role,
        META_RM,
        run.seeded(config, offset),
        scorer="scorer_raw",
        policy=policy,
        pairs="pairs_raw",
        strength=strength_for(run, config),
        trunk=trunk_for(run, run.config.reward_model.train, config.train),
        label=label,
        resources=run.all_cores,
    )


def add_rehearsal(run: Run, name: str, config: RehearsalConfig) -> None:
    """`rehearsal_<name>`: the SFT policy's answers that the Advantage Model finds best."""
    add(
        run,
        f"rehearsal_{name}",
        REHEARSAL,
        run.seeded(config),
        policy="sft",
        scorer="advantage_raw",
        label=f"rehearsal {name}",
    )


def ppo_without_rehearsal(
    run: Run, changes: Mapping[str, Any] = MappingProxyType({}), kl_coef: float | None = None
) -> PPOConfig:
    """PPO-max, changed, at the recipe's KL coefficient or `set_kl` of another."""
    ppo = run.config.ppo if kl_coef is None else set_kl(run.config.ppo, kl_coef)
    uniform = {"rehearsal_weights": "uniform", "kl_weights": "uniform"}
    return with_changes(ppo, {"rehearsal_coef": 0.0, **uniform, **changes})


def set_kl(ppo: PPOConfig, coef: float) -> PPOConfig:
    """PPO-max at another KL coefficient; the guard only warns, so that all steps are run."""
    return with_changes(ppo, {"kl_coef": coef, "kl_target": None, "guard": {"action": "warn"}})


def add_policy(
    run: Run,
    name: str,
    ppo: PPOConfig,
    scored_by: str | None,
    *,
    start: str = "sft",
    rehearsed: str | None = None,
) -> None:
    """`policy_<name>` from the policy `start`, `eval_<name>` and `judge_<name>` against SFT.

    `scorer_raw`, the reward model on labels as given, measures SFT's answers. Without `scored_by`,
    the judge of `ppo.scoring` rates answers in training, and `scorer_raw` measures the policy too.
    """
    add_scorer(run, "raw")
    add(
        run,
        f"policy_{name}",
        PPO_MAX,
        run.seeded(ppo),
        policy=start,
        reference=start,
        scorer=scored_by,
        rehearsal=rehearsed,
        label=f"PPO {name}",
    )
    add_outcome(run, name, scored_by or "scorer_raw")


def add_dpo(run: Run, name: str, changes: Mapping[str, Any], pairs: str) -> None:
    """`policy_<name>`: the arm dpo, changed, on the pairs of the role `pairs`; and `eval_<name>`,
    measured by the ensemble's first member."""
    config = with_changes(run.config.dpo, changes)
    add(
        run,
        f"policy_{name}",
        DPO,
        run.seeded(config),
        policy="sft",
        reference="sft" if config.needs_reference else None,
        pairs=pairs,
        trunk=trunk_for(run, config.train, is_scorer=False),
        label=f"DPO {name}",
    )
    measure(run, name, run[f"policy_{name}"], run["member_0"])


def add_outcome(run: Run, name: str, scorer: str, start: str = "sft") -> None:
    """`eval_<name>` of `policy_<name>`, measured by a scorer, and `judge_<name>` against SFT;
    `eval_start_<name>`, by the same scorer, of the policy over which its score has risen."""
    if "eval_sft" not in run.roles:
        measure(run, "sft", run["sft"], run["scorer_raw"])
    measure(run, f"start_{name}", run[start], run[scorer])
    measure(run, name, run[f"policy_{name}"], run[scorer])
    add_comparison(run, f"judge_{name}", name, "sft")


def add_comparison(run: Run, role: str, ours: str, theirs: str) -> None:
    """Judge the answers of one policy against another's."""
    add(
        run,
        role,
        HEAD_TO_HEAD,
        run.seeded(run.config.evaluate),
        ours=f"eval_{ours}",
        theirs=f"eval_{theirs}",
        label=role.replace("_", " "),
    )
