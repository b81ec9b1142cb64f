"""best_of_n: the KL bound, which sample is best, what the best of fewer is worth."""

import itertools
import math

import pytest
import torch

from trimtab.models.functional.best_of_n import best_of, best_of_k_values, best_of_n_kl
from trimtab.models.functional.checks import ShapeError

F64 = torch.float64


def slow_values(scores: list[float], values: list[float]) -> list[float]:
    """For every k the mean over all subsets of k, chosen one by one."""
    found = []
    for k in range(1, len(scores) + 1):
        subsets = list(itertools.combinations(range(len(scores)), k))
        # The highest score; of equal ones the first.
        best = [max(subset, key=lambda i: (scores[i], -i)) for subset in subsets]
        found.append(sum(values[i] for i in best) / len(subsets))
    return found


def test_kl_by_hand() -> None:
    assert best_of_n_kl(1) == 0.0
    assert best_of_n_kl(2) == pytest.approx(math.log(2) - 0.5)  # 0.193
    assert best_of_n_kl(64) == pytest.approx(4.158883 - 0.984375, abs=1e-6)
    with pytest.raises(ValueError, match="at least 1, found 0"):
        best_of_n_kl(0)


def test_kl_is_an_upper_bound_and_nearly_reached_where_no_two_samples_are_equal() -> None:
    """Best of n of m equally likely outcomes: outcome i has probability (i/m)^n - ((i-1)/m)^n."""
    for num_outcomes, is_near in ((4, False), (10_000, True)):
        for n in (2, 5):
            edges = torch.arange(num_outcomes + 1, dtype=F64) / num_outcomes
            best = edges[1:] ** n - edges[:-1] ** n
            kl = float((best * (best * num_outcomes).log()).sum())
            assert kl < best_of_n_kl(n)
            assert (best_of_n_kl(n) - kl < 1e-3) == is_near


def test_best_by_hand() -> None:
    scores = torch.tensor([[1.0, 3.0, 2.0], [5.0, 4.0, 5.0]])
    assert best_of(scores).tolist() == [1, 0]  # of equal ones the first


def test_best_of_fewer_by_hand() -> None:
    # Scores 1, 2, 3 with values 10, 20, 60. k = 1: the mean, 30. k = 2: of three pairs two hold the
    # third and one the second: (2 x 60 + 20) / 3. k = 3: 60.
    scores = torch.tensor([[2.0, 3.0, 1.0]])
    values = torch.tensor([[20.0, 60.0, 10.0]])
    expected = torch.tensor([30.0, 140 / 3, 60.0], dtype=F64)
    torch.testing.assert_close(best_of_k_values(scores, values), expected)


def test_equals_all_subsets_also_with_equal_scores() -> None:
    scores = torch.randint(0, 4, (5, 7)).double()
    values = torch.randn(5, 7, dtype=F64)
    rows = [
        slow_values(own.tolist(), worth.tolist()) for own, worth in zip(scores, values, strict=True)
    ]
    expected = torch.tensor(rows, dtype=F64).mean(0)
    torch.testing.assert_close(best_of_k_values(scores, values), expected, rtol=0, atol=1e-12)


def test_ends_and_order() -> None:
    scores, values = torch.randn(2, 6, 9, dtype=F64)
    found = best_of_k_values(scores, values)
    torch.testing.assert_close(found[0], values.mean())
    torch.testing.assert_close(found[-1], values.gather(1, best_of(scores)[:, None]).mean())
    own = best_of_k_values(scores, scores)
    assert bool((own.diff() > 0).all())
    order = torch.randperm(9)
    shuffled = best_of_k_values(scores[:, order], values[:, order])
    torch.testing.assert_close(shuffled, found, rtol=0, atol=1e-12)


def test_the_estimator_is_unbiased() -> None:
    """Of uniform samples the best of k is k / (k + 1) in the mean, estimated from sets of 8."""
    samples = torch.rand(20_000, 8, dtype=F64)
    found = best_of_k_values(samples, samples)
    expected = torch.tensor([k / (k + 1) for k in range(1, 9)], dtype=F64)
    # Standard error of the mean of one uniform sample a row at most: 0.29 / sqrt(20,000) = 0.002.
    torch.testing.assert_close(found, expected, rtol=0, atol=0.008)


def test_what_is_wrong_is_refused() -> None:
    with pytest.raises(ValueError, match="NaN"):
        best_of(torch.tensor([[1.0, torch.nan]]))
    with pytest.raises(ShapeError, match="2 axes"):
        best_of(torch.zeros(3))
    with pytest.raises(ShapeError, match=r"values \(2, 2\)"):
        best_of_k_values(torch.zeros(2, 3), torch.zeros(2, 2))
