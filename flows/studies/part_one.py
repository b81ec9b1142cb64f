"""The arms of Part I: vanilla PPO and, one by one, what is done about it."""

from __future__ import annotations

from collections.abc import Mapping

from trimtab.flows.config import vanilla
from trimtab.flows.run import Run
from trimtab.flows.studies.registry import arms
from trimtab.flows.studies.steps import add_policy, add_scorer, with_changes
from trimtab.models.specs import SFT
from trimtab.models.studies.variants import CONSTRAINTS, SCORES, STARTS, Variant
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
