"""The arms of Part II: reward models by treatment and strength, policies of them, rounds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from flows.pipeline.policies import judge_policies, train_policies
from flows.pipeline.rewards import train_scorers
from flows.pipeline.rounds import improve_in_rounds
from flows.run import Run
from flows.studies.steps import AS_GIVEN, MARGIN, audited, policy, scorer, treatment, varied, versus
from models.config.reward import ContrastiveConfig, FeaturesConfig, RelabelConfig
from models.specs import FEATURES

NUM_ROUNDS = 4
DROPOUT = 0.05  # [RM]
METHODS = ("baseline", "flip", "margin", "flip_margin", "soft_margin")


def strength(run: Run) -> None:
    """Figures 1 to 3: the vote."""
    audited(run)


def tenths(run: Run) -> None:
    """Figure 4: a reward model of each tenth of the pairs by strength."""
    for number in range(1, 11):
        scorer(run, f"tenth_{number}", _tenth(number))


def weakest(run: Run) -> None:
    """Figure 5: the two weakest tenths, as given and flipped."""
    for number in (1, 2):
        scorer(run, f"tenth_{number}", _tenth(number))
        everything = varied(_tenth(number), {"flip_fraction": number / 10})
        scorer(run, f"tenth_{number}_flipped", everything)


def strongest(run: Run) -> None:
    """Figure 6: margin and soft labels on the strongest tenth."""
    soft = {"smooth": "all", "smoothing": run.config.relabel.smoothing}
    scorer(run, "tenth_10", _tenth(10))
    scorer(run, "tenth_10_margin", varied(_tenth(10), MARGIN))
    scorer(run, "tenth_10_soft", varied(_tenth(10), soft))
    scorer(run, "tenth_10_soft_margin", varied(_tenth(10), soft | MARGIN))


def _tenth(number: int) -> RelabelConfig:
    """The pairs of a tenth by strength, weakest first."""
    keep = {"keep_from": (number - 1) / 10, "keep_to": number / 10}
    return varied(AS_GIVEN, keep)


def margins(run: Run) -> None:
    """Figure 7: a margin for all pairs."""
    for name in ("baseline", "margin"):
        scorer(run, name, treatment(run, name))


def methods_by_step(run: Run) -> None:
    """Figure 8: the five methods for several epochs, on the validation pairs by step."""
    train = varied(run.config.reward_model.train, {"num_epochs": 4})
    for name in METHODS:
        labels = treatment(run, name)
        scorer(run, f"{name}_long", labels, train=train, score_every=20)


def free_policies(run: Run) -> None:
    """Figures 9 and 10: PPO without KL penalty on the five reward models."""
    for name in METHODS:
        scorer(run, name, treatment(run, name))
        _free_policy(run, name)


def _free_policy(run: Run, name: str) -> None:
    scorer(run, "raw")
    free = varied(run.config.ppo, {"kl_coef": 0.0, "rehearsal_coef": 0.0})
    warned = varied(free.guard, {"action": "warn"})
    policy(run, f"free_{name}", varied(free, {"guard": warned}), f"scorer_{name}")
    if name != "baseline":
        versus(run, f"versus_free_{name}", f"free_{name}", "free_baseline")


_SWAV: dict[str, Any] = {"kind": "swav", "temperature": 0.1}
CONTRASTIVE: dict[str, dict[str, Any]] = {  # with the constants of [RM]
    "simcse_pairs": {"on": "pairs"},
    "simcse_differences": {"on": "differences"},
    "swav_pairs": {**_SWAV, "on": "pairs", "coef": 0.1, "num_prototypes": 50},
    "swav_differences": {**_SWAV, "on": "differences", "coef": 0.5, "num_prototypes": 20},
}


def features_of_scorers(run: Run) -> None:
    """Figure 11: what a plain reward model and one with SimCSE make of the test answers."""
    scorer(run, "baseline", treatment(run, "baseline"))
    _contrastive_scorer(run, "simcse_pairs")
    for name in ("scorer_baseline", "scorer_simcse_pairs"):
        run[f"features_{name}"] = run.submit(
            FEATURES,
            FeaturesConfig(),
            scorer=run[name],
            preferences=run["preferences"],
            label=f"features, {name}",
        )


def contrastive_policies(run: Run) -> None:
    """Figures 12 and 13: PPO without KL penalty on contrastive reward models."""
    scorer(run, "baseline", treatment(run, "baseline"))
    _free_policy(run, "baseline")
    for name in CONTRASTIVE:
        _contrastive_scorer(run, name)
        _free_policy(run, name)


def _contrastive_scorer(run: Run, name: str) -> None:
    train = varied(run.config.reward_model.train, {"dropout": DROPOUT})
    contrastive = ContrastiveConfig.model_validate(CONTRASTIVE[name])
    scorer(run, name, treatment(run, "baseline"), train=train, contrastive=contrastive)


def rounds(run: Run) -> None:
    """Tables 2 and 3, figures 15 to 17: every round there may be, and vanilla PPO beside them."""
    if "eval_vanilla" in run.roles:
        return
    config = run.config
    every = varied(config.rounds, {"max_rounds": NUM_ROUNDS, "promote": "always"})
    arms = varied(config, {"arms": ("vanilla", "full"), "rounds": every})
    whole = replace(run, config=arms)  # of the same roles
    audited(whole)
    train_scorers(whole)
    train_policies(whole)
    judge_policies(whole)
    improve_in_rounds(whole)
    for number in range(1, NUM_ROUNDS + 1):
        name = "full" if number == 1 else f"round_{number}"
        versus(run, f"vanilla_versus_{name}", name, "vanilla")
