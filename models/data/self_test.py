"""The self-test of a label audit: whose labels are turned round on purpose, in a copy."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
Row = dict[str, Any]
FEWEST_PLANTED = 10


def planted(rows: Sequence[Row], share: float) -> Array:
    """(N,) bool: the pairs whose labels are turned round on purpose, this share of them.

    At least FEWEST_PLANTED, unless that is more than a fifth. Drawn by the two answers, so that all
    members of a vote turn the same ones, and copies of a pair are turned together.
    """
    if not share:
        return np.zeros(len(rows), bool)
    twins = answer_pairs_of(rows)
    texts = dict(zip(twins.tolist(), rows, strict=True))
    draws = sorted(
        texts,
        key=lambda twin: hashlib.sha256(
            "\0".join(sorted((texts[twin]["chosen"], texts[twin]["rejected"]))).encode()
        ).digest(),
    )
    count = len(draws)
    taken = max(round(share * count), min(FEWEST_PLANTED, count // 5))
    found: Array = np.isin(twins, draws[:taken])
    return found


def answer_pairs_of(rows: Sequence[Row], index: dict[tuple[str, ...], int] | None = None) -> Array:
    """(N,) a number from 0 for each two answers, whichever stands as the better one.

    index: the numbers given so far, to which new ones are added.
    """
    index = {} if index is None else index
    whose = [tuple(sorted((row["chosen"], row["rejected"]))) for row in rows]
    return np.array([index.setdefault(pair, len(index)) for pair in whose], int)
