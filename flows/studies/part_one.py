"""The arms of Part I: vanilla PPO and, one by one, what is done about it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from trimtab.flows.pipeline.policies import vanilla
from trimtab.flows.pipeline.run import Run
from trimtab.flows.studies.registry import arms
from trimtab.flows.studies.steps import (
    add_policy,
    add_scorer,
    add_scorers,
    ppo_without_rehearsal,
    with_changes,
)
from trimtab.models.specs import SFT
from trimtab.models.studies.variants import (
    CONSTRAINTS,
    EARLY,
    JOINT_CLIPS,
    PTX_COEFS,
    PTX_KL_COEFS,
    SCORES,
    STARTS,
    Variant,
)
from trimtab.tasks.resources import ALL_CORES

VANILLA = {"vanilla": SCORES["vanilla"]}


def vanilla_ppo(variants: Mapping[str, Variant], run: Run) -> None:
    """Vanilla PPO on raw scores, with what variants change of it."""
    add_scorer(run, "raw")
    for name, variant in variants.items():
        add_policy(run, name, with_changes(vanilla(run.config.ppo), variant.changes), "scorer_raw")


for exhibit, variants in (
    ("figure-4", VANILLA),
    ("figure-6", SCORES),
    ("figure-7", CONSTRAINTS),
    ("joint-clips", JOINT_CLIPS),
):
    arms("part-1", exhibit)(partial(vanilla_ppo, variants))


@arms("part-1", "figure-3", in_world=True)
def early_reward_models(run: Run) -> None:
    """PPO-max on reward models of few pairs and of all."""
    add_scorer(run, "raw")
    add_scorers(EARLY, run)
    for name in EARLY:
        add_policy(run, name, ppo_without_rehearsal(run), f"scorer_{name}")


@arms("part-1", "figure-8")
def starts(run: Run) -> None:
    """PPO-max, its critic and its policy from elsewhere."""
    add_scorer(run, "raw")
    run["untrained"] = run.submit(
        SFT,
        run.seeded(with_changes(run.config.sft, {"fine_tune": False})),
        data=run["data"],
        label="no SFT",
        resources=ALL_CORES,
    )
    for name, variant in STARTS.items():
        start = "untrained" if name == "without_sft" else "sft"
        ppo = ppo_without_rehearsal(run, variant.changes)
        add_policy(run, name, ppo, "scorer_raw", start=start)


@arms("part-1", "figure-9")
def ppo_max(run: Run) -> None:
    """PPO-max on the reward model, without rehearsal."""
    add_scorer(run, "raw")
    add_policy(run, "ppo_max_rm", ppo_without_rehearsal(run), "scorer_raw")


@arms("part-1", "score-distributions")
def scored_answers(run: Run) -> None:
    """SFT, PPO-max and vanilla PPO, all measured by the reward model they are trained on."""
    vanilla_ppo(VANILLA, run)
    ppo_max(run)


@arms("part-1", "alignment-tax")
def alignment_tax(run: Run) -> None:
    """PPO-max with the pre-training loss and without, at several KL coefficients."""
    add_scorer(run, "raw")
    for kl_coef in PTX_KL_COEFS:
        for ptx_coef in PTX_COEFS:
            ppo = ppo_without_rehearsal(run, {"ptx_coef": ptx_coef}, kl_coef)
            add_policy(run, f"ptx_{ptx_coef:g}_{kl_coef:g}", ppo, "scorer_raw")
