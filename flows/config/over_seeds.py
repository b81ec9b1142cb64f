"""Runs over several seeds: a comparison's arms, a study's exhibits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import Field

from trimtab.flows.config.config import RunConfig, with_changes
from trimtab.flows.config.errors import ConfigError, unknown_name
from trimtab.flows.config.names import RunName, name_run_over_seeds
from trimtab.flows.config.overrides import (
    FIELDS,
    ExplainedChanges,
    RunChanges,
    apply_changes,
    changes_to,
)
from trimtab.flows.config.recipes import recipe_named
from trimtab.flows.config.recipes.synthetic import LARGER_SFT
from trimtab.models.config.arms import ARMS, Arm
from trimtab.models.config.base import RunSeed
from trimtab.models.config.policy import CollapseConfig
from trimtab.models.studies.registry import TITLES, Exhibit, exhibits_of

Seeds = Annotated[list[RunSeed], Field(min_length=1, max_length=1000)]
METHODS: tuple[Arm, ...] = tuple(name for name, arm in ARMS.items() if arm.compared)
SEEDS = (2, 3, 4)
# Off in a study unless it is asked for, whatever the recipe has: the exhibits are about the methods
# without these parts, or turn on the one that they are about.
_OFF_IN_STUDIES: dict[str, Any] = {
    "ppo": {
        "ptx_coef": 0.0,
        "rehearsal_weights": "uniform",
        "kl_weights": "uniform",
        "guard": {"max_kl": CollapseConfig().max_kl},
    },
    "advantage_model": {"margin_by": "constant"},
    "rounds": {"meta_rm": {"margin_by": "constant"}},
}
# Arms and seeds are given by themselves, and there are no rounds.
_FIELDS = [name for name in FIELDS if name not in ("arms", "seed", "rounds")]


class CompareChanges(ExplainedChanges, changes_to(RunConfig, _FIELDS)):  # type: ignore[misc]
    """Settings that all runs of a comparison change in their recipe."""


def configs_of_seeds(
    recipe: str,
    arms: Sequence[str],
    seeds: Sequence[int],
    changes: CompareChanges | Mapping[str, Any] | None,
) -> list[RunConfig]:
    """A configuration for each seed; ConfigError for repeated arms or seeds."""
    _require_different("arms", arms)
    _require_different("seeds", seeds)
    config = apply_changes(recipe_named(recipe), changes, CompareChanges)
    return [apply_changes(config, {"arms": list(arms), "seed": seed}) for seed in seeds]


def comparison_name(
    config: RunConfig, arms: Sequence[str], seeds: Sequence[int], name: str | None = None
) -> RunName:
    """A comparison's name: `compare-<recipe>`, then whatever is not the default."""
    chosen, usual = {"seeds": [*seeds], "arms": [*arms]}, {"seeds": SEEDS, "arms": METHODS}
    return name_run_over_seeds(config, "compare", chosen, usual, name)


def study_name(config: RunConfig, subject: str, seeds: Sequence[int]) -> RunName:
    """`study-<paper>-<exhibit>-<scale>`, then whatever is not as `study_config` has it."""
    chosen, usual, base = {"seeds": [*seeds]}, {"seeds": SEEDS}, study_config(config.recipe, {})
    return name_run_over_seeds(config, f"study-{subject}", chosen, usual, base=base)


def study_config(scale: str, changes: RunChanges | Mapping[str, Any] | None) -> RunConfig:
    """A recipe without the pre-training loss, weights by risk, bounds by pair and a narrower guard,
    changed; `default` on a larger SFT than the demo's."""
    parts = _OFF_IN_STUDIES | ({"sft": LARGER_SFT} if scale == "default" else {})
    config = apply_changes(with_changes(recipe_named(scale), parts), changes)
    if config.rewards:
        raise ConfigError(
            f"reward and held_out_rewards must be left out of a study, found "
            f"{config.rewards[0].label}: its exhibits are about scorers that the run trains"
        )
    return config


def find_exhibits(paper: str, exhibit: str, seeds: Sequence[int]) -> list[Exhibit]:
    """The exhibits of that name; ConfigError for one that no paper has, and for repeated seeds."""
    if paper not in TITLES:
        raise ConfigError(unknown_name("paper", paper, TITLES))
    exhibits = exhibits_of(paper, exhibit)
    if not exhibits:
        known = ["all", *(exhibit.name for exhibit in exhibits_of(paper, "all"))]
        raise ConfigError(unknown_name(f"exhibit of {paper}", exhibit, known))
    _require_different("seeds", seeds)
    return exhibits


def _require_different(name: str, values: Sequence[object]) -> None:
    texts = list(map(str, values))
    if len(set(texts)) < len(texts):
        raise ConfigError(f"{name} must differ, found {', '.join(texts)}")
