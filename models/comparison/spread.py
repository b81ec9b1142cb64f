"""Figures over seeds: a mean with an interval over prompts, and what each seed has.

[BOOT] Efron and Tibshirani, An Introduction to the Bootstrap, 1993.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Standing = Literal["better", "worse", "not clear"]


@dataclass(frozen=True)
class Spread:
    """A figure over seeds: their mean, its 95 % interval over prompts, and each seed's own."""

    value: float
    low: float
    high: float
    by_seed: list[float]

    @property
    def std(self) -> float:
        """Standard deviation over seeds (divided by seeds - 1); 0 of one seed."""
        return statistics.stdev(self.by_seed) if len(self.by_seed) > 1 else 0.0

    @property
    def standing(self) -> Standing:
        """Clearly above or below 0: the whole interval is, and so is every seed."""
        if self.low > 0 and min(self.by_seed) > 0:
            return "better"
        if self.high < 0 and max(self.by_seed) < 0:
            return "worse"
        return "not clear"


class Bootstrap:
    """Resamples of the prompts of each seed [BOOT chapter 13], the same for every figure."""

    def __init__(self, seeds: Tensor, num_resamples: int, seed: int) -> None:
        """seeds: (N,) long, which seed's prompt each is. Every seed there is counts alike."""
        self.of_seed = [torch.nonzero(seeds == which)[:, 0] for which in seeds.unique()]
        generator = torch.Generator().manual_seed(seed)
        self.counts = torch.zeros(num_resamples, len(seeds), dtype=torch.float64)
        self.share = torch.zeros(len(seeds), dtype=torch.float64)
        for own in self.of_seed:
            self.share[own] = 1 / (len(own) * len(self.of_seed))
            drawn = torch.randint(len(own), (num_resamples, len(own)), generator=generator)
            self.counts.scatter_add_(1, own[drawn], torch.ones(drawn.shape, dtype=torch.float64))

    def means(self, values: Tensor) -> list[Spread]:
        """The mean over seeds of each row of values (K, N), with percentile intervals."""
        shared = values.double() * self.share
        resampled = shared @ self.counts.T
        low, high = resampled.quantile(torch.tensor([0.025, 0.975], dtype=torch.float64), dim=1)
        seeds = torch.stack([values[:, own].double().mean(1) for own in self.of_seed], 1)
        columns = zip(
            shared.sum(1).tolist(), low.tolist(), high.tolist(), seeds.tolist(), strict=True
        )
        return [Spread(*row) for row in columns]

    def spread(self, statistic: Callable[[Tensor], float], num_resamples: int) -> Spread:
        """A statistic of places (n,) among the prompts: of all of them, and of each seed's.

        The value is that of all seeds' prompts together, the interval the percentile one of the
        first `num_resamples`.
        """
        everything = torch.arange(len(self.share))
        resampled = [
            statistic(everything.repeat_interleave(row.long()))
            for row in self.counts[:num_resamples]
        ]
        ends = torch.tensor([0.025, 0.975], dtype=torch.float64)
        low, high = torch.tensor(resampled, dtype=torch.float64).quantile(ends).tolist()
        return Spread(statistic(everything), low, high, [statistic(own) for own in self.of_seed])
