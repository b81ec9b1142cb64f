"""The arms of Part II: reward models by treatment and strength, policies of them, rounds."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

from trimtab.flows.pipeline.run import Run
from trimtab.flows.studies.registry import arms
from trimtab.flows.studies.steps import (
    add_comparison,
    add_meta_rm,
    add_outcome,
    add_policy,
    add_scorer,
    add_scorers,
    add_strength,
    changed,
    ppo_without_rehearsal,
    with_changes,
)
from trimtab.models.config.base import PolicyPrompts
from trimtab.models.config.reward import ContrastiveConfig, FeaturesConfig
from trimtab.models.specs import FEATURES, PPO_MAX
from trimtab.models.studies.variants import (
    DENOISED_AT_KL,
    DYNAMIC_KL,
    KL_COEFS,
    MARGINS,
    PAIRS_PER_PROMPT,
    RATED,
    RATED_PROMPTS,
    ROUND_ARMS,
    SIMCSE_STRENGTHS,
    STRONGEST_TENTH,
    TENTHS,
    TREATMENTS,
    WEAKEST_TENTHS,
    WITH_DROPOUT,
    Variant,
)

NUM_ROUNDS = 4
NUM_ADAPTATION_ROUNDS = 2
# A round's share of the recipe's PPO steps, and of its learning rate.
SHARE_OF_STEPS = 1 / 3
SHARE_OF_RATE = 1 / 6
DROPOUT = 0.05  # [RM]


@arms("part-2", "figure-1", "figure-2", "figure-3")
def strength(run: Run) -> None:
    """The vote."""
    add_strength(run)


for exhibit, variants in (
    ("figure-4", TENTHS),
    ("figure-5", WEAKEST_TENTHS),
    ("figure-6", STRONGEST_TENTH),
    ("figure-7", MARGINS),
):
    arms("part-2", exhibit)(partial(add_scorers, variants))


@arms("part-2", "figure-8")
def methods_by_step(run: Run) -> None:
    """The five methods for several epochs, on the validation pairs by step."""
    add_scorers(TREATMENTS, run, "_long", train={"num_epochs": 4}, score_every=20)


@arms("part-2", "figure-9", "figure-10")
def free_policies(run: Run) -> None:
    """PPO without KL penalty on the five reward models."""
    add_scorers(TREATMENTS, run)
    for name in TREATMENTS:
        _free_policy(run, name, "baseline")


def _free_policy(run: Run, name: str, baseline: str) -> None:
    add_scorer(run, "raw")
    free = ppo_without_rehearsal(run, kl_coef=0.0)
    add_policy(run, f"free_{name}", free, f"scorer_{name}")
    if name != baseline:
        add_comparison(run, f"versus_free_{name}", f"free_{name}", f"free_{baseline}")


@arms("part-2", "denoised-policies", in_world=True)
def policies_by_kl(run: Run) -> None:
    """PPO-max on reward models of few pairs, of which the harder are wrong more often."""
    # So few prompts that a thousand pairs are trained on, by the members that vote too.
    few = {"noise": "by_difficulty", "num_prompts": 2000, "test_share": 0.3}
    noisy = changed(run, {"comparisons": few})
    add_scorer(noisy, "raw")
    add_scorers(DENOISED_AT_KL, noisy, train={"num_epochs": 4})
    for name in DENOISED_AT_KL:
        for coef in KL_COEFS:
            ppo = ppo_without_rehearsal(run, kl_coef=coef)
            add_policy(noisy, f"{name}_{coef:g}", ppo, f"scorer_{name}")


@arms("part-2", "figure-11")
def features_of_scorers(run: Run) -> None:
    """What reward models of one dropout, with and without SimCSE, make of the test answers."""
    for name, variant in SIMCSE_STRENGTHS.items():
        _contrastive_scorer(run, name, variant)
        run[f"features_scorer_{name}"] = run.submit(
            FEATURES,
            FeaturesConfig(),
            scorer=run[f"scorer_{name}"],
            preferences=run["preferences"],
            label=f"features, {name}",
        )


@arms("part-2", "figure-12", "figure-13")
def contrastive_policies(run: Run) -> None:
    """PPO without KL penalty on contrastive reward models, and on one of the same dropout."""
    for name, variant in WITH_DROPOUT.items():
        _contrastive_scorer(run, name, variant)
        _free_policy(run, name, "dropout")


def _contrastive_scorer(run: Run, name: str, variant: Variant) -> None:
    contrastive = ContrastiveConfig.model_validate(variant.changes) if variant.changes else None
    add_scorer(run, name, train={"dropout": DROPOUT}, contrastive=contrastive)


@arms("part-2", "response-ratings", in_world=True)
def response_ratings(run: Run) -> None:
    """Reward models on several pairs of a prompt's responses, by what labels are made of them."""
    asked = {"num_prompts": RATED_PROMPTS, "pairs_per_prompt": PAIRS_PER_PROMPT}
    add_scorers(RATED, changed(run, {"comparisons": asked}))


