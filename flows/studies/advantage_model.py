"""The arms of the Advantage Model paper: two scorers on the same pairs, and policies of them."""

from __future__ import annotations

from typing import Any

from trimtab.flows.pipeline.data import prompts_for
from trimtab.flows.pipeline.run import Run
from trimtab.flows.studies.registry import arms
from trimtab.flows.studies.steps import (
    AS_GIVEN,
    add_advantage_model,
    add_policy,
    add_scorer,
    ppo_without_rehearsal,
    set_kl,
    submit_advantage_model,
    with_changes,
)
from trimtab.models.config.policy import RehearsalConfig
from trimtab.models.specs import ADVANTAGE_MODEL, COMPARISONS, REHEARSAL, REWARD_MODEL
from trimtab.models.studies.variants import (
    CRITERIA,
    EPOCHS,
    FEW_PAIRS,
    REHEARSAL_KL_COEFS,
    REHEARSALS,
)


@arms("advantage-model", "table-1", "figure-2", "figure-3", "figure-4")
def scorers(run: Run) -> None:
    """Reward model and Advantage Model on the pairs as given."""
    add_scorer(run, "raw")
    add_advantage_model(run)


@arms("advantage-model", "figure-1")
def forgetting(run: Run) -> None:
    """The reward model, and PPO on it."""
    add_scorer(run, "raw")
    add_policy(run, "reward_model", ppo_without_rehearsal(run), "scorer_raw")


@arms("advantage-model", "table-2", "figure-5")
def policies(run: Run) -> None:
    """Four policies."""
    scorers(run)
    plain = ppo_without_rehearsal(run)
    raw = ppo_without_rehearsal(run, {"score_treatment": "raw", "score_clip": None})
    add_policy(run, "raw_scores_rm", raw, "scorer_raw")
    add_policy(run, "reward_model", plain, "scorer_raw")
    add_policy(run, "advantage_model", plain, "advantage_raw")
    add_rehearsal(run, "full", run.config.rehearsal)
    add_policy(run, "full", run.config.ppo, "advantage_raw", rehearsed="rehearsal_full")


@arms("advantage-model", "calibration")
def epochs_on_few_pairs(run: Run) -> None:
    """Both scorers after several epochs on a thousand pairs."""
    few = with_changes(AS_GIVEN, {"max_pairs": FEW_PAIRS})
    for epochs in EPOCHS:
        name = f"epochs_{epochs}"
        train = {"num_epochs": epochs}
        add_scorer(run, name, few, train=train)
        config = with_changes(run.config.advantage_model, {"train": train})
        label = f"Advantage Model, pairs epochs {epochs}"
        submit_advantage_model(run, f"advantage_{name}", config, f"pairs_{name}", label)


@arms("advantage-model", "rehearsal")
def rehearsal_by_kl(run: Run) -> None:
    """PPO-max on the Advantage Model at several KL coefficients: without rehearsal, with that of
    the paper, of answers to what SFT was taught on, and of such answers drawn at random."""
    scorers(run)
    own = run.config.rehearsal
    for name, variant in REHEARSALS.items():
        changes = dict(variant.changes)
        if name == "random":
            changes |= _draw_at_random(own)
        if name != "without":
            add_rehearsal(run, name, with_changes(own, changes))
        for coef in REHEARSAL_KL_COEFS:
            if name == "without":
                ppo, rehearsed = ppo_without_rehearsal(run, kl_coef=coef), None
            else:
                ppo, rehearsed = set_kl(run.config.ppo, coef), f"rehearsal_{name}"
            add_policy(run, f"{name}_{coef:g}", ppo, "advantage_raw", rehearsed=rehearsed)


@arms("advantage-model", "rehearsal-criteria")
def criteria(run: Run) -> None:
    """PPO-max without a KL penalty, rehearsing examples that are kept by other criteria."""
    scorers(run)
    own = with_changes(run.config.rehearsal, {"prompts": "demonstrations"})
    ppo = set_kl(run.config.ppo, 0.0)
    add_policy(run, "without_0", ppo_without_rehearsal(run, kl_coef=0.0), "advantage_raw")
    for name, variant in CRITERIA.items():
        add_rehearsal(run, name, with_changes(own, variant.changes))
        add_policy(run, f"{name}_0", ppo, "advantage_raw", rehearsed=f"rehearsal_{name}")


@arms("advantage-model", "importance-weights", in_world=True)
def two_behaviour_policies(run: Run) -> None:
    """Pairs that SFT and a policy of PPO wrote, half each, and three scorers of them."""
    add_scorer(run, "raw")
    add_policy(run, "first", ppo_without_rehearsal(run), "scorer_raw")
    both = [run["sft"], run["policy_first"]]
    # At the temperature that likelihoods are taken at: ratios are of who wrote the answers.
    asked = with_changes(run.config.comparisons, {"temperature": 1.0, "expert_temperature": 1.0})
    run["preferences"] = run.submit(
        COMPARISONS,
        run.seeded(asked, 1),
        data=run["data"],
        policy=both,
        label="comparisons of two policies",
    )
    run["scorer_two"] = run.submit(
        REWARD_MODEL,
        run.seeded(run.config.reward_model),
        policy=run["policy_first"],
        preferences=run["preferences"],
        label="reward model, two policies",
    )
    # Ratios to pi_phi itself are 1: as many policies, at the same scale of scores.
    unit = [run["policy_first"]] * 2
    config = with_changes(run.config.advantage_model, {"use_importance_weights": True})
    for name, behaviour in (("unweighed", unit), ("weighed", both)):
        run[f"scorer_{name}"] = run.submit(
            ADVANTAGE_MODEL,
            run.seeded(config),
            policy=run["policy_first"],
            preferences=run["preferences"],
            behaviour=behaviour,
            data=prompts_for(run),
            label=f"Advantage Model {name}",
        )


def add_rehearsal(run: Run, name: str, config: RehearsalConfig) -> None:
    """`rehearsal_<name>`: the SFT policy's answers that the Advantage Model finds best."""
    run[f"rehearsal_{name}"] = run.submit(
        REHEARSAL,
        run.seeded(config),
        data=run["data"],
        policy=run["sft"],
        scorer=run["advantage_raw"],
        label=f"rehearsal {name}",
    )


def _draw_at_random(rehearsal: RehearsalConfig) -> dict[str, Any]:
    """Changes to one cluster of as many examples as are kept: none is selected."""
    kept = rehearsal.num_clusters * rehearsal.per_cluster
    return {"max_prompts": kept, "num_clusters": 1, "per_cluster": kept}
