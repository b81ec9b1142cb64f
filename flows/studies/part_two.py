"""The arms of Part II: reward models by treatment and strength, policies of them, rounds."""

from __future__ import annotations

from dataclasses import replace

from trimtab.flows.pipeline.policies import judge_policies, train_policies
from trimtab.flows.pipeline.rewards import train_scorers
from trimtab.flows.pipeline.rounds import improve_in_rounds
from trimtab.flows.run import Run
from trimtab.flows.studies.registry import arms
from trimtab.flows.studies.steps import (
    AS_GIVEN,
    add_comparison,
    add_policy,
    add_scorer,
    add_strength,
    relabel_config,
    with_changes,
)
from trimtab.models.config.reward import ContrastiveConfig, FeaturesConfig, RelabelConfig
from trimtab.models.specs import FEATURES
from trimtab.models.studies.variants import CONTRASTIVE, STRONGEST_TENTH, TREATMENTS

NUM_ROUNDS = 4
DROPOUT = 0.05  # [RM]


@arms("part-2", "figure-1", "figure-2", "figure-3")
def strength(run: Run) -> None:
    """The vote."""
    add_strength(run)


@arms("part-2", "figure-4")
def scorer_per_tenth(run: Run) -> None:
    """A reward model of each tenth of the pairs by strength."""
    for number in range(1, 11):
        add_scorer(run, f"tenth_{number}", _tenth(number))


@arms("part-2", "figure-5")
def weakest_tenths(run: Run) -> None:
    """The two weakest tenths, as given and flipped."""
    for number in (1, 2):
        add_scorer(run, f"tenth_{number}", _tenth(number))
        everything = with_changes(_tenth(number), {"flip_fraction": number / 10})
        add_scorer(run, f"tenth_{number}_flipped", everything)


@arms("part-2", "figure-6")
def strongest_tenth(run: Run) -> None:
    """Margin and soft labels on the strongest tenth."""
    for name, variant in STRONGEST_TENTH.items():
        add_scorer(run, name, relabel_config(run, variant, _tenth(10)))


def _tenth(number: int) -> RelabelConfig:
    """The pairs of a tenth by strength, weakest first."""
    keep = {"keep_from": (number - 1) / 10, "keep_to": number / 10}
    return with_changes(AS_GIVEN, keep)


@arms("part-2", "figure-7")
def margins(run: Run) -> None:
    """A margin for all pairs."""
    for name in ("baseline", "margin"):
        add_scorer(run, name, relabel_config(run, TREATMENTS[name]))


@arms("part-2", "figure-8")
def methods_by_step(run: Run) -> None:
    """The five methods for several epochs, on the validation pairs by step."""
    train = with_changes(run.config.reward_model.train, {"num_epochs": 4})
    for name, variant in TREATMENTS.items():
        labels = relabel_config(run, variant)
        add_scorer(run, f"{name}_long", labels, train=train, score_every=20)


@arms("part-2", "figure-9", "figure-10")
def free_policies(run: Run) -> None:
    """PPO without KL penalty on the five reward models."""
    for name, variant in TREATMENTS.items():
        add_scorer(run, name, relabel_config(run, variant))
        _free_policy(run, name)


def _free_policy(run: Run, name: str) -> None:
    add_scorer(run, "raw")
    free = with_changes(run.config.ppo, {"kl_coef": 0.0, "rehearsal_coef": 0.0})
    warned = with_changes(free.guard, {"action": "warn"})
    add_policy(run, f"free_{name}", with_changes(free, {"guard": warned}), f"scorer_{name}")
    if name != "baseline":
        add_comparison(run, f"versus_free_{name}", f"free_{name}", "free_baseline")


@arms("part-2", "figure-11")
def features_of_scorers(run: Run) -> None:
    """What a plain reward model and one with SimCSE make of the test answers."""
    add_scorer(run, "baseline")
    _contrastive_scorer(run, "simcse_pairs")
    for name in ("scorer_baseline", "scorer_simcse_pairs"):
        run[f"features_{name}"] = run.submit(
            FEATURES,
            FeaturesConfig(),
            scorer=run[name],
            preferences=run["preferences"],
            label=f"features, {name}",
        )


@arms("part-2", "figure-12", "figure-13")
def contrastive_policies(run: Run) -> None:
    """PPO without KL penalty on contrastive reward models."""
    add_scorer(run, "baseline")
    _free_policy(run, "baseline")
    for name in CONTRASTIVE:
        _contrastive_scorer(run, name)
        _free_policy(run, name)


def _contrastive_scorer(run: Run, name: str) -> None:
    train = with_changes(run.config.reward_model.train, {"dropout": DROPOUT})
    contrastive = ContrastiveConfig.model_validate(CONTRASTIVE[name].changes)
    add_scorer(run, name, train=train, contrastive=contrastive)


@arms("part-2", "table-2", "table-3", "figure-15", "figure-16", "figure-17")
def rounds(run: Run) -> None:
    """Every round there may be, and vanilla PPO beside them."""
    if "eval_vanilla" in run.roles:
        return
    config = run.config
    every = with_changes(config.rounds, {"max_rounds": NUM_ROUNDS, "promote": "always"})
    changed = with_changes(config, {"arms": ("vanilla", "full"), "rounds": every})
    whole = replace(run, config=changed)  # adds to the roles of `run`
    add_strength(whole)
    train_scorers(whole)
    train_policies(whole)
    judge_policies(whole)
    improve_in_rounds(whole)
    for number in range(1, NUM_ROUNDS + 1):
        name = "full" if number == 1 else f"round_{number}"
        add_comparison(run, f"vanilla_versus_{name}", name, "vanilla")
