"""What a reward from outside may return: a finite number for each answer."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Real
from typing import Any

# Of float32, in which scores are.
LARGEST = (2 - 2**-23) * 2.0**127


class RewardError(ValueError):
    """A reward that cannot be loaded, or that returns something else than scores."""


def checked_scores(label: str, values: Any, count: int) -> list[float]:
    """The scores of `count` answers, as a list, tuple, tensor or array has them.

    label: what the reward is called. Raises RewardError for another number of them, and for any
    that is no finite number of float32.
    """
    values = values.tolist() if hasattr(values, "tolist") else values
    if not isinstance(values, Sequence) or isinstance(values, str):
        raise RewardError(
            f"{label}: found {type(values).__name__}; allowed: a list of {count} numbers"
        )
    if len(values) != count:
        raise RewardError(
            f"{label}: found {len(values)} scores of {count} answers; allowed: {count}"
        )
    for place, value in enumerate(values):
        is_number = isinstance(value, Real) and not isinstance(value, bool)
        if not is_number or not abs(value) <= LARGEST:  # which NaN is not, either
            shown = repr(value) if isinstance(value, Real | None) else type(value).__name__
            raise RewardError(
                f"{label}: found {shown} as the score of answer {place + 1} of {count}; allowed: a "
                "finite number"
            )
    return [float(value) for value in values]
