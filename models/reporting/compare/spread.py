"""Figures over seeds: a mean with an interval over prompts, and what each seed has.

[BOOT] Efron and Tibshirani, An Introduction to the Bootstrap, 1993.

Shares of prompts, and differences of such shares, have the score intervals of
`trimtab.models.statistics.intervals`, which do not collapse where all prompts are alike; means of scores
and other figures have the bootstrap's, which draws the prompts of each seed.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from trimtab.models.statistics.intervals import net_interval, wilson_interval

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
    """Intervals over the prompts of each seed: resamples [BOOT chapter 13], the same for every
    figure, and for shares the number of prompts that these are of.
    """

    def __init__(self, seeds: Tensor, num_resamples: int, seed: int) -> None:
        """seeds: (N,) long, which seed's prompt each is. Every seed there is counts alike."""
        self.of_seed = [torch.nonzero(seeds == which)[:, 0] for which in seeds.unique()]
        generator = torch.Generator().manual_seed(seed)
        # Seeds count alike, so that the mean of their shares varies as a share of so many would.
        sizes = [len(own) for own in self.of_seed]
        self.num_prompts = len(sizes) ** 2 / sum(1 / size for size in sizes)
        self.counts = torch.zeros(num_resamples, len(seeds), dtype=torch.float64)
        self.share = torch.zeros(len(seeds), dtype=torch.float64)
        for own in self.of_seed:
            self.share[own] = 1 / (len(own) * len(self.of_seed))
            drawn = torch.randint(len(own), (num_resamples, len(own)), generator=generator)
            self.counts.scatter_add_(1, own[drawn], torch.ones(drawn.shape, dtype=torch.float64))

    def shares(self, hits: Tensor) -> list[Spread]:
        """The mean over seeds of the share that is true in each row of hits (K, N), bool."""
        seeds = self._by_seed(hits)
        shares = seeds.mean(1).clamp(0, 1).tolist()
        return [
            Spread(share, *wilson_interval(share, self.num_prompts), own)
            for share, own in zip(shares, seeds.tolist(), strict=True)
        ]

    def nets(self, outcomes: Tensor) -> list[Spread]:
        """Of each row of outcomes (K, N), 1, 0 or -1, the share of 1 less that of -1."""
        wins, losses = (self._by_seed(outcomes == sign) for sign in (1, -1))
        rows = zip(
            wins.mean(1).tolist(), losses.mean(1).tolist(), (wins - losses).tolist(), strict=True
        )
        return [
            Spread(win - lose, *net_interval(win, lose, self.num_prompts), own)
            for win, lose, own in rows
        ]

    def _by_seed(self, values: Tensor) -> Tensor:
        """(K, seeds), the mean of each seed's prompts."""
        return torch.stack([values[:, own].double().mean(1) for own in self.of_seed], 1)

    def means(self, values: Tensor) -> list[Spread]:
        """The mean over seeds of each row of values (K, N), with percentile intervals."""
        shared = values.double() * self.share
        resampled = shared @ self.counts.T
        low, high = resampled.quantile(torch.tensor([0.025, 0.975], dtype=torch.float64), dim=1)
        seeds = self._by_seed(values)
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
