"""The arms of the frontier, each way to optimise a policy at several strengths, and of policies
that answer at several temperatures.

On the frontier all else is shared: pairs, SFT policy, scorers, rehearsed examples. Those that
sample take as many responses at every strength; HIR has none, and `rejection_sampling_ppo` that of
PPO.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from trimtab.flows.config.config import Arm, RunConfig
from trimtab.flows.pipeline.policies import measure, train_policies, train_policy
from trimtab.flows.pipeline.rewards import train_scorers
from trimtab.flows.pipeline.run import Run
from trimtab.flows.studies.constants import named_values
from trimtab.flows.studies.registry import arms
from trimtab.flows.studies.steps import add_comparison, add_strength, changed
from trimtab.models.studies.variants import STRENGTHS, TEMPERATURES


@dataclass(frozen=True)
class Sweep:
    """The recipe's value of what decides how far an arm goes, and what another value changes."""

    recipe_value: Callable[[RunConfig], float]
    changes: Callable[[RunConfig, float], dict[str, Any]]


def _candidates(config: RunConfig, value: float) -> dict[str, Any]:
    """K answers a prompt: as many samples as the recipe's, and updates as near as epochs allow."""
    answers, train = config.rejection_sampling.answers, config.rejection_sampling.fine_tune.train
    prompts = max(1, int(answers.num_prompts * answers.num_responses / value))
    num_epochs = max(1, round(train.num_epochs * value / answers.num_responses))
    return {
        "answers": {"num_responses": int(value), "num_prompts": prompts},
        "fine_tune": {"train": {"num_epochs": num_epochs}},
    }


def _thresholds(config: RunConfig, value: float) -> list[float]:
    """All moved alike, to that last one."""
    thresholds = config.rest.improve.thresholds
    return [round(threshold + value - thresholds[-1], 6) for threshold in thresholds]


_PPO = Sweep(
    lambda config: config.ppo.kl_coef,
    lambda _, value: {"ppo": {"kl_coef": value, "kl_target": None}},
)
SWEEPS: dict[Arm, Sweep] = {
    "ppo_max_am": _PPO,
    "full": _PPO,
    "rejection_sampling": Sweep(
        lambda config: config.rejection_sampling.answers.num_responses,
        lambda config, value: {"rejection_sampling": _candidates(config, value)},
    ),
    "rest": Sweep(
        lambda config: config.rest.improve.thresholds[-1],
        lambda config, value: {"rest": {"improve": {"thresholds": _thresholds(config, value)}}},
    ),
    "dpo": Sweep(
        lambda config: config.dpo.beta,
        lambda _, value: {"dpo": {"beta": value}},
    ),
    "cpl": Sweep(
        lambda config: config.cpl.alpha,
        lambda _, value: {"cpl": {"alpha": value}},
    ),
    "best_of_n": Sweep(
        lambda config: config.best_of_n.num_responses,
        lambda _, value: {"best_of_n": {"num_responses": int(value)}},
    ),
}


@arms("methods", "frontier")
def frontier(run: Run) -> None:
    """`eval_<arm>_<value>`, and every other role of an arm likewise."""
    whole = changed(run, {"arms": tuple(SWEEPS)})
    add_strength(whole)
    train_scorers(whole)
    recipe = replace(whole, roles=dict(run.roles))
    train_policies(recipe)
    run["rehearsal"], run["eval_sft"] = recipe["rehearsal"], recipe["eval_sft"]
    shared = dict(run.roles)
    for arm, sweep in SWEEPS.items():
        for value, name in named_values(STRENGTHS[arm].values, sweep.recipe_value(run.config)):
            swept = changed(whole, sweep.changes(run.config, value))
            swept = replace(swept, roles=dict(shared))
            train_policy(swept, arm)
            for role in swept.roles.keys() - shared.keys():
                run[f"{role}_{name}"] = swept[role]


@arms("methods", "temperature")
def temperatures(run: Run) -> None:
    """`eval_<arm>_<temperature>`, each against SFT's answers at the recipe's temperature."""
    chosen: tuple[Arm, ...] = ("ppo_max_am", "dpo", "best_of_n")
    run = changed(run, {"arms": chosen})
    add_strength(run)
    train_scorers(run)
    train_policies(run)
    best = {"num_candidates": run.config.best_of_n.num_responses}
    for temperature in TEMPERATURES:
        for name, policy, changes in (
            ("sft", "sft", {}),
            ("ppo_max_am", "policy_ppo_max_am", {}),
            ("dpo", "policy_dpo", {}),
            ("best_of_n", "sft", best),
        ):
            name = f"{name}_{temperature:g}"
            asked = changed(run, {"evaluate": changes})
            measure(asked, name, run[policy], run["advantage_model"], temperature=temperature)
            add_comparison(run, f"judge_{name}", name, "sft")
