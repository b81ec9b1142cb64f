"""ratings: the Bradley-Terry likelihood, its maximum on Elo's scale, bootstrap intervals."""

import math
from typing import Any

import pytest
import torch

from trimtab.models.functional.checks import ShapeError
from trimtab.models.statistics.bradley_terry import (
    bradley_terry_loss,
    bradley_terry_ratings,
    rating_intervals,
    wins_of,
)

F64 = torch.float64


def _wins(size: int = 4) -> torch.Tensor:
    return torch.randint(1, 20, (size, size)).double().fill_diagonal_(0)


# bradley_terry_loss


def test_loss_by_hand() -> None:
    # Odds of 3 to 1: three wins at log 3/4, one at log 1/4.
    wins = torch.tensor([[0.0, 3.0], [1.0, 0.0]], dtype=F64)
    loss = bradley_terry_loss(torch.tensor([math.log(3), 0.0], dtype=F64), wins)
    assert float(loss) == pytest.approx(-3 * math.log(3 / 4) - math.log(1 / 4))


def test_loss_equals_loop() -> None:
    strength, wins = torch.randn(5, dtype=F64), _wins(5)
    loss = 0.0
    for i in range(5):
        for j in range(5):
            chance = 1 / (1 + math.exp(float(strength[j] - strength[i])))
            loss -= float(wins[i, j]) * math.log(chance)
    assert float(bradley_terry_loss(strength, wins)) == pytest.approx(loss, abs=1e-9)


def test_loss_invariants() -> None:
    strength, wins = torch.randn(5, dtype=F64), _wins(5)
    loss = bradley_terry_loss(strength, wins)
    torch.testing.assert_close(bradley_terry_loss(strength + 3, wins), loss)
    torch.testing.assert_close(bradley_terry_loss(-strength, wins.T), loss)
    torch.testing.assert_close(bradley_terry_loss(strength, 2 * wins), 2 * loss)
    order = torch.randperm(5)
    torch.testing.assert_close(bradley_terry_loss(strength[order], wins[order][:, order]), loss)


def test_loss_gradient() -> None:
    strength, wins = torch.randn(4, dtype=F64).requires_grad_(), _wins()
    assert torch.autograd.gradcheck(bradley_terry_loss, (strength, wins))


# bradley_terry_ratings


def test_two_players_by_hand() -> None:
    # Ten wins to one: odds 10, 400 points apart around 1000. With 2 ties added, 11 to 2.
    wins = torch.tensor([[0.0, 10.0], [1.0, 0.0]], dtype=F64)
    assert bradley_terry_ratings(wins, prior=0).tolist() == pytest.approx([1200, 800])
    apart = 400 * math.log10(11 / 2)
    expected = [1000 + apart / 2, 1000 - apart / 2]
    assert bradley_terry_ratings(wins, prior=2).tolist() == pytest.approx(expected)


def test_ratings_equal_slow_ascent() -> None:
    """Hunter's MM iteration, one player after another, until nothing moves."""
    wins = _wins(5)
    won = wins.tolist()
    skill = [1.0] * 5
    for _ in range(2000):
        for i in range(5):
            others = [j for j in range(5) if j != i]
            games = sum((won[i][j] + won[j][i]) / (skill[i] + skill[j]) for j in others)
            skill[i] = sum(won[i]) / games
    mean = sum(map(math.log10, skill)) / 5
    expected = [1000 + 400 * (math.log10(value) - mean) for value in skill]
    assert bradley_terry_ratings(wins, prior=0).tolist() == pytest.approx(expected, abs=1e-6)


def test_ratings_invariants() -> None:
    wins = _wins(6)
    ratings = bradley_terry_ratings(wins)
    assert float(ratings.mean()) == pytest.approx(1000)
    torch.testing.assert_close(bradley_terry_ratings(wins.T), 2000 - ratings)
    order = torch.randperm(6)
    torch.testing.assert_close(bradley_terry_ratings(wins[order][:, order]), ratings[order])
    torch.testing.assert_close(bradley_terry_ratings(5 * wins, prior=0.5), ratings)
    torch.testing.assert_close(bradley_terry_ratings(wins + 7 * torch.eye(6)), ratings)
    even = bradley_terry_ratings(wins + wins.T)
    torch.testing.assert_close(even, torch.full((6,), 1000.0, dtype=F64))
    # At the maximum, games won are games expected.
    strength = bradley_terry_ratings(wins, prior=0) * math.log(10) / 400
    chance = torch.sigmoid(strength[:, None] - strength[None, :])
    torch.testing.assert_close(((wins + wins.T) * chance).sum(1), wins.sum(1))


def test_ratings_find_what_games_were_drawn_from() -> None:
    # 4,000 games a pair: a rating's standard error is some 2 points, five of them allowed.
    truth = torch.tensor([1300.0, 1100.0, 1000.0, 900.0, 700.0], dtype=F64)
    gap = (truth[:, None] - truth[None, :]) * math.log(10) / 400
    won = torch.binomial(torch.full((5, 5), 4000.0, dtype=F64), torch.sigmoid(gap)).triu(1)
    wins = won + (4000 * torch.ones(5, 5, dtype=F64).triu(1) - won).T
    assert float((bradley_terry_ratings(wins) - truth).abs().max()) < 10


