"""ranks: AUROC and Spearman's correlation, with ties."""

import itertools
import math

import pytest
import scipy.stats
import torch

from trimtab.models.functional.checks import ShapeError
from trimtab.models.statistics.calibration import (
    auroc,
    dense_ranks,
    spearman,
    spearman_ceiling,
    spearman_of_dense_ranks,
)

F64 = torch.float64


def test_auroc_by_hand() -> None:
    # Positives 3, 2, negatives 2, 1: pairs 3>2, 3>1, 2=2 (half), 2>1: 3.5 of 4.
    scores = torch.tensor([3.0, 2.0, 2.0, 1.0])
    assert auroc(scores, torch.tensor([True, True, False, False])).item() == 0.875


def test_auroc_equals_loop_over_pairs() -> None:
    scores = torch.randint(0, 6, (40,)).double()  # many ties
    positive = torch.rand(40) < 0.4
    wins = 0.0
    for s in scores[positive].tolist():
        for t in scores[~positive].tolist():
            wins += 1.0 if s > t else 0.5 if s == t else 0.0
    slow = wins / (int(positive.sum()) * int((~positive).sum()))
    assert auroc(scores, positive).item() == pytest.approx(slow, abs=1e-12)


def test_auroc_invariants() -> None:
    scores, positive = torch.randn(30, dtype=F64), torch.arange(30) % 3 == 0
    area = auroc(scores, positive).item()
    assert auroc(scores.exp(), positive).item() == pytest.approx(area, abs=1e-12)
    assert auroc(-scores, positive).item() == pytest.approx(1 - area, abs=1e-12)
    assert auroc(scores, ~positive).item() == pytest.approx(1 - area, abs=1e-12)
    assert auroc(positive.double(), positive).item() == 1.0
    assert auroc(torch.zeros(30), positive).item() == 0.5


def test_auroc_refuses_bad_arguments() -> None:
    with pytest.raises(ValueError, match="found 3 positive and 0 negative"):
        auroc(torch.zeros(3), torch.ones(3, dtype=torch.bool))
    with pytest.raises(ValueError, match="NaN"):
        auroc(torch.tensor([0.0, torch.nan]), torch.tensor([True, False]))
    with pytest.raises(ShapeError, match="is_positive must be"):
        auroc(torch.zeros(3), torch.ones(3))


# spearman and spearman_ceiling


def test_spearman_by_hand() -> None:
    # Without ties: rank differences 0, 1, -1, 0, so 1 - 6 * 2 / (4 * 15) = 0.8.
    first = torch.tensor([1.0, 2.0, 5.0, 9.0])
    assert spearman(first, torch.tensor([-4.0, 3.0, 0.0, 7.0])).item() == pytest.approx(0.8)
    # Tied side: ranks 1.5, 1.5, 3.5, 3.5, from the middle -1, -1, 1, 1; the other side's are
    # -1.5, -0.5, 0.5, 1.5. Products sum to 4, squares to 4 and 5: 4 / sqrt(20).
    tied = torch.tensor([0.2, 0.2, 0.6, 0.6])
    assert spearman(first, tied).item() == pytest.approx(4 / math.sqrt(20), abs=1e-12)
    # This order is perfect, so it is the ceiling: sqrt(1 - 2 * (8 - 2) / (64 - 4)) = sqrt(0.8).
    assert spearman_ceiling(tied).item() == pytest.approx(math.sqrt(0.8), abs=1e-12)


def test_spearman_equals_scipy() -> None:
    first, second = torch.randint(0, 6, (50,)), torch.randn(50, dtype=F64).round(decimals=1)
    expected = scipy.stats.spearmanr(first.numpy(), second.numpy()).statistic
    assert spearman(first, second).item() == pytest.approx(expected, abs=1e-12)


def test_no_order_of_tied_values_beats_the_ceiling() -> None:
    values = torch.tensor([1.0, 1.0, 2.0, 2.0, 2.0, 3.0])
    found = max(
        spearman(torch.tensor(order), values).item()
        for order in itertools.permutations(range(len(values)))
    )
    assert spearman_ceiling(values).item() == pytest.approx(found, abs=1e-12)


def test_spearman_invariants() -> None:
    first, second = torch.randn(30, dtype=F64), torch.randint(0, 5, (30,)).double()
    rho = spearman(first, second).item()
    assert spearman(second, first).item() == pytest.approx(rho, abs=1e-12)
    assert spearman(first.exp(), second**3).item() == pytest.approx(rho, abs=1e-12)
    assert spearman(-first, second).item() == pytest.approx(-rho, abs=1e-12)
    assert spearman(first, first).item() == pytest.approx(1.0, abs=1e-12)
    assert spearman(first, torch.ones(30)).isnan()
    assert spearman_ceiling(first).item() == 1.0
    assert spearman_ceiling(torch.ones(30)).item() == 0.0


def test_spearman_refuses_bad_arguments() -> None:
    with pytest.raises(ValueError, match="second holds NaN"):
        spearman(torch.zeros(2), torch.tensor([0.0, torch.nan]))
    with pytest.raises(ShapeError, match="one shared shape"):
        spearman(torch.zeros(2), torch.zeros(3))
    with pytest.raises(ValueError, match="found 1"):
        spearman_ceiling(torch.zeros(1))


def test_draws_of_dense_ranks_have_the_correlation_of_drawn_values() -> None:
    generator = torch.Generator().manual_seed(3)
    first = torch.randint(6, (200,), generator=generator).double()
    second = first + torch.randn(200, generator=generator, dtype=torch.float64)
    draw = torch.randint(200, (200,), generator=generator)
    found = spearman_of_dense_ranks(dense_ranks(first)[draw], dense_ranks(second)[draw])
    assert torch.equal(found, spearman(first[draw], second[draw]))
    assert dense_ranks(torch.tensor([2.0, -1.0, 2.0, 0.5])).tolist() == [2, 0, 2, 1]
