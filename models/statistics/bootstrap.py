"""The bootstrap: examples drawn again, and intervals from what the draws show.

[BOOT] Efron and Tibshirani, An Introduction to the Bootstrap, 1993.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from trimtab.models.functional.checks import require_floating, require_shape
from trimtab.models.statistics.intervals import net_interval, wilson_interval
from trimtab.models.statistics.measured import Spread

# Resampled values held at once: 32 MiB of float64.
_CHUNK_ELEMENTS = 4_000_000


def redraw(values: Tensor, generator: torch.Generator) -> Tensor:
    """As many of values (N,), drawn with replacement."""
    return values[torch.randint(len(values), (len(values),), generator=generator)]


def percentile_ends(resampled: Tensor, tail: float = 0.025) -> Tensor:
    """(2, ...), the ends of resamples (R, ...) without a share of `tail` each [BOOT chapter 13].

    Resamples that are NaN, as a statistic may not be defined of them, are left out.
    """
    ends = torch.tensor([tail, 1 - tail], dtype=torch.float64, device=resampled.device)
    return resampled.nanquantile(ends, dim=0)


def bootstrap_interval(
    values: Tensor,
    *,
    num_resamples: int,
    seed: int,
    level: float = 0.95,
) -> tuple[float, float]:
    """Percentile bootstrap interval of the mean [BOOT chapter 13].

    Resamples N values with replacement; the interval holds the central `level` of the resampled
    means. For a win rate pass 0 and 1; for paired systems pass the differences by prompt.

    values: (N,), any unit. num_resamples: at least 1. seed: determines the resamples; the global
    random state is neither read nor advanced. level: in (0, 1).
    Returns (low, high) in the values' unit.
    Raises ShapeError for other shapes, ValueError for an option out of range or a value not
    finite.
    """
    require_shape("bootstrap_interval", 1, values=values)
    require_floating("bootstrap_interval", values=values)
    if num_resamples < 1:
        raise ValueError(
            f"bootstrap_interval: num_resamples must be at least 1, found {num_resamples}"
        )
    if not 0 < level < 1:
        raise ValueError(f"bootstrap_interval: level must be in (0, 1), found {level}")
    values = values.detach().double().cpu()
    if not bool(values.isfinite().all()):
        raise ValueError("bootstrap_interval: values hold NaN or infinity; judge again")
    generator = torch.Generator().manual_seed(seed)
    count = len(values)
    rows_at_once = max(1, _CHUNK_ELEMENTS // count)
    means = []
    for start in range(0, num_resamples, rows_at_once):
        rows = min(rows_at_once, num_resamples - start)
        drawn = torch.randint(count, (rows, count), generator=generator, device="cpu")
        means.append(values[drawn].mean(1))
    low, high = percentile_ends(torch.cat(means), (1 - level) / 2).tolist()
    return low, high


class Bootstrap:
    """Intervals over the prompts of each seed.

    Means of scores and other figures have percentile intervals of the same resamples, which draw
    the prompts of each seed. Shares of prompts, and differences of such shares, have the score
    intervals of `trimtab.models.statistics.intervals`, which do not collapse where all prompts are
    alike, of `num_prompts`.
    """

    def __init__(self, seeds: Tensor, num_resamples: int, seed: int) -> None:
        """seeds: (N,) long, which seed's prompt each is. Every seed there is counts alike."""
        self.of_seed = [torch.nonzero(seeds == which)[:, 0] for which in seeds.unique()]
        generator = torch.Generator().manual_seed(seed)
        # Seeds count alike, so that the mean of their shares varies as a share of so many would.
        sizes = [len(places) for places in self.of_seed]
        self.num_prompts = len(sizes) ** 2 / sum(1 / size for size in sizes)
        self.counts = torch.zeros(num_resamples, len(seeds), dtype=torch.float64)
        self.share = torch.zeros(len(seeds), dtype=torch.float64)
        for places, size in zip(self.of_seed, sizes, strict=True):
            self.share[places] = 1 / (size * len(self.of_seed))
            drawn = places[torch.randint(size, (num_resamples, size), generator=generator)]
            self.counts.scatter_add_(1, drawn, torch.ones(drawn.shape, dtype=torch.float64))

    def shares(self, hits: Tensor) -> list[Spread]:
        """The mean over seeds of the share that is true in each row of hits (K, N), bool."""
        seeds = self._group_by_seed(hits)
        shares = seeds.mean(1).clamp(0, 1).tolist()
        return [
            Spread(share, *wilson_interval(share, self.num_prompts), by_seed)
            for share, by_seed in zip(shares, seeds.tolist(), strict=True)
        ]

    def nets(self, outcomes: Tensor) -> list[Spread]:
        """Of each row of outcomes (K, N), 1, 0 or -1, the share of 1 less that of -1."""
        wins, losses = (self._group_by_seed(outcomes == sign) for sign in (1, -1))
        rows = zip(
            wins.mean(1).tolist(), losses.mean(1).tolist(), (wins - losses).tolist(), strict=True
        )
        return [
            Spread(win - lose, *net_interval(win, lose, self.num_prompts), by_seed)
            for win, lose, by_seed in rows
        ]

    def _group_by_seed(self, values: Tensor) -> Tensor:
        """(K, seeds), the mean of each seed's prompts."""
        return torch.stack([values[:, places].double().mean(1) for places in self.of_seed], 1)

    def means(self, values: Tensor) -> list[Spread]:
        """The mean over seeds of each row of values (K, N), with percentile intervals."""
        shared = values.double() * self.share
        resampled = shared @ self.counts.T
        low, high = percentile_ends(resampled.T)
        seeds = self._group_by_seed(values)
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
        low, high = percentile_ends(torch.tensor(resampled, dtype=torch.float64)).tolist()
        return Spread(statistic(everything), low, high, [*map(statistic, self.of_seed)])
