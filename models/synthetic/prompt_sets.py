"""The world's prompt sets: how many prompts each holds, and of which families.

Imports no torch, as plans do not.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

from trimtab.models.config.data import WorldConfig

T = TypeVar("T")

NUM_FORGET = 150
# The expert families hold some 520 distinct prompts. Each is demonstrated several times over: that
# is what SFT is to be expert on.
MAX_EXPERT = 300
EXPERT_REPEATS = 4
# Expert prompts among those that are compared and that PPO trains on: few, as in real use, but
# enough for rehearsal to find them.
EXPERT_SHOWN = 100
# Expert prompts on which promotion is judged, so that forgetting counts against a policy.
EXPERT_JUDGED = 60


class FamilySizes(NamedTuple):
    """Numbers of prompts drawn from the main, expert and held-out families, one for each use."""

    main: tuple[int, int, int, int, int]
    expert: tuple[int, int, int]
    held_out: tuple[int, int]


def family_sizes(config: WorldConfig) -> FamilySizes:
    """Main: demonstrations, pairs, policy prompts, test, validation. Expert: forget set,
    demonstrations, validation. Held out: test, demonstrations.
    """
    num_eval = config.num_eval_prompts
    return FamilySizes(
        (
            config.num_demonstrations,
            config.num_pair_prompts,
            config.num_policy_prompts,
            num_eval,
            num_eval,
        ),
        (NUM_FORGET, min(config.num_demonstrations // 10, MAX_EXPERT), EXPERT_JUDGED),
        (num_eval, 3 * num_eval),
    )


def prompt_sets(
    sizes: FamilySizes, main: Sequence[T], expert: Sequence[T], held_out: Sequence[T]
) -> dict[str, list[T]]:
    """The prompts of each set by name, from those of each family, of which there are `sizes`.

    No evaluation set shares a prompt with anything else. Of the main families, demonstrations,
    pairs and PPO have prompts of their own; the expert prompts they show are demonstrated too.
    """
    demos, pairs, policy, eval_main, validation = _cut(main, sizes.main)
    forget, expert_demos, judged = _cut(expert, sizes.expert)
    eval_held_out, held_out_demos = _cut(held_out, sizes.held_out)
    shown = expert_demos[:EXPERT_SHOWN]
    return {
        "demonstrations": demos + expert_demos * EXPERT_REPEATS + held_out_demos,
        "pair_prompts": pairs + shown,
        "policy_prompts": policy + shown,
        "eval/main": eval_main,
        "eval/validation": validation + judged,
        "eval/forget": forget,
        "eval/held_out": eval_held_out,
    }


def _cut(prompts: Sequence[T], sizes: Sequence[int]) -> list[list[T]]:
    """Consecutive parts of the given sizes."""
    rest = iter(prompts)
    return [list(itertools.islice(rest, size)) for size in sizes]
