"""Labels turned round on purpose in people's pairs, to measure how well an audit finds them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from models.records import PreferencePair, Votes


def plant_flips(
    pairs: Sequence[PreferencePair], share: float, rng: random.Random
) -> list[PreferencePair]:
    """The pairs, of which round(share * clear ones) clear ones have answers and votes exchanged."""
    clear = [index for index, pair in enumerate(pairs) if is_clear(pair)]
    turned = set(rng.sample(clear, round(share * len(clear))))
    return [exchanged(pair) if index in turned else pair for index, pair in enumerate(pairs)]


def is_clear(pair: PreferencePair) -> bool:
    """Whether all votes agree, for whichever answer; a pair without votes counts as clear."""
    votes = pair.votes
    return votes is None or (votes.equal == 0 and 0 in (votes.chosen, votes.rejected))


def exchanged(pair: PreferencePair) -> PreferencePair:
    """The pair with the other label."""
    votes = pair.votes
    turned = None if votes is None else Votes(votes.rejected, votes.chosen, votes.equal)
    return replace(pair, chosen=pair.rejected, rejected=pair.chosen, votes=turned)


def truth_of(before: PreferencePair, after: PreferencePair, split: str) -> dict[str, Any]:
    """What is known of a pair that may have been turned: the record that only evaluation reads.

    gold_*: the share of people's votes, as far as there are any; without, who was labelled better.
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
