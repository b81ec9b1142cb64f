"""The arms of Part I: vanilla PPO and, one by one, what is done about it."""

from __future__ import annotations

from typing import Any

from flows.config import vanilla
from flows.run import Run
from flows.studies.registry import arms
from flows.studies.steps import policy, scorer, varied
from tasks.stages import sft

# What each arm changes of vanilla PPO.
SCORES: dict[str, dict[str, Any]] = {
    "scaled": {"score_treatment": "scaled"},
    "normalised": {"score_treatment": "normalised"},
    "normalised_clip_80": {"score_treatment": "normalised", "score_clip": 0.8},
    "normalised_clip_30": {"score_treatment": "normalised", "score_clip": 0.3},
    "advantage_clip_50": {"normalise_advantages": True, "advantage_clip": 0.5},
    "advantage_clip_12": {"normalise_advantages": True, "advantage_clip": 0.12},
}
CONSTRAINTS: dict[str, dict[str, Any]] = {
    "kl_05": {"kl_coef": 0.05},
    "kl_10": {"kl_coef": 0.1},
    "kl_20": {"kl_coef": 0.2},
    "importance": {"ratio_denominator": "reference"},
    "importance_kl_05": {"ratio_denominator": "reference", "kl_coef": 0.05},
    "entropy": {"entropy_coef": 0.01},
}
# What each arm changes of PPO-max.
STARTS: dict[str, dict[str, Any]] = {
    "critic_scorer": {"critic_pretrain_steps": 0},
    "critic_policy": {"critic_init": "policy", "critic_pretrain_steps": 0},
}


@arms("part-1", "figure-4")
def vanilla_ppo(run: Run) -> None:
    """Vanilla PPO on raw scores."""
    _changed(run, "vanilla", {})


@arms("part-1", "figure-6")
def scores(run: Run) -> None:
    """Vanilla PPO with scores or advantages normalised and clipped."""
    vanilla_ppo(run)
    for name, changes in SCORES.items():
        _changed(run, name, changes)


@arms("part-1", "figure-7")
def constraints(run: Run) -> None:
    """Vanilla PPO with constraints on the policy."""
    vanilla_ppo(run)
    for name, changes in CONSTRAINTS.items():
        _changed(run, name, changes)


@arms("part-1", "figure-8")
def starts(run: Run) -> None:
    """PPO-max, its critic and its policy from elsewhere."""
    ppo_max(run)
    plain = varied(run.config.ppo, {"rehearsal_coef": 0.0})
    for name, changes in STARTS.items():
        policy(run, name, varied(plain, changes), "scorer_raw")
    run["untrained"] = run.submit(
        sft,
        run.seeded(varied(run.config.sft, {"fine_tune": False})),
        data=run["data"],
        label="no SFT",
    )
    policy(run, "without_sft", plain, "scorer_raw", start="untrained")


@arms("part-1", "figure-9")
def ppo_max(run: Run) -> None:
    """PPO-max on the reward model, without rehearsal."""
    scorer(run, "raw")
    plain = varied(run.config.ppo, {"rehearsal_coef": 0.0})
    policy(run, "ppo_max_rm", plain, "scorer_raw")


def _changed(run: Run, name: str, changes: dict[str, Any]) -> None:
    scorer(run, "raw")
    policy(run, name, varied(vanilla(run.config.ppo), changes), "scorer_raw")