@arms("part-2", "table-2", "table-3", "figure-16")
def rounds(run: Run) -> None:
    """Four rounds from SFT: on the reward model as it is, and as each kind of round trains it."""
    for name in ROUND_ARMS:
        _add_rounds(run, name, NUM_ROUNDS)
    for number in range(1, NUM_ROUNDS + 1):
        for rival in ("plain", "eta_0"):
            ours, theirs = f"meta_{number}", f"{rival}_{number}"
            add_comparison(run, f"versus_{theirs}", ours, theirs)


@arms("part-2", "figure-17")
def rounds_at_dynamic_kl(run: Run) -> None:
    """As many rounds of MetaRM whose KL coefficient is steered to a KL."""
    rounds(run)
    _add_rounds(run, "meta", NUM_ROUNDS, prefix="dynamic_", changes=DYNAMIC_KL)


@arms("part-2", "figure-15", in_world=True)
def adaptation(run: Run) -> None:
    """Rounds on unlabelled prompts of the held-out family, and as many on the others."""
    _add_rounds(run, "meta", NUM_ADAPTATION_ROUNDS)
    for name in ("plain", "eta_0", "meta"):
        _add_rounds(run, name, NUM_ADAPTATION_ROUNDS, "held_out", "adapted_")
    for rival in ("plain", "eta_0"):
        last = f"{rival}_{NUM_ADAPTATION_ROUNDS}"
        ours = f"adapted_meta_{NUM_ADAPTATION_ROUNDS}"
        add_comparison(run, f"versus_adapted_{last}", ours, f"adapted_{last}")


def _add_rounds(
    run: Run,
    arm: str,
    count: int,
    prompts: PolicyPrompts = "policy",
    prefix: str = "",
    changes: Mapping[str, Any] = MappingProxyType({}),
) -> None:
    """`policy_<prefix><arm>_<n>`: each from the one before, held near SFT, in steps so small that
    the first leaves something to gain. Every MetaRM starts from the reward model `scorer_raw`.

    changes: of PPOConfig.
    """
    add_scorer(run, "raw")
    whole, policy = run.config.ppo, "sft"
    share = {
        "prompts": prompts,
        "num_steps": max(1, round(whole.num_steps * SHARE_OF_STEPS)),
        "policy_learning_rate": whole.policy_learning_rate * SHARE_OF_RATE,
    }
    ppo = ppo_without_rehearsal(run, {**share, **changes}, whole.kl_coef)
    held_out = run.config.rounds.meta_rm.num_prompts // 2
    meta_rm = with_changes(
        run.config.rounds.meta_rm, {"redraw_prompts": True, "num_held_out": held_out}
    )
    for number in range(1, count + 1):
        name, scorer = f"{prefix}{arm}_{number}", "scorer_raw"
        if of_meta_rm := ROUND_ARMS[arm].changes:
            scorer = f"meta_rm_{name}"
            config = with_changes(meta_rm, {"prompts": prompts, **of_meta_rm})
            add_meta_rm(run, scorer, config, policy, scorer.replace("_", " "), number)
        if f"policy_{name}" not in run.roles:
            run[f"policy_{name}"] = run.submit(
                PPO_MAX,
                run.seeded(ppo, number),
                policy=run[policy],
                reference=run["sft"],
                scorer=run[scorer],
                data=run["data"],
                label=f"PPO {name}",
            )
            add_outcome(run, name, scorer)
        policy = f"policy_{name}"
