"""The parts of the check, a row each. Loads no torch: the command line names them too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Part:
    """A row: what it measures, by which function (`module:function`), and for how long.

    least: minutes without which it is not begun. most: its deadline. Both are estimates for a card
    of 80 GB. needs: parts without which it has nothing to work on. options: of the function.
    """

    name: str
    function: str
    least: float
    most: float
    needs: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)


_CORRECTNESS = "trimtab.models.gpu_check.correctness"
_SPEED = "trimtab.models.gpu_check.speed"
_LARGE, _COMPILED = {"large": True}, {"compiled": True}
PARTS = (
    Part("card", f"{_SPEED}:card", 0.2, 0.7),
    Part("material", f"{_SPEED}:material", 0.2, 1.0),
    Part("stages", f"{_CORRECTNESS}:stages_on_all_devices", 0.5, 2.5),
    Part("reward-model", f"{_SPEED}:reward_model", 0.3, 1.2, ("card", "material")),
    Part("reward-model-trl", f"{_SPEED}:reward_model_against_trl", 0.7, 2.0, ("material",)),
    Part("ppo", f"{_SPEED}:ppo", 0.5, 1.5, ("material",)),
    Part("ppo-trl", f"{_SPEED}:ppo_of_trl", 0.6, 1.5, ("ppo",)),
    Part("sampling", f"{_SPEED}:sampling", 0.5, 1.2, ("material",)),
    Part("reward-model-1b", f"{_SPEED}:reward_model", 0.4, 0.8, ("card", "material"), _LARGE),
    Part("sft-dpo-meta-rm", f"{_SPEED}:other_stages", 0.5, 1.2, ("material",)),
    Part("log-probs", f"{_SPEED}:log_probs", 0.2, 0.5),
    Part("zero", f"{_CORRECTNESS}:zero", 0.4, 1.0, ("stages",)),
    Part("resume", f"{_CORRECTNESS}:stop_and_resume", 0.3, 0.8, ("stages",)),
    Part("reward-model-compiled", f"{_SPEED}:reward_model", 0.5, 1.5, ("reward-model",), _COMPILED),
    Part("reward-model-trl-again", f"{_SPEED}:reward_model_against_trl", 0.7, 2.0, ("material",)),
)


def with_needs(parts: Sequence[Part], names: Sequence[str]) -> list[Part]:
    """The parts of these names, those that they need and the first, in order; without names all."""
    by_name = {part.name: part for part in parts}
    wanted, left = {parts[0].name}, list(names or by_name)
    while left:
        name = left.pop()
        wanted.add(name)
        left += by_name[name].needs
    return [part for part in parts if part.name in wanted]
