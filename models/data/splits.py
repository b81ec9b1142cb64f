"""Splits by prompt or by category, never by row, and the check that nothing leaks across them.

Answers to one prompt are not independent: a model that saw one pair of a prompt in training is
not tested by another. Prompts are compared after `normalise_prompt`, so that a prompt in other
case or spacing stays on its side. HH-RLHF also cuts one dialogue at several turns, and the
longer prompt then quotes an answer of the shorter one's pair (6 % of the pairs of the copies
this was tried on): dialogues with the same first turn stay together too.

`plant_flips` flips labels on purpose, to measure how well an audit finds them.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal, get_args

from trimtab.models.data.prompts import first_turn, normalise_prompt
from trimtab.models.data.records import PreferencePair, Votes


def plant_flips(
    pairs: Sequence[PreferencePair], share: float, rng: random.Random
) -> list[PreferencePair]:
    """The pairs, of which round(share * clear ones) clear ones are swapped."""
    clear = [index for index, pair in enumerate(pairs) if is_clear(pair)]
    flipped = set(rng.sample(clear, round(share * len(clear))))
    return [pair.swapped() if index in flipped else pair for index, pair in enumerate(pairs)]


def is_clear(pair: PreferencePair) -> bool:
    """Whether all votes agree, for whichever answer; a pair without votes counts as clear."""
    votes = pair.votes
    return votes is None or (votes.equal == 0 and 0 in (votes.chosen, votes.rejected))


def truth_of(before: PreferencePair, after: PreferencePair, split: str) -> dict[str, Any]:
    """The truth about a pair whose label may have been flipped, for evaluation only.

    gold_*: each answer's share of people's votes; without votes 1 for the answer labelled better.
    """
    is_wrong = before.chosen != after.chosen
    votes = after.votes or (Votes(0, 1, 0) if is_wrong else Votes(1, 0, 0))
    total = votes.chosen + votes.rejected + votes.equal
    return {
        "id": after.id,
        "kind": "flipped" if is_wrong else "clear" if is_clear(before) else "ambiguous",
        "is_wrong": is_wrong,
        "gold_chosen": votes.chosen / total,
        "gold_rejected": votes.rejected / total,
        "category": after.category,
        "split": split,
    }


SplitBy = Literal["prompt", "category"]
NUM_NAMED: Final = 5


class SplitError(ValueError):
    """Pairs that cannot be split as configured."""


class LeakageError(ValueError):
    """A prompt that occurs in more than one split."""


def split_pairs(
    pairs: Sequence[PreferencePair],
    fractions: Mapping[str, float],
    *,
    seed: int,
    split_by: SplitBy = "prompt",
) -> dict[str, list[PreferencePair]]:
    """Split pairs into parts with the given names, for example {"train": 0.9, "test": 0.1}.

    By prompt: a prompt's side depends on the seed and a hash of its first turn alone, so it stays
    when pairs are added; sizes are right on average. By category: whole categories in an order
    drawn from the seed, each to the part that lacks most pairs. Within a part the order is that
    of `pairs`.
    A part of fraction 0 gets none. Raises SplitError (also where another part would be empty) and
    LeakageError.
    """
    _check_fractions(fractions)
    parts: dict[str, list[PreferencePair]] = {name: [] for name in fractions}
    fractions = {name: fraction for name, fraction in fractions.items() if fraction > 0}
    if split_by == "prompt":
        sides = [_side_of(first_turn(pair.prompt), fractions, seed) for pair in pairs]
    elif split_by == "category":
        without = [pair.id for pair in pairs if pair.category is None]
        if without:
            raise SplitError(
                f"split by category: found {len(without)} pairs without one, such as "
                f"{without[:NUM_NAMED]}; give their source a category, or split by prompt"
            )
        categories = [str(pair.category) for pair in pairs]
        by_category = _sides_of_categories(Counter(categories), fractions, seed)
        sides = [by_category[category] for category in categories]
    else:
        raise SplitError(f"split_by: found {split_by!r}, allowed: {get_args(SplitBy)}")
    for side, pair in zip(sides, pairs, strict=True):
        parts[side].append(pair)
    empty = [name for name in fractions if not parts[name]]
    if empty:
        by_prompt = split_by == "prompt"
        keys = {first_turn(pair.prompt) if by_prompt else pair.category for pair in pairs}
        raise SplitError(
            f"split by {split_by}: nothing falls to {empty} ({len(pairs)} pairs, {len(keys)} "
            f"different keys, fractions {dict(fractions)}); give more data, a larger fraction, "
            "or another seed"
        )
    check_leakage(parts)
    return parts


def check_leakage(splits: Mapping[str, Iterable[PreferencePair]]) -> None:
    """Raise LeakageError, naming prompts, splits and pairs, if two splits share a prompt."""
    first: dict[bytes, tuple[str, str]] = {}  # by digest, as texts would fill the memory
    leaks: dict[bytes, str] = {}
    for name, pairs in splits.items():
        for pair in pairs:
            prompt = hashlib.sha256(normalise_prompt(pair.prompt).encode()).digest()
            other, other_id = first.setdefault(prompt, (name, pair.id))
            if other != name and prompt not in leaks:
                where = f"in {other} (pair {other_id}) and in {name} (pair {pair.id})"
                leaks[prompt] = f"{pair.prompt[-200:]!r} {where}"
    if leaks:
        listed = "\n".join(f"  {leak}" for leak in list(leaks.values())[:NUM_NAMED])
        raise LeakageError(
            f"found {len(leaks)} prompts in more than one split, allowed: none\n{listed}\n"
            "What to do: split by prompt, or remove these pairs from one of the splits"
        )


def _check_fractions(fractions: Mapping[str, float]) -> None:
    is_valid = all(math.isfinite(f) and f >= 0 for f in fractions.values())
    if not fractions or not is_valid or not math.isclose(sum(fractions.values()), 1.0):
        allowed = "named fractions of at least 0 with sum 1"
        raise SplitError(f"fractions: found {dict(fractions)}, allowed: {allowed}")


def _hash_to_unit(key: str, seed: int) -> float:
    """Return a number in [0, 1) that depends on key and seed only, on any machine."""
    digest = hashlib.sha256(f"{seed}:{key}".encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64


def _side_of(key: str, fractions: Mapping[str, float], seed: int) -> str:
    place, upper = _hash_to_unit(key, seed), 0.0
    for name, fraction in fractions.items():
        upper += fraction
        if place < upper:
            return name
    return name  # rounding: the sum of the fractions may fall short of 1 by a hair


def _sides_of_categories(
    sizes: Mapping[str, int], fractions: Mapping[str, float], seed: int
) -> dict[str, str]:
    """Give whole categories to parts; sizes: pairs a category."""
    lacking = {name: fraction * sum(sizes.values()) for name, fraction in fractions.items()}
    sides: dict[str, str] = {}
    for category in sorted(sizes, key=lambda key: _hash_to_unit(key, seed)):
        side = max(lacking, key=lambda name: lacking[name])
        sides[category] = side
        lacking[side] -= sizes[category]
    return sides
