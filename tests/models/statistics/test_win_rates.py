"""win_rates: win, tie and lose shares, and bootstrap intervals."""

import math
from typing import Any

import pytest
import torch

from trimtab.models.functional.checks import ShapeError
from trimtab.models.statistics import bootstrap
from trimtab.models.statistics.bootstrap import bootstrap_interval
from trimtab.models.statistics.win_rates import outcome_matrix, win_tie_lose

F64 = torch.float64


# win_tie_lose


def test_shares_by_hand() -> None:
    # Gaps 2, 1, 0, -1, -3 with margin 1: one win, three ties (1 and -1 included), one loss.
    ours = torch.tensor([3.0, 2.0, 1.0, 0.0, 0.0])
    theirs = torch.tensor([1.0, 1.0, 1.0, 1.0, 3.0])
    assert win_tie_lose(ours, theirs, 1.0) == {"win": 0.2, "tie": 0.6, "lose": 0.2}
    assert win_tie_lose(ours, theirs, 0.0) == {"win": 0.4, "tie": 0.2, "lose": 0.4}


def test_shares_equal_loop() -> None:
    ours, theirs = torch.randn(2, 50, dtype=F64)
    counts = {"win": 0, "tie": 0, "lose": 0}
    for a, b in zip(ours.tolist(), theirs.tolist(), strict=True):
        counts["win" if a - b > 0.4 else "lose" if b - a > 0.4 else "tie"] += 1
    assert win_tie_lose(ours, theirs, 0.4) == {name: n / 50 for name, n in counts.items()}


def test_shares_invariants() -> None:
    ours, theirs = torch.randn(2, 30)
    shares = win_tie_lose(ours, theirs, 0.3)
    assert sum(shares.values()) == pytest.approx(1.0, abs=1e-12)
    other = win_tie_lose(theirs, ours, 0.3)
    assert (other["win"], other["tie"]) == (shares["lose"], shares["tie"])
    assert win_tie_lose(ours, ours, 0.0)["tie"] == 1.0
    assert win_tie_lose(ours, theirs, 1e6)["tie"] == 1.0
    assert win_tie_lose(torch.tensor([2]), torch.tensor([1]), 0.0)["win"] == 1.0


def test_shares_refuse_bad_arguments() -> None:
    x = torch.zeros(3)
    with pytest.raises(ValueError, match="found -1"):
        win_tie_lose(x, x, -1.0)
    with pytest.raises(ValueError, match="NaN"):
        win_tie_lose(x * torch.nan, x, 0.0)
    with pytest.raises(ShapeError, match=r"theirs \(2,\)"):
        win_tie_lose(x, torch.zeros(2), 0.0)


# outcome_matrix


def test_outcomes_by_hand() -> None:
    # Two prompts. On the first the systems stand 3, 2, 2; on the second 0, 2, 1; 1 apart is a tie.
    scores = torch.tensor([[3.0, 0.0], [2.0, 2.0], [2.0, 1.0]])
    found = outcome_matrix(scores, 1.0)
    assert found[:, :, 0].tolist() == [[0, 0, 0], [0, 0, 0], [0, 0, 0]]
    assert found[:, :, 1].tolist() == [[0, -1, 0], [1, 0, 0], [0, 0, 0]]
    assert outcome_matrix(scores, 0.5)[:, :, 0].tolist() == [[0, 1, 1], [-1, 0, 0], [-1, 0, 0]]


def test_outcomes_equal_loop() -> None:
    scores = torch.randn(4, 20, dtype=F64)
    found = outcome_matrix(scores, 0.3)
    for i in range(4):
        for j in range(4):
            for n in range(20):
                gap = float(scores[i, n] - scores[j, n])
                assert int(found[i, j, n]) == (1 if gap > 0.3 else -1 if gap < -0.3 else 0)


def test_outcomes_invariants() -> None:
    scores = torch.randn(5, 30)
    found = outcome_matrix(scores, 0.2)
    assert found.transpose(0, 1).equal(-found)
    assert not found.diagonal().any()
    assert outcome_matrix(scores + torch.randn(30), 0.0).equal(outcome_matrix(scores, 0.0))
    order = torch.randperm(5)
    assert outcome_matrix(scores[order], 0.2).equal(found[order][:, order])
    shares = win_tie_lose(scores[0], scores[1], 0.2)
    assert float((found[0, 1] == 1).double().mean()) == pytest.approx(shares["win"])


