"""The arms of the Advantage Model paper: two scorers on the same pairs, and policies of them."""

from __future__ import annotations

from trimtab.flows.run import Run
from trimtab.flows.studies.registry import arms
from trimtab.flows.studies.steps import add_advantage_model, add_policy, add_scorer, with_changes
from trimtab.models.config.policy import PPOConfig, RehearsalConfig
from trimtab.models.specs import REHEARSAL


@arms("advantage-model", "table-1", "figure-2", "figure-3", "figure-4")
def scorers(run: Run) -> None:
    """Reward model and Advantage Model on the pairs as given."""
    add_scorer(run, "raw")
    add_advantage_model(run)


@arms("advantage-model", "figure-1")
def forgetting(run: Run) -> None:
    """The reward model, and PPO on it."""
    add_scorer(run, "raw")
    add_policy(run, "reward_model", _without_rehearsal(run), "scorer_raw")


@arms("advantage-model", "table-2", "figure-5")
def policies(run: Run) -> None:
    """Four policies."""
    scorers(run)
    plain = _without_rehearsal(run)
    raw = with_changes(plain, {"score_treatment": "raw", "score_clip": None})
    add_policy(run, "raw_scores_rm", raw, "scorer_raw")
    add_policy(run, "reward_model", plain, "scorer_raw")
    add_policy(run, "advantage_model", plain, "advantage_raw")
    add_rehearsal(run, "full", run.config.rehearsal)
    add_policy(run, "full", run.config.ppo, "advantage_raw", rehearsed="rehearsal_full")


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


def _without_rehearsal(run: Run) -> PPOConfig:
    return with_changes(run.config.ppo, {"rehearsal_coef": 0.0})
