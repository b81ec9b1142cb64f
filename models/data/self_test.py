"""The self-test of a label audit: which labels of a copy are planted flips."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
Row = dict[str, Any]
FEWEST_PLANTED = 10
# A label of one half is a tie.
SUREST_TIE = 0.5 + 1e-6


def planted_flips(rows: Sequence[Row], share: float) -> Array:
    """(N,) bool: the pairs whose labels are to be planted flips, this share of them.

    At least FEWEST_PLANTED, unless that is more than a fifth. Drawn by the two answers, so that all
    members of a vote flip the same ones, and copies of a pair are flipped together. Where labels
    are not certain, of the surer half of them, and none that is a tie: one that may as well be
    wrong is not made wrong by flipping it.
    """
    if not share:
        return np.zeros(len(rows), bool)
    twins = answer_pairs_of(rows)
    label = np.array([row.get("label", 1.0) for row in rows])
    is_sure = label >= max(np.median(label), SUREST_TIE)
    texts = dict(zip(twins.tolist(), rows, strict=True))
    count = len(texts)
    draws = sorted(
        texts.keys() - set(twins[~is_sure].tolist()),
        key=lambda twin: hashlib.sha256(
            "\0".join(sorted((texts[twin]["chosen"], texts[twin]["rejected"]))).encode()
        ).digest(),
    )
    num_planted = max(round(share * count), min(FEWEST_PLANTED, count // 5))
    is_planted: Array = np.isin(twins, draws[:num_planted])
    return is_planted


def answer_pairs_of(rows: Sequence[Row], index: dict[tuple[str, ...], int] | None = None) -> Array:
    """(N,) a number from 0 for each two answers, whichever stands as the better one.

    index: the numbers given so far, to which new ones are added.
    """
    index = {} if index is None else index
    whose = [tuple(sorted((row["chosen"], row["rejected"]))) for row in rows]
    return np.array([index.setdefault(pair, len(index)) for pair in whose], int)
