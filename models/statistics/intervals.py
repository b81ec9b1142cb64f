"""Intervals of shares, and of differences of shares, that do not collapse where all cases agree.

[WILSON] Wilson, Probable Inference, the Law of Succession, and Statistical Inference, Journal of
the American Statistical Association 22, 1927.
[BCD] Brown, Cai and DasGupta, Interval Estimation for a Binomial Proportion, Statistical Science
16, 2001: recommends [WILSON] for small counts.
[TANGO] Tango, Equivalence Test and Confidence Interval for the Difference in Proportions for the
Paired-Sample Design, Statistics in Medicine 17, 1998.
[KG] Korn and Graubard, Confidence Intervals for Proportions with Small Expected Number of Positive
Counts Estimated from Survey Data, Survey Methodology 24, 1998: an effective number of cases.
[FLLS] Franco, Little, Louis and Slud, Comparative Study of Confidence Intervals for Proportions in
Complex Sample Surveys, Journal of Survey Statistics and Methodology 7, 2019: [WILSON] at the
effective number of cases of [KG].

The percentile bootstrap of cases that are all alike has no width: 14 of 14 would be 100 % for
certain, where [WILSON] says 78 to 100 %. Of nearly all alike it is too narrow as well.

Deviations
1. Values between 0 and 1, such as a tie that counts half, are taken as a share of their mean. Of
   all values with this mean 0 and 1 vary most, so that the interval is rather too wide.
2. Where all values are alike nothing tells how far cases of a cluster depend on each other: each
   cluster then counts as one case.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import NormalDist

import torch
from scipy.special import stdtrit
from torch import Tensor

from trimtab.models.functional.checks import ShapeError, require_floating, require_shape

_BISECTIONS = 60
# Below it lies this share of a distribution whose central 95 % an interval spans.
_UPPER = 0.975
Z = NormalDist().inv_cdf(_UPPER)


def wilson_interval(share: float, count: float) -> tuple[float, float]:
    """95 % score interval of a share [WILSON; BCD eq. 4].

    (p + z^2 / 2n -+ z sqrt(p (1 - p) / n + z^2 / 4n^2)) / (1 + z^2 / n), z = Phi^-1(.975).

    share: p, in [0, 1]. count: n, above 0: cases, or an effective number of them
    (`effective_count`).
    Returns (low, high) with 0 <= low <= share <= high <= 1 and low < high.
    Raises ValueError for an argument out of range.
    """
    _require_count("wilson_interval", count)
    if not 0 <= share <= 1:
        raise ValueError(f"wilson_interval: share must be in [0, 1], found {share}")
    scale = 1 + Z * Z / count
    middle = (share + Z * Z / (2 * count)) / scale
    half = Z / scale * math.sqrt(share * (1 - share) / count + Z * Z / (4 * count * count))
    # Rounding must not put an end on the wrong side of the share.
    return min(share, max(0.0, middle - half)), max(share, min(1.0, middle + half))


def net_interval(win: float, lose: float, count: float) -> tuple[float, float]:
    """95 % score interval of a share of wins less a share of losses among the same cases [TANGO].

    All d with (win - lose - d)^2 <= z^2 (2q + d (1 - d)) / n, where q is the likeliest share of
    losses if the difference is d: q = (sqrt(B^2 - 8C) - B) / 4, with
    B = (2 - win + lose) d - win - lose and C = -lose d (1 - d). Without ties it is Wilson's of the
    wins, doubled and less one.

    win, lose: in [0, 1], together at most 1. count: n, as in `wilson_interval`.
    Returns (low, high) in [-1, 1] about win - lose.
    Raises ValueError for an argument out of range.
    """
    _require_count("net_interval", count)
    if not (win >= 0 and lose >= 0 and win + lose <= 1 + 1e-9):
        raise ValueError(
            f"net_interval: win and lose must be shares of one whole, found {win} and {lose}"
        )
    net = win - lose

    def is_inside(difference: float) -> bool:
        b = (2 - win + lose) * difference - win - lose
        c = -lose * difference * (1 - difference)
        losses = (math.sqrt(max(0.0, b * b - 8 * c)) - b) / 4
        variance = 2 * losses + difference * (1 - difference)
        return (net - difference) ** 2 * count <= Z * Z * variance

    return _furthest(net, -1.0, is_inside), _furthest(net, 1.0, is_inside)


def effective_count(values: Tensor, clusters: Tensor | None) -> float:
    """How many independent cases clustered ones are worth [KG; FLLS].

    n v / (s^2 (t / z)^2), between 1 and n, for 95 % intervals. v = sum_i (x_i - x)^2 / n^2 is the
    variance of the mean x were all cases independent;
    s^2 = C / (C - 1) sum_c (sum_(i in c) (x_i - x))^2 / n^2 is its variance with C clusters; t is
    Student's quantile with C - 1 degrees of freedom. C where all values are alike (deviation 2), n
    where every case is a cluster of its own.

    values: (N,), N >= 1, any unit. clusters: (N,) long, at least 0, equal for cases that belong
    together, as the pairs of one prompt do; None: every case by itself.
    Raises ShapeError for other shapes, ValueError for a value that is not finite.
    """
    require_shape("effective_count", 1, values=values)
    require_floating("effective_count", values=values)
    if not bool(values.isfinite().all()):
        raise ValueError("effective_count: values hold NaN or infinity")
    number = len(values)
    if clusters is None:
        return float(number)
    if clusters.shape != values.shape or clusters.dtype != torch.long:
        raise ShapeError(
            f"effective_count: clusters must be torch.long ({number},), found {clusters.dtype} "
            f"{tuple(clusters.shape)}"
        )
    _, of_case = torch.unique(clusters, return_inverse=True)
    num_clusters = int(of_case.max()) + 1
    if num_clusters == number:
        return float(number)
    values = values.detach().double()
    if bool((values == values[0]).all()) or num_clusters == 1:
        return float(num_clusters)
    rest = values - values.mean()
    by_cluster = torch.zeros(num_clusters, dtype=torch.float64).index_add(0, of_case, rest)
    spread = num_clusters / (num_clusters - 1) * float(by_cluster.square().sum())
    spread *= (float(stdtrit(num_clusters - 1, _UPPER)) / Z) ** 2
    alone = float(rest.square().sum())
    return float(number) if spread <= alone else max(1.0, number * alone / spread)


def _furthest(inside: float, outside: float, is_inside: Callable[[float], bool]) -> float:
    """The end of an interval, by bisection between a place in it and one not in it."""
    if is_inside(outside):
        return outside
    for _ in range(_BISECTIONS):
        middle = (inside + outside) / 2
        if is_inside(middle):
            inside = middle
        else:
            outside = middle
    return inside


def _require_count(where: str, count: float) -> None:
    if not (math.isfinite(count) and count > 0):
        raise ValueError(f"{where}: count must be above 0, found {count}")
