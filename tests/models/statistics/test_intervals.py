"""Intervals of shares: by hand, against scipy and slow searches, and how often they hold."""

from __future__ import annotations

import math
from statistics import NormalDist

import pytest
import torch
from scipy.stats import beta, binom, binomtest

from trimtab.models.functional.checks import ShapeError
from trimtab.models.statistics.intervals import effective_count, net_interval, wilson_interval

F64 = torch.float64
Z = NormalDist().inv_cdf(0.975)


def _clusters(*sizes: int) -> torch.Tensor:
    return torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))


# wilson_interval


def test_wilson_by_hand() -> None:
    # z^2 = 1.95996^2 = 3.84146. All of 14: from 14 / (14 + z^2) = 0.78469 to 1; none of 10: to
    # z^2 / (10 + z^2) = 0.27753. Half of any number is in the middle.
    low, high = wilson_interval(1.0, 14)
    assert (low, high) == (pytest.approx(0.78469, abs=1e-5), 1.0)
    low, high = wilson_interval(0.0, 10)
    assert (low, high) == (0.0, pytest.approx(0.27753, abs=1e-5))
    assert sum(wilson_interval(0.5, 7)) == pytest.approx(1.0)


def test_wilson_equals_scipy() -> None:
    for count in (1, 2, 14, 1000):
        for hits in range(0, count + 1, max(1, count // 7)):
            expected = binomtest(hits, count).proportion_ci(0.95, method="wilson")
            got = wilson_interval(hits / count, count)
            assert got == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_wilson_holds_as_often_as_it_says() -> None:
    """Exactly: over a share drawn evenly from 0 to 1, hits are even and the share then beta."""
    for count in (5, 14, 50):
        held = 0.0
        for hits in range(count + 1):
            low, high = wilson_interval(hits / count, count)
            posterior = beta(hits + 1, count - hits + 1)
            held += (posterior.cdf(high) - posterior.cdf(low)) / (count + 1)
        assert 0.95 < held < 0.97, count


def test_wilson_invariants() -> None:
    for share in torch.rand(20, dtype=F64).tolist():
        low, high = wilson_interval(share, 9.5)
        assert 0 <= low < share < high <= 1
        mirrored = wilson_interval(1 - share, 9.5)
        assert mirrored == pytest.approx((1 - high, 1 - low), abs=1e-12)
        more = wilson_interval(share, 40.0)
        assert low < more[0] < more[1] < high


# net_interval


def test_net_by_hand() -> None:
    # Only ties of 14: z^2 / (14 + z^2) = 0.21531 either way. Only wins: Wilson's of 1, doubled.
    assert net_interval(0, 0, 14) == pytest.approx((-0.21531, 0.21531), abs=1e-5)
    assert net_interval(1, 0, 14) == pytest.approx((2 * 0.78469 - 1, 1.0), abs=2e-5)
    assert net_interval(0, 1, 14) == pytest.approx((-1.0, 1 - 2 * 0.78469), abs=2e-5)


def test_net_without_ties_is_wilson() -> None:
    for wins in range(13):
        low, high = wilson_interval(wins / 12, 12)
        got = net_interval(wins / 12, 1 - wins / 12, 12)
        assert got == pytest.approx((2 * low - 1, 2 * high - 1), abs=1e-9)


@pytest.mark.parametrize(("wins", "losses"), [(6, 2), (9, 0), (3, 3), (1, 10)])
def test_net_equals_a_search(wins: int, losses: int) -> None:
    """The score test of every difference, its likeliest losses found on a fine grid."""
    count, inside = 15, []
    ties = count - wins - losses
    for step in range(-199, 200):
        difference = step / 200
        best, at = -math.inf, 0.0
        for place in range(1, 4000):
            lose = place / 4000
            win, tie = lose + difference, 1 - 2 * lose - difference
            if win <= 0 or tie <= 0:
                continue
            likely = wins * math.log(win) + losses * math.log(lose) + ties * math.log(tie)
            if likely > best:
                best, at = likely, lose
        variance = 2 * at + difference * (1 - difference)
        if (wins - losses - count * difference) ** 2 <= Z * Z * count * variance:
            inside.append(difference)
    low, high = net_interval(wins / count, losses / count, count)
    # The search's ends are at most one of its steps, 1/200, inside of the true ones.
    assert inside[0] - 1.1 / 200 <= low <= inside[0] + 0.1 / 200
    assert inside[-1] - 0.1 / 200 <= high <= inside[-1] + 1.1 / 200


def test_net_invariants() -> None:
    for win, lose, _ in torch.rand(20, 3, dtype=F64).softmax(1).tolist():
        low, high = net_interval(win, lose, 11.0)
        assert -1 <= low < win - lose < high <= 1
        assert net_interval(lose, win, 11.0) == pytest.approx((-high, -low), abs=1e-9)


# effective_count


def test_effective_count_by_hand() -> None:
    # Four clusters of two that agree: the rest is 1/2 throughout, squared and summed 2; sums over
    # clusters are 1, squared and summed 4, times 4/3 and (t / z)^2 = (3.18245 / 1.95996)^2.
    values = torch.tensor([1, 1, 1, 1, 0, 0, 0, 0], dtype=F64)
    expected = 8 * 2 / (4 * 4 / 3 * (3.18245 / 1.95996) ** 2)
    assert effective_count(values, _clusters(2, 2, 2, 2)) == pytest.approx(expected, rel=1e-5)
    # Each cluster has one of each: nothing is lost by clusters, and nothing gained.
    assert effective_count(values[[0, 4, 1, 5, 2, 6, 3, 7]], _clusters(2, 2, 2, 2)) == 8
    assert effective_count(values, None) == effective_count(values, torch.arange(8)) == 8


def test_all_alike_counts_clusters() -> None:
    values = torch.ones(9, dtype=F64)
    assert effective_count(values, _clusters(3, 5, 1)) == 3
    assert effective_count(values, _clusters(9)) == 1
    # 100 % of three prompts: from 3 / (3 + z^2) = 0.43850.
    assert wilson_interval(1.0, 3)[0] == pytest.approx(0.43850, abs=1e-5)


def test_whole_clusters_hold_as_often_as_said() -> None:
    """Exactly, over a share drawn evenly: 12 clusters of five that are alike are at most 12 cases.

    Taken as 60 cases they would hold in seven of ten.
    """
    held, alone = 0.0, 0.0
    for hits in range(13):
        values = (torch.arange(60) < 5 * hits).double()
        share, posterior = hits / 12, beta(hits + 1, 13 - hits)
        for clusters in (_clusters(*[5] * 12), None):
            low, high = wilson_interval(share, effective_count(values, clusters))
            part = (posterior.cdf(high) - posterior.cdf(low)) / 13
            if clusters is None:
                alone += part
            else:
                held += part
    assert held > 0.95
    assert alone < 0.75


def test_clusters_in_part_alike_hold_as_often_as_said() -> None:
    """2,000 draws of 7 clusters of 20 whose shares are beta(6.3, 2.7), a correlation of 0.1.

    Were they held in 0.93 or more, fewer than 0.93 - 4 sqrt(0.93 0.07 / 2,000) = 0.907 of the draws
    would have a chance of 1 in 30,000.
    """
    generator, draws = torch.Generator().manual_seed(0), 2000
    # Beta from order statistics would need whole numbers: from its quantiles instead.
    shares = torch.tensor(beta.ppf(torch.rand(draws, 7, generator=generator), 6.3, 2.7), dtype=F64)
    hits = binom.ppf(torch.rand(draws, 7, generator=generator), 20, shares)
    clusters, held = _clusters(*[20] * 7), 0
    for row in hits.astype(int).tolist():
        values = torch.cat([(torch.arange(20) < number).double() for number in row])
        low, high = wilson_interval(float(values.mean()), effective_count(values, clusters))
        held += low <= 0.7 <= high
    assert held / draws > 0.907


def test_effective_count_invariants() -> None:
    values, clusters = torch.rand(30, dtype=F64), _clusters(1, 4, 10, 7, 8)
    count = effective_count(values, clusters)
    assert 1 <= count <= 30
    order = torch.randperm(30)
    assert effective_count(values[order], clusters[order]) == pytest.approx(count)
    assert effective_count(3 - 2 * values, 7 * clusters) == pytest.approx(count)


def test_arguments_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match="count must be above 0"):
        wilson_interval(0.5, 0)
    with pytest.raises(ValueError, match="count must be above 0"):
        net_interval(0.5, 0.5, math.inf)
    with pytest.raises(ValueError, match=r"share must be in \[0, 1\], found 1.5"):
        wilson_interval(1.5, 3)
    with pytest.raises(ValueError, match="found 0.8 and 0.8"):
        net_interval(0.8, 0.8, 3)
    with pytest.raises(ValueError, match="NaN"):
        effective_count(torch.tensor([0.0, math.nan]), None)
    with pytest.raises(ShapeError, match="clusters must be torch.long"):
        effective_count(torch.zeros(2), torch.zeros(3, dtype=torch.long))
