"""Splits by prompt or by category, never by row, and the check that nothing leaks across them.

Answers to one prompt are not independent: a model that saw one pair of a prompt in training is
not tested by another. Prompts are compared after `normalise_prompt`, so that a prompt in other
case or spacing stays on its side. HH-RLHF also cuts one dialogue at several turns, and the
longer prompt then quotes an answer of the shorter one's pair (6 % of the pairs of the copies
this was tried on): dialogues that open alike stay together too.
"""

import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal, get_args

from models.prompts import normalise_prompt, opening_of
from models.records import PreferencePair

SplitBy = Literal["prompt", "category"]
NUM_NAMED: Final = 5


class SplitError(ValueError):
    """Pairs that cannot be split as asked."""


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
    Raises SplitError (also where a part would be empty) and LeakageError.
    """
    _check_fractions(fractions)
    if split_by == "prompt":
        keys = [opening_of(pair.prompt) for pair in pairs]
        sides = {key: _side_of(key, fractions, seed) for key in set(keys)}
    elif split_by == "category":
        without = [pair.id for pair in pairs if pair.category is None]
        if without:
            raise SplitError(
                f"split by category: found {len(without)} pairs without one, such as "
                f"{without[:NUM_NAMED]}; give their source a category, or split by prompt"
            )
        keys = [str(pair.category) for pair in pairs]
        sides = _sides_of_categories(Counter(keys), fractions, seed)
    else:
        raise SplitError(f"split_by: found {split_by!r}, allowed: {get_args(SplitBy)}")
    parts: dict[str, list[PreferencePair]] = {name: [] for name in fractions}
    for key, pair in zip(keys, pairs, strict=True):
        parts[sides[key]].append(pair)
    empty = [name for name, part in parts.items() if not part]
    if empty:
        raise SplitError(
            f"split by {split_by}: nothing falls to {empty} ({len(pairs)} pairs, {len(sides)} "
            f"different keys, fractions {dict(fractions)}); give more data, a larger fraction, "
            "or another seed"
        )
    check_leakage(parts)
    return parts


def check_leakage(splits: Mapping[str, Iterable[PreferencePair]]) -> None:
    """Raise LeakageError, naming prompts, splits and pairs, if two splits share a prompt."""
    first: dict[str, tuple[str, str]] = {}
    leaks: dict[str, str] = {}
    for name, pairs in splits.items():
        for pair in pairs:
            prompt = normalise_prompt(pair.prompt)
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
    is_valid = all(math.isfinite(f) and f > 0 for f in fractions.values())
    if not fractions or not is_valid or not math.isclose(sum(fractions.values()), 1.0):
        allowed = "named fractions above 0 with sum 1"
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
