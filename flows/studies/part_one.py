"""The arms of Part I: vanilla PPO and, one by one, what is done about it."""

from __future__ import annotations

from collections.abc import Mapping

from trimtab.flows.config import vanilla
from trimtab.flows.run import Run
from trimtab.flows.studies.registry import arms
from trimtab.flows.studies.steps import (
    AS_GIVEN,
    add_policy,
    add_scorer,
    at_kl,
    require_world,
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
    joint_clip_name,
)
from trimtab.tasks.resources import ALL_CORES


@arms("part-1", "figure-4")
def vanilla_ppo(run: Run) -> None:
    """Vanilla PPO on raw scores."""
    _vanilla(run, {"vanilla": SCORES["vanilla"]})


@arms("part-1", "figure-6")
def scores(run: Run) -> None:
    """Vanilla PPO with scores or advantages normalised and clipped."""
    _vanilla(run, SCORES)


@arms("part-1", "figure-7")
def constraints(run: Run) -> None:
    """Vanilla PPO with constraints on the policy."""
    _vanilla(run, CONSTRAINTS)


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
    plain = with_changes(run.config.ppo, {"rehearsal_coef": 0.0})
    for name, variant in STARTS.items():
        start = "untrained" if name == "without_sft" else "sft"
        add_policy(run, name, with_changes(plain, variant.changes), "scorer_raw", start=start)


@arms("part-1", "figure-3")
def early_reward_models(run: Run) -> None:
    """PPO-max on reward models of few pairs and of all."""
    require_world(run, "part-1-figure-3")
    add_scorer(run, "raw")
    plain = with_changes(run.config.ppo, {"rehearsal_coef": 0.0})
    for name, variant in EARLY.items():
        add_scorer(run, name, with_changes(AS_GIVEN, variant.changes))
        add_policy(run, name, plain, f"scorer_{name}")


@arms("part-1", "score-distributions")
def scored_answers(run: Run) -> None:
    """SFT, PPO-max and vanilla PPO, all measured by the reward model they are trained on."""
    _vanilla(run, {"vanilla": SCORES["vanilla"]})
    ppo_max(run)


@arms("part-1", "joint-clips")
def joint_clips(run: Run) -> None:
    """Vanilla PPO with rewards clipped, and advantages beside them."""
    _vanilla(run, {joint_clip_name(*clips): each for clips, each in JOINT_CLIPS.items()})


@arms("part-1", "alignment-tax")
def alignment_tax(run: Run) -> None:
    """PPO-max with the pre-training loss and without, at several KL coefficients."""
    add_scorer(run, "raw")
    for kl_coef in PTX_KL_COEFS:
        for ptx_coef in PTX_COEFS:
            changes = {"rehearsal_coef": 0.0, "ptx_coef": ptx_coef}
            ppo = with_changes(at_kl(run.config.ppo, kl_coef), changes)
            add_policy(run, f"ptx_{ptx_coef:g}_{kl_coef:g}", ppo, "scorer_raw")


@arms("part-1", "figure-9")
def ppo_max(run: Run) -> None:
    """PPO-max on the reward model, without rehearsal."""
    add_scorer(run, "raw")
    add_policy(
        run, "ppo_max_rm", with_changes(run.config.ppo, {"rehearsal_coef": 0.0}), "scorer_raw"
    )


def _vanilla(run: Run, variants: Mapping[str, Variant]) -> None:
    add_scorer(run, "raw")
    for name, variant in variants.items():
        add_policy(run, name, with_changes(vanilla(run.config.ppo), variant.changes), "scorer_raw")
