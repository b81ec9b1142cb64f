"""The world's prompt sets: how many prompts each holds, and of which families.

Imports no torch, as plans do not.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

from trimtab.models.config.data import WorldConfig

T = TypeVar("T")

# As many of each of the eight expert families in every set, in multiples of 8.
NUM_FORGET = 160
# Each is demonstrated several times over: that is what SFT is to be expert on.
MAX_EXPERT = 480
EXPERT_REPEATS = 4
# Demonstrated expert prompts that are compared, too. None is a prompt of PPO, unless
# num_policy_experts asks for it: the forget set is what a policy is not trained on [AM 3.2].
EXPERT_COMPARED = 320
# Expert prompts on which promotion is judged, so that forgetting counts against a policy.
EXPERT_JUDGED = 64
# Prompts of the held-out family on which a policy may adapt to it without labels.
HELD_OUT_SHOWN = 500


class FamilySizes(NamedTuple):
    """Numbers of prompts drawn from the main, expert and held-out families, one for each use."""

    main: tuple[int, int, int, int, int]
    expert: tuple[int, int, int, int]
    held_out: tuple[int, int, int]


def family_sizes(config: WorldConfig) -> FamilySizes:
    """Main: demonstrations, pairs, policy prompts, test, validation. Expert: forget set,
    demonstrations PPO shares, others, validation. Held out: test, demonstrations, adaptation."""
    num_demos, num_eval = config.num_demonstrations, config.num_eval_prompts
    num_experts = min(num_demos // 10, MAX_EXPERT)
    num_shared = min(config.num_policy_experts, num_experts)
    return FamilySizes(
        (num_demos, config.num_pair_prompts, config.num_policy_prompts, num_eval, num_eval),
        (NUM_FORGET, num_shared, num_experts - num_shared, EXPERT_JUDGED),
        (num_eval, 3 * num_eval, HELD_OUT_SHOWN),
    )


def prompt_sets(
    sizes: FamilySizes, main: Sequence[T], expert: Sequence[T], held_out: Sequence[T]
) -> dict[str, list[T]]:
    """The prompts of each set by name, from those of each family, of which there are `sizes`.

    No evaluation set shares a prompt with anything else. Of the main families, demonstrations,
    pairs and PPO have prompts of their own; expert prompts of pairs and PPO are demonstrated.
    """
    demos, pairs, policy, eval_main, validation = _cut(main, sizes.main)
    forget, shared, others, judged = _cut(expert, sizes.expert)
    eval_held_out, held_out_demos, adapted = _cut(held_out, sizes.held_out)
    return {
        "demonstrations": demos + (shared + others) * EXPERT_REPEATS + held_out_demos,
        "pair_prompts": pairs + (shared + others)[:EXPERT_COMPARED],
        "policy_prompts": policy + shared,
        "held_out_prompts": adapted,
        "eval/main": eval_main,
        "eval/validation": validation + judged,
        "eval/forget": forget,
        "eval/held_out": eval_held_out,
    }


def _cut(prompts: Sequence[T], sizes: Sequence[int]) -> list[list[T]]:
    """Consecutive parts of the given sizes."""
    rest = iter(prompts)
    return [list(itertools.islice(rest, size)) for size in sizes]
