"""What was measured: a value with its 95 % interval, of one run or over seeds. Loads no torch."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Literal

Standing = Literal["better", "worse", "not clear"]


@dataclass(frozen=True)
class Interval:
    """A value with its 95 % interval."""

    value: float
    low: float
    high: float

    @property
    def standing(self) -> Standing:
        """Of a difference: better or worse where the whole interval is above or below 0."""
        if self.low > 0:
            return "better"
        return "worse" if self.high < 0 else "not clear"

    def __str__(self) -> str:
        return self.text(".3f")

    def text(self, form: str, scale: float = 1, unit: str = "") -> str:
        """value, unit and [low, high], each times `scale` and as the format says."""
        value, low, high = (
            f"{scale * number:{form}}" for number in (self.value, self.low, self.high)
        )
        return f"{value}{unit} [{low}, {high}]"


def flatten(
    prefix: str = "", /, **numbers: float | str | Interval | None
) -> dict[str, float | str]:
    """Numbers as a summary holds them, by prefix_name: of an interval its value; no None."""
    return {
        f"{prefix}_{name}" if prefix else name: n.value if isinstance(n, Interval) else n
        for name, n in numbers.items()
        if n is not None
    }


def with_ends(name: str, interval: Interval) -> dict[str, float | str]:
    """An interval as a summary holds it: its value and both ends."""
    return {name: interval.value, f"{name}_low": interval.low, f"{name}_high": interval.high}


@dataclass(frozen=True)
class Estimate(Interval):
    """The value of one run, measured on `count` examples."""

    count: int


@dataclass(frozen=True)
class Spread(Interval):
    """The mean over seeds, its interval over prompts, and the value of each seed."""

    by_seed: list[float]

    @property
    def std(self) -> float:
        """Standard deviation over seeds (divided by seeds - 1); 0 of one seed."""
        return statistics.stdev(self.by_seed) if len(self.by_seed) > 1 else 0.0

    @property
    def standing(self) -> Standing:
        """That of the interval, where every seed is on the same side of 0."""
        standing = super().standing
        sign = 1 if standing == "better" else -1
        agree = all(sign * value > 0 for value in self.by_seed)
        return standing if agree else "not clear"
