"""The arms of what is swept: constants, strengths of methods and of DPO's losses, wrong labels,
temperatures of sampling.

On the frontier all but the strength is shared: pairs, SFT policy, scorers, rehearsed examples.
Methods that sample take as many responses at every strength; HIR has none, and
`rejection_sampling_ppo` that of PPO.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import reduce
from typing import Any

from trimtab.flows.config.config import RunConfig
from trimtab.flows.config.paths import nested
from trimtab.flows.pipeline.policies import measure, train_policies, train_policy
from trimtab.flows.pipeline.rewards import train_scorers
from trimtab.flows.pipeline.run import Run
from trimtab.flows.studies.steps import (
    add,
    add_both_scorers,
    add_comparison,
    add_dpo,
    add_meta_rm,
    add_pairs_of_two_policies,
    add_policy,
    add_rehearsal,
    add_scorer,
    add_strength,
    add_weighed,
    changed,
    treatment_of,
)
from trimtab.models.config.arms import Arm
from trimtab.models.specs import RELABEL
from trimtab.models.studies.variants import (
    CONSTANTS,
    DPO_LOSSES,
    LOSS_BETAS,
    NOISE_LABELS,
    NOISE_LOSSES,
    NOISE_SHARES,
    STRENGTHS,
    TAKE_THE_RATE,
    TEMPERATURES,
    Constant,
    flipped,
)


def _candidates(config: RunConfig, value: float) -> dict[str, Any]:
    """K answers a prompt: as many samples as the recipe's, and updates as near as epochs allow."""
    answers, train = config.rejection_sampling.answers, config.rejection_sampling.fine_tune.train
    prompts = max(1, int(answers.num_prompts * answers.num_responses / value))
    num_epochs = max(1, round(train.num_epochs * value / answers.num_responses))
    return {
        "answers": {"num_responses": int(value), "num_prompts": prompts},
        "fine_tune": {"train": {"num_epochs": num_epochs}},
    }


def _thresholds(config: RunConfig, value: float) -> dict[str, Any]:
    """All thresholds moved by as much, so that the last one is the value."""
    thresholds = config.rest.improve.thresholds
    moved = [round(threshold + value - thresholds[-1], 6) for threshold in thresholds]
    return {"improve": {"thresholds": moved}}


