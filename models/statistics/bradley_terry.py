"""Ratings of many players from games between two: Bradley-Terry on Elo's scale, with intervals.

[BT] Bradley and Terry, Rank Analysis of Incomplete Block Designs I, Biometrika 39, 1952.
[MM] Hunter, MM Algorithms for Generalized Bradley-Terry Models, Annals of Statistics 32, 2004.
[ELO] Elo, The Rating of Chessplayers, Past and Present, 1978.
[ARENA] Chiang et al., Chatbot Arena, arXiv 2403.04132: Bradley-Terry with a bootstrap over games.

Deviations
1. Elo's own update depends on the order of the games, which judgements do not have. The ratings are
   those at which it would rest: the maximum of the Bradley-Terry likelihood [ARENA].
2. A tie is half a win for each side, as in chess.
3. A player who won, or lost, all games would have an infinite rating. `prior` adds that many ties
   between any two players, games or none: with it every rating is finite, and close together where
   games are few. 0 is the plain maximum.
4. Where every player answers every prompt, the games on a prompt share their answers. Drawn one by
   one they would pass for independent, and intervals come out too narrow: `clusters` keeps them
   together. [ARENA] has a prompt for each game.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from trimtab.models.functional.checks import ShapeError, require_floating, require_shape
from trimtab.models.statistics.bootstrap import percentile_ends

ELO_SCALE = 400.0 / math.log(10.0)
ELO_MEAN = 1000.0
_MAX_STEPS = 100
_TOLERANCE = 1e-10


def bradley_terry_loss(strength: Tensor, wins: Tensor) -> Tensor:
    """Negative log-likelihood of games under log-strengths [BT; MM eq. 1].

    L = -sum_ij w_ij log sigmoid(s_i - s_j).

    strength: (P,), log-strengths, nats. wins: (P, P), w_ij = games that i won against j, ties half
    each, not negative; the diagonal plays no part in where the minimum is.
    Returns a scalar, nats. Raises ShapeError for other shapes.
    """
    _require_games("bradley_terry_loss", wins, strength)
    gap = strength[:, None] - strength[None, :]
    return -(wins * F.logsigmoid(gap)).sum()


def bradley_terry_ratings(wins: Tensor, prior: float = 0.1) -> Tensor:
    """The ratings that make games likeliest, on Elo's scale [BT; ELO; ARENA].

    The minimum of `bradley_terry_loss` with `prior` ties added between any two (deviation 3), by
    Newton steps that are halved while they do not descend; rating = 1000 + 400 / ln 10 (s_i - mean
    of s), so that 400 points are odds of 10 to 1.

    wins: (P, P), P >= 2, as in `bradley_terry_loss`. prior: not negative.
    Returns (P,) float64, mean 1000.
    Raises ShapeError for other shapes, ValueError for a negative prior or count, and where without
    a prior no finite ratings are likeliest (somebody never won, lost or met the others).
    """
    _require_games("bradley_terry_ratings", wins)
    if not prior >= 0 or not bool((wins >= 0).all()):
        raise ValueError("bradley_terry_ratings: wins and prior must not be negative")
    games = wins.detach().double().clone().fill_diagonal_(0.0)
    games += prior / 2 * (1 - torch.eye(len(games), dtype=games.dtype, device=games.device))
    if not _all_reach_all(games > 0):
        raise ValueError(
            "bradley_terry_ratings: some players never lost to, or never met, the others, so that "
            "no finite ratings are likeliest; give a prior above 0"
        )
    strength = _minimum(games)
    return ELO_MEAN + ELO_SCALE * (strength - strength.mean())


def rating_intervals(
    games: Tensor,
    num_players: int,
    *,
    clusters: Tensor | None = None,
    prior: float = 0.1,
    num_resamples: int,
    seed: int,
    level: float = 0.95,
) -> tuple[Tensor, Tensor, Tensor]:
    """Ratings with percentile bootstrap intervals over games [ARENA section 4.1].

    games: (N, 3), for each game the indices of two players and the first one's outcome: 1 won, 0
    tied, -1 lost; whole numbers. num_players: P >= 2. clusters: (N,) long, 0 to C - 1, each with a
    game: those of a cluster are drawn together (deviation 4); None: each by itself. prior: above 0,
    as resamples may leave anybody without a loss. num_resamples: at least 1. seed: determines the
    resamples; the global random state is neither read nor advanced. level: in (0, 1).
    Returns ratings, low, high: (P,) float64 each, Elo.
    Raises ShapeError for other shapes, ValueError for an option or an index out of range.
    """
    if not (prior > 0 and num_resamples >= 1 and 0 < level < 1):
        raise ValueError(
            "rating_intervals: prior must be above 0, num_resamples at least 1 and level in "
            f"(0, 1), found {prior}, {num_resamples} and {level}"
        )
    _require_results(games, num_players, clusters)
    generator = torch.Generator("cpu").manual_seed(seed)
    count = len(games) if clusters is None else int(clusters.max()) + 1
    resampled = []
    for _ in range(num_resamples):
        index = torch.randint(count, (count,), generator=generator, device="cpu").to(games.device)
        times = torch.bincount(index, minlength=count).double()
        drawn = wins_of(games, num_players, times if clusters is None else times[clusters])
        resampled.append(bradley_terry_ratings(drawn, prior))
    low, high = percentile_ends(torch.stack(resampled), (1 - level) / 2)
    return bradley_terry_ratings(wins_of(games, num_players), prior), low, high


def _require_results(games: Tensor, num_players: int, clusters: Tensor | None) -> None:
    """Require games and clusters as `rating_intervals` takes them."""
    require_shape("rating_intervals", 2, games=games)
    if games.shape[1] != 3 or games.is_floating_point():
        raise ShapeError(
            f"rating_intervals: games must be whole numbers (N, 3), found {games.dtype} "
            f"{tuple(games.shape)}"
        )
    if clusters is not None and clusters.shape != games.shape[:1]:
        raise ShapeError(
            f"rating_intervals: clusters must be ({len(games)},), found {tuple(clusters.shape)}"
        )
    players, outcome = games[:, :2], games[:, 2]
    if not bool(((players >= 0) & (players < num_players)).all() and (outcome.abs() <= 1).all()):
        raise ValueError(
            f"rating_intervals: players must be in [0, {num_players}), outcomes -1, 0 or 1"
        )


def wins_of(games: Tensor, num_players: int, times: Tensor | None = None) -> Tensor:
    """(P, P) float64: how often each player won against each other, ties half each.

    games: (N, 3) as in `rating_intervals`. times: (N,) float64, how often each counts; None: once.
    """
    first, second, outcome = games.unbind(1)
    times = torch.ones_like(outcome, dtype=torch.float64) if times is None else times
    share = (outcome.double() + 1) / 2 * times
    wins = torch.zeros(num_players, num_players, dtype=torch.float64, device=games.device)
    wins.index_put_((first, second), share, accumulate=True)
    wins.index_put_((second, first), times - share, accumulate=True)
    return wins


def _minimum(games: Tensor) -> Tensor:
    """(P,), log-strengths of mean 0 at the minimum of `bradley_terry_loss`."""

    def newton_step(strength: Tensor) -> Tensor:
        gap = strength[:, None] - strength[None, :]
        gradient = -(games * torch.sigmoid(-gap)).sum(1) + (games.T * torch.sigmoid(gap)).sum(1)
        curvature = (games + games.T) * torch.sigmoid(gap) * torch.sigmoid(-gap)
        # Ones added: the likelihood does not change when all strengths move together.
        hessian = torch.diag(curvature.sum(1)) - curvature + 1.0
        return torch.linalg.solve(hessian, gradient)

    strength = torch.zeros(len(games), dtype=games.dtype, device=games.device)
    strength = descend(strength, lambda at: bradley_terry_loss(at, games), newton_step)
    return strength - strength.mean()


def descend(
    at: Tensor, loss_of: Callable[[Tensor], Tensor], newton_step: Callable[[Tensor], Tensor]
) -> Tensor:
    """Where a convex loss is least: Newton steps from `at`, halved while they do not descend."""
    loss = loss_of(at)
    for _ in range(_MAX_STEPS):
        step = newton_step(at)
        while True:
            moved = loss_of(at - step)
            if moved <= loss or step.abs().max() < _TOLERANCE:
                break
            step = step / 2
        at, loss = at - step, moved
        if step.abs().max() < _TOLERANCE:
            break
    return at


def _all_reach_all(beats: Tensor) -> bool:
    """Whether every player is reached from every other along victories [MM assumption 1]."""
    reach = beats | torch.eye(len(beats), dtype=torch.bool, device=beats.device)
    for _ in range(len(beats).bit_length()):
        reach = (reach.double() @ reach.double()) > 0
    return bool(reach.all())


def _require_games(where: str, wins: Tensor, strength: Tensor | None = None) -> None:
    require_shape(where, 2, wins=wins)
    require_floating(where, wins=wins, strength=strength)
    if wins.shape[0] != wins.shape[1] or wins.shape[0] < 2:
        raise ShapeError(
            f"{where}: wins must be (P, P) with P of 2 or more, found {tuple(wins.shape)}"
        )
    if strength is not None and strength.shape != wins.shape[:1]:
        raise ShapeError(
            f"{where}: strength must be ({wins.shape[0]},), found {tuple(strength.shape)}"
        )