def test_outcomes_refused() -> None:
    with pytest.raises(ShapeError):
        outcome_matrix(torch.zeros(3), 0.0)
    with pytest.raises(ValueError, match="found -1"):
        outcome_matrix(torch.zeros(2, 2), -1.0)
    with pytest.raises(ValueError, match="is NaN"):
        outcome_matrix(torch.tensor([[0.0], [math.nan]]), 0.0)


# bootstrap_interval


def test_interval_of_two_values_by_hand() -> None:
    # Resamples of {0, 1} have mean 0, 1/2, 1 with probability 1/4, 1/2, 1/4. The central 40 %
    # lies inside the middle half, the central 90 % reaches both ends.
    values = torch.tensor([0.0, 1.0])
    assert bootstrap_interval(values, num_resamples=4000, seed=0, level=0.4) == (0.5, 0.5)
    assert bootstrap_interval(values, num_resamples=4000, seed=0, level=0.9) == (0.0, 1.0)


def test_interval_of_the_mean_is_the_normal_one_for_many_values() -> None:
    # Mean 0, standard error 1/sqrt(400) = 0.05: about -1.96 * 0.05 to 1.96 * 0.05 = 0.098.
    values = torch.tensor([-1.0, 1.0]).repeat(200)
    low, high = bootstrap_interval(values, num_resamples=4000, seed=0)
    assert low == pytest.approx(-0.098, abs=0.01)
    assert high == pytest.approx(0.098, abs=0.01)


def test_interval_equals_loop() -> None:
    values = torch.randn(9, dtype=F64)
    index = torch.randint(9, (200, 9), generator=torch.Generator().manual_seed(5))
    means = sorted(sum(values[i].item() for i in row) / 9 for row in index.tolist())

    def percentile(share: float) -> float:
        place = share * 199
        below = math.floor(place)
        return means[below] + (place - below) * (means[below + 1] - means[below])

    got = bootstrap_interval(values, num_resamples=200, seed=5, level=0.9)
    assert got == pytest.approx((percentile(0.05), percentile(0.95)), abs=1e-12)


def test_interval_invariants() -> None:
    values = torch.randn(40, dtype=F64)
    options: dict[str, Any] = {"num_resamples": 300}
    state = torch.get_rng_state()
    low, high = bootstrap_interval(values, seed=1, **options)
    assert torch.get_rng_state().equal(state)
    assert bootstrap_interval(values, seed=1, **options) == (low, high)
    assert bootstrap_interval(values, seed=2, **options) != (low, high)
    assert low < high
    moved = bootstrap_interval(3 * values + 1, seed=1, **options)
    assert moved == pytest.approx((3 * low + 1, 3 * high + 1), abs=1e-12)
    narrow = bootstrap_interval(values, seed=1, level=0.5, **options)
    assert low < narrow[0] < narrow[1] < high
    assert bootstrap_interval(torch.full((5,), 2.0), seed=1, **options) == (2.0, 2.0)


def test_interval_does_not_depend_on_the_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    values = torch.randn(7, dtype=F64)
    whole = bootstrap_interval(values, num_resamples=50, seed=3)
    monkeypatch.setattr(bootstrap, "_CHUNK_ELEMENTS", 21)
    assert bootstrap_interval(values, num_resamples=50, seed=3) == whole


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_resamples": 0}, "found 0"),
        ({"level": 1.0}, r"level must be in \(0, 1\), found 1\.0"),
    ],
)
def test_interval_refuses_bad_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        bootstrap_interval(torch.zeros(3), **{"num_resamples": 10, "seed": 0, **options})


def test_interval_refuses_bad_values() -> None:
    with pytest.raises(ValueError, match="NaN or infinity"):
        bootstrap_interval(torch.tensor([0.0, torch.inf]), num_resamples=10, seed=0)
    with pytest.raises(ShapeError, match="at least one element"):
        bootstrap_interval(torch.zeros(0), num_resamples=10, seed=0)