def test_one_who_won_everything_has_a_finite_rating_by_the_prior_only() -> None:
    wins = torch.tensor([[0.0, 9.0, 9.0], [0.0, 0.0, 4.0], [0.0, 5.0, 0.0]], dtype=F64)
    ratings = bradley_terry_ratings(wins)
    assert bool(ratings.isfinite().all())
    assert float(ratings[0] - ratings[1]) > 400
    with pytest.raises(ValueError, match="give a prior above 0"):
        bradley_terry_ratings(wins, prior=0)
    lonely = torch.zeros(4, 4, dtype=F64)
    lonely[0, 1] = lonely[1, 0] = lonely[2, 3] = lonely[3, 2] = 1
    with pytest.raises(ValueError, match="never met"):
        bradley_terry_ratings(lonely, prior=0)


@pytest.mark.parametrize("bad", [torch.zeros(2, 3), torch.zeros(1, 1), torch.zeros(3)])
def test_ratings_refuse_other_shapes(bad: torch.Tensor) -> None:
    with pytest.raises(ShapeError):
        bradley_terry_ratings(bad)


# wins_of, rating_intervals


def _games(num_games: int = 300) -> torch.Tensor:
    """Player 0 beats the others three times in four, those tie with each other."""
    rows = []
    for number in range(num_games):
        first, second = ((0, 1), (2, 0), (1, 2))[number % 3]
        won = 1 if number % 4 else -1
        rows.append([first, second, 0 if 0 not in (first, second) else won if first == 0 else -won])
    return torch.tensor(rows)


def test_wins_by_hand() -> None:
    games = torch.tensor([[0, 1, 1], [0, 1, 1], [1, 0, 1], [0, 2, 0], [2, 1, -1]])
    # 0 beat 1 twice and lost once; 0 and 2 tied; 1 beat 2.
    expected = torch.tensor([[0, 2, 0.5], [1, 0, 1], [0.5, 0, 0]], dtype=F64)
    assert wins_of(games, 3).equal(expected)


def test_intervals_equal_loop() -> None:
    games = _games(60)
    generator = torch.Generator().manual_seed(4)
    resampled = []
    for _ in range(30):
        drawn = torch.zeros(3, 3, dtype=F64)
        for index in torch.randint(60, (60,), generator=generator).tolist():
            first, second, outcome = games[index].tolist()
            drawn[first, second] += (1 + outcome) / 2
            drawn[second, first] += (1 - outcome) / 2
        resampled.append(bradley_terry_ratings(drawn))
    found = rating_intervals(games, 3, num_resamples=30, seed=4, level=0.8)
    for player in range(3):
        ordered = sorted(float(each[player]) for each in resampled)
        # Places .1 * 29 = 2.9 and .9 * 29 = 26.1 of 0 to 29.
        low = ordered[2] + 0.9 * (ordered[3] - ordered[2])
        high = ordered[26] + 0.1 * (ordered[27] - ordered[26])
        assert float(found[1][player]) == pytest.approx(low, abs=1e-6)
        assert float(found[2][player]) == pytest.approx(high, abs=1e-6)


def test_intervals_invariants() -> None:
    games = _games()
    state = torch.get_rng_state()
    ratings, low, high = rating_intervals(games, 3, num_resamples=100, seed=1)
    assert torch.get_rng_state().equal(state)
    assert bool(((low < ratings) & (ratings < high)).all())
    assert float(low[0]) > float(high[1])
    again = rating_intervals(games, 3, num_resamples=100, seed=1)
    assert all(mine.equal(other) for mine, other in zip((ratings, low, high), again, strict=True))
    _, narrow_low, narrow_high = rating_intervals(games, 3, num_resamples=100, seed=1, level=0.5)
    assert bool(((low < narrow_low) & (narrow_high < high)).all())
    torch.testing.assert_close(ratings, bradley_terry_ratings(wins_of(games, 3)))


def test_games_of_a_cluster_are_drawn_together() -> None:
    games = _games(60)
    alone = rating_intervals(games, 3, num_resamples=30, seed=4)
    each_its_own = rating_intervals(games, 3, clusters=torch.arange(60), num_resamples=30, seed=4)
    assert all(mine.equal(other) for mine, other in zip(each_its_own, alone, strict=True))
    # Games that are only written down twice say no more: with twice the prior, the same ratings.
    clusters, twice = torch.arange(60).repeat(2), games.repeat(2, 1)
    found = rating_intervals(twice, 3, clusters=clusters, prior=0.2, num_resamples=30, seed=4)
    for mine, other in zip(found, alone, strict=True):
        torch.testing.assert_close(mine, other)
    _, low, high = rating_intervals(twice, 3, prior=0.2, num_resamples=30, seed=4)
    assert bool((high - low < alone[2] - alone[1]).all())
    with pytest.raises(ShapeError, match=r"clusters must be \(60,\), found \(59,\)"):
        rating_intervals(games, 3, clusters=torch.arange(59), num_resamples=5, seed=0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prior": 0.0}, "prior must be above 0"),
        ({"num_resamples": 0}, "num_resamples at least 1"),
        ({"level": 1.0}, r"level in \(0, 1\), found"),
        ({"num_players": 2}, r"players must be in \[0, 2\)"),
    ],
)
def test_intervals_refuse_bad_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        rating_intervals(_games(9), **{"num_players": 3, "num_resamples": 5, "seed": 0, **options})


def test_intervals_refuse_other_games() -> None:
    for bad in (_games(9).double(), _games(9)[:, :2]):
        with pytest.raises(ShapeError, match=r"whole numbers \(N, 3\)"):
            rating_intervals(bad, 3, num_resamples=5, seed=0)
    with pytest.raises(ValueError, match="outcomes -1, 0 or 1"):
        rating_intervals(_games(9) * torch.tensor([1, 1, 2]), 3, num_resamples=5, seed=0)