def _clusters(config: RunConfig, value: float) -> dict[str, Any]:
    """As many examples in all, in another number of clusters."""
    count = config.rehearsal.num_clusters * config.rehearsal.per_cluster
    return {"num_clusters": int(value), "per_cluster": max(1, count // int(value))}


# Changes of a section, where another value of the setting changes more than the setting.
CHANGES: dict[str, Callable[[RunConfig, float], dict[str, Any]]] = {
    "rejection_sampling.answers.num_responses": _candidates,
    "rest.improve.thresholds": _thresholds,
    "rehearsal.num_clusters": _clusters,
}


def recipe_value(config: RunConfig, constant: Constant) -> float:
    """The recipe's value of the swept setting; of several values the last."""
    value: Any = reduce(getattr, constant.setting.split("."), config)
    recipe: float = value[-1] if isinstance(value, tuple) else value
    return recipe


def swept_runs(run: Run, constant: Constant) -> Iterator[tuple[float, str, Run]]:
    """Each value, the recipe's own among them, with its name in a role and the run at it."""
    run = changed(run, constant.changes)
    recipe = recipe_value(run.config, constant)
    section, *_ = constant.setting.split(".")
    for value in sorted({*constant.values, recipe}):
        changes = nested(constant.setting, value)
        if constant.setting in CHANGES:
            changes = {section: CHANGES[constant.setting](run.config, value)}
        name = f"{value:g}{'_recipe' if value == recipe else ''}"
        yield value, name, changed(run, changes)


def sweep(run: Run, varied: str) -> None:
    """The recipe with one constant of other values, its own among them: scorers or policies
    `<constant>_<value>`."""
    constant = CONSTANTS[varied]
    add_strength(run)
    if "reward model" not in constant.trains:
        add_both_scorers(run)
    if constant.trains == "Advantage Model":
        add_pairs_of_two_policies(run)
    for value, ending, swept in swept_runs(run, constant):
        name, config = f"{varied.replace('-', '_')}_{ending}", swept.config
        scorer = f"scorer_{name}"
        match constant.trains:
            case "reward model":
                add_scorer(swept, name, config.relabel)
            case "reward model, labels as given":
                add_scorer(swept, name)
            case "Advantage Model":
                label = f"Advantage Model, N = {value:g}"
                add_weighed(swept, scorer, config.advantage_model, ["sft", "policy_first"], label)
            case "MetaRM":
                add_meta_rm(swept, scorer, config.rounds.meta_rm, "sft", f"MetaRM, step {value:g}")
            case "policy":
                add_rehearsal(swept, name, config.rehearsal)
                add_policy(swept, name, config.ppo, "advantage_raw", rehearsed=f"rehearsal_{name}")


def frontier(run: Run) -> None:
    """`eval_<arm>_<value>`, and every other role of an arm likewise."""
    compared = changed(run, {"arms": tuple(STRENGTHS)})
    add_strength(compared)
    train_scorers(compared)
    recipe = replace(compared, roles=dict(run.roles))
    train_policies(recipe)
    run["rehearsal"], run["eval_sft"] = recipe["rehearsal"], recipe["eval_sft"]
    shared = dict(run.roles)
    for arm in compared.config.arms:
        for _, name, swept in swept_runs(compared, STRENGTHS[arm]):
            swept = replace(swept, roles=dict(shared))
            train_policy(swept, arm)
            for role in swept.roles.keys() - shared.keys():
                run[f"{role}_{name}"] = swept[role]


def dpo_losses(run: Run) -> None:
    """`eval_<loss>_<beta>`: each loss of DPO at several beta, on the recipe's pairs."""
    run = changed(run, {"arms": ("dpo",)})
    add_strength(run)
    measure(run, "sft", run["sft"], run["member_0"])
    for loss, variant in DPO_LOSSES.items():
        for beta in LOSS_BETAS[loss]:
            add_dpo(run, f"{loss}_{beta:g}", {**variant.changes, "beta": beta}, "relabelled")


def dpo_noise(run: Run) -> None:
    """`<share>eval_<loss>_<labels>`: losses on labels of which shares are turned round, as given
    and relabelled by the recipe's vote on them."""
    for share in NOISE_SHARES:
        changes = {"comparisons": {"flip_share": share}, "arms": ("dpo",)}
        noisy = replace(changed(run, changes), roles={})
        add_strength(noisy)
        for labels, treatment in NOISE_LABELS.items():
            add(noisy, f"pairs_{labels}", RELABEL, treatment_of(noisy, treatment))
            for loss, variant in NOISE_LOSSES.items():
                rate = {"label_smoothing": share} if loss in TAKE_THE_RATE else {}
                if share > 0 or not rate:
                    name = f"{loss}_{labels}"
                    add_dpo(noisy, name, {**variant.changes, **rate}, f"pairs_{labels}")
        if "eval_sft" not in run.roles:
            measure(noisy, "sft", noisy["sft"], noisy["member_0"])
            run["eval_sft"], run["preferences"] = noisy["eval_sft"], noisy["preferences"]
        run.roles |= {f"{flipped(share)}{role}": future for role, future in noisy.roles.items()}


def temperatures(run: Run) -> None:
    """`eval_<arm>_<temperature>`, each against SFT's answers at the recipe's temperature."""
    chosen: tuple[Arm, ...] = ("ppo_max_am", "dpo", "best_of_n")
    run = changed(run, {"arms": chosen})
    add_strength(run)
    train_scorers(run)
    train_policies(run)
    candidates = {"best_of_n": {"num_candidates": run.config.best_of_n.num_responses}}
    for temperature in TEMPERATURES:
        for arm in ("sft", *chosen):
            policy = run["sft" if arm in ("sft", "best_of_n") else f"policy_{arm}"]
            name = f"{arm}_{temperature:g}"
            sampled = changed(run, {"evaluate": candidates.get(arm, {})})
            measure(sampled, name, policy, run["advantage_model"], temperature=temperature)
            add_comparison(run, f"judge_{name}", name, "sft")
