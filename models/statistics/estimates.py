"""Numbers with 95 % intervals: Wilson's for shares, the bootstrap for all else the report states.

[BOOT] Efron and Tibshirani, An Introduction to the Bootstrap, 1993.

Shares, and differences of shares, are as `trimtab.models.statistics.intervals` has them: where
several rows are of one prompt they count as fewer. An AUROC whose resamples are all alike (every
positive above every negative) gets the interval of a share of as many cases as the smaller class
has.

Deviation: statistics that resampling biases (calibration errors, spreads: a resample is rougher
than its sample) get the interval value +- 1.96 bootstrap standard errors [BOOT chapter 12], cut at
their range; all others the percentile interval [BOOT chapter 13].
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from trimtab.models.data import prompts as prompt_rules
from trimtab.models.statistics.bootstrap import bootstrap_interval, percentile_ends, redraw
from trimtab.models.statistics.calibration import (
    area_of_places,
    auroc,
    dense_ranks,
    spearman,
    spearman_of_dense_ranks,
)
from trimtab.models.statistics.intervals import effective_count, net_interval, wilson_interval
from trimtab.models.statistics.measured import Estimate
from trimtab.models.statistics.wrong_labels import Array, WrongLabels, wrong_labels

NUM_RESAMPLES = 1000
# A standard error needs fewer resamples than a percentile [BOOT section 6.4].
NUM_ERROR_RESAMPLES = 200
Statistic = Callable[[Tensor], float]


def mean_estimate(values: Tensor, seed: int) -> Estimate:
    """Mean of values (N,), any unit, with a percentile interval."""
    values = values.double()
    low, high = bootstrap_interval(values, num_resamples=NUM_RESAMPLES, seed=seed)
    return Estimate(float(values.mean()), low, high, len(values))


def cluster_ids(prompts: Iterable[str]) -> Tensor:
    """(N,) long, equal for rows of one prompt, or of one dialogue that was cut at several turns.

    These are what splits keep together (`trimtab.models.data.splits`), as they depend on each
    other.
    """
    return torch.tensor(prompt_rules.cluster_ids(prompts), dtype=torch.long)


def wrong_labels_by_prompt(strength: Array, prompts: Iterable[str]) -> WrongLabels | None:
    """`wrong_labels` of strengths (N,), where pairs of one prompt count as fewer."""
    against = torch.from_numpy(strength < 0).double()
    worth = effective_count(against, cluster_ids(prompts)) / len(strength)
    return wrong_labels(strength, worth)


def family_ids(families: Sequence[str | None]) -> Tensor:
    """(N,) long, equal for rows of one task family."""
    known = {name: number for number, name in enumerate(dict.fromkeys(families))}
    return torch.tensor([known[name] for name in families], dtype=torch.long)


def means_of(values: Tensor, clusters: Tensor) -> Tensor:
    """(C,) the mean of values (N,), any unit, in each cluster of ids (N,)."""
    return torch.stack([values[clusters == which].mean() for which in clusters.unique()])


def share_estimate(
    hits: Tensor | Sequence[bool] | Sequence[float], clusters: Tensor | None
) -> Estimate | None:
    """A share of rows (N,); none where there are none.

    hits: true and false, or 1, 0 and, where neither holds, 1/2. clusters: (N,) as `cluster_ids` has
    them; None: rows are independent.
    """
    values = torch.as_tensor(hits, dtype=torch.float64)
    if not len(values):
        return None
    share = float(values.mean())
    interval = wilson_interval(share, effective_count(values, clusters))
    return Estimate(share, *interval, len(values))


def net_estimate(outcomes: Tensor, clusters: Tensor | None) -> Estimate:
    """The share of 1 less the share of -1 among outcomes (N,) that are 1, 0 or -1."""
    outcomes = outcomes.double()
    win, lose = (float((outcomes == sign).double().mean()) for sign in (1, -1))
    interval = net_interval(win, lose, effective_count(outcomes, clusters))
    return Estimate(float(outcomes.mean()), *interval, len(outcomes))


def fraction_estimate(values: Tensor, clusters: Tensor | None, seed: int) -> Estimate:
    """Mean of fractions (N,), each in [0, 1]; as of a share where all are alike."""
    if bool((values == values[0]).all()):
        share = share_estimate(values, clusters)
        assert share is not None
        return share
    return mean_estimate(values, seed)


def auroc_estimate(scores: Tensor, is_positive: Tensor, seed: int) -> Estimate | None:
    """AUROC of scores (N,); none where a class is missing. Resamples keep the class sizes."""
    distinct, place = torch.unique(scores, return_inverse=True)
    positive, negative = place[is_positive], place[~is_positive]
    if not len(positive) or not len(negative):
        return None
    generator = torch.Generator().manual_seed(seed)
    draws = (
        [redraw(places, generator) for places in (positive, negative)] for _ in range(NUM_RESAMPLES)
    )
    resampled = torch.stack([area_of_places(p, n, len(distinct)) for p, n in draws])
    value = float(auroc(scores, is_positive))
    low, high = percentile_ends(resampled).tolist()
    if low == high:
        low, high = wilson_interval(value, min(len(positive), len(negative)))
    return Estimate(value, low, high, len(scores))


def spearman_estimate(first: Tensor, second: Tensor, seed: int) -> Estimate | None:
    """Rank correlation of (N,) and (N,); none where all values of a side are equal.

    Resamples in which a side has become constant have no correlation and are left out.
    """
    value = float(spearman(first, second))
    if math.isnan(value):
        return None
    generator = torch.Generator().manual_seed(seed)
    x, y, examples = dense_ranks(first), dense_ranks(second), torch.arange(len(first))
    draws = (redraw(examples, generator) for _ in range(NUM_RESAMPLES))
    resampled = torch.stack([spearman_of_dense_ranks(x[draw], y[draw]) for draw in draws])
    low, high = percentile_ends(resampled).tolist()
    return Estimate(value, low, high, len(first))


def biased_estimate(
    statistic: Statistic,
    count: int,
    seed: int,
    *,
    lowest: float = 0.0,
    strata: Tensor | None = None,
) -> Estimate:
    """A statistic of example indices (n,), value +- 1.96 standard errors, cut at `lowest`.

    strata: (count,) long; resamples keep the size of each stratum.
    """
    generator = torch.Generator().manual_seed(seed)
    groups = [torch.arange(count)]
    if strata is not None:
        groups = [torch.nonzero(strata == which)[:, 0] for which in range(int(strata.max()) + 1)]
    resampled = torch.tensor(
        [
            statistic(torch.cat([redraw(group, generator) for group in groups]))
            for _ in range(NUM_ERROR_RESAMPLES)
        ],
        dtype=torch.float64,
    )
    value, error = statistic(torch.arange(count)), 1.96 * float(resampled.std(correction=0))
    return Estimate(value, max(lowest, value - error), value + error, count)
