"""Ratings on Elo's scale, and win rates at equal length, by one judge on the main prompts."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from trimtab.models.config.reporting import WinMatrixConfig
from trimtab.models.reporting.compare.answers import START, Answers
from trimtab.models.reporting.compare.outcomes import Outcomes
from trimtab.models.statistics.bootstrap import Bootstrap
from trimtab.models.statistics.bradley_terry import bradley_terry_ratings, rating_intervals, wins_of
from trimtab.models.statistics.length_control import length_controlled_win_rate
from trimtab.models.statistics.measured import Spread

# A regression a resample: fewer than of means.
NUM_REGRESSIONS = 200


@dataclass(frozen=True)
class Rated:
    """A policy's Bradley-Terry rating on Elo's scale by one judge, from all games on main prompts.

    controlled: its win rate against SFT were both answers equally long, plain: with ties as half;
    length_effect: in logits, above 0 where the longer answer wins. None for SFT.
    """

    judge: str
    policy: str
    rating: Spread
    plain: Spread | None
    controlled: Spread | None
    length_effect: float | None


def rate(judged: Outcomes, answers: Answers, config: WinMatrixConfig) -> list[Rated]:
    """Every policy, by what one judge says of the prompts it has judged."""
    seeds = answers.seeds[judged.at]
    bootstrap = Bootstrap(seeds, config.num_resamples, config.seed)
    ratings = _ratings(judged.won, seeds, config)
    start = answers.policies.index(START)
    found = []
    for index, (policy, rating) in enumerate(zip(answers.policies, ratings, strict=True)):
        if policy == START:
            found.append(Rated(judged.judge, policy, rating, None, None, None))
            continue
        outcomes = judged.won[index, start]
        won = (outcomes.double() + 1) / 2
        longer = (answers.length[index] - answers.length[start])[judged.at]

        def controlled(places: Tensor, won: Tensor = won, longer: Tensor = longer) -> float:
            return float(length_controlled_win_rate(won[places], longer[places])[0])

        _, effect = length_controlled_win_rate(won, longer)
        found.append(
            Rated(
                judged.judge,
                policy,
                rating,
                _ties_as_half(bootstrap.nets(outcomes[None])[0]),
                bootstrap.spread(controlled, NUM_REGRESSIONS),
                float(effect["length_effect"]),
            )
        )
    return found


def _ties_as_half(net: Spread) -> Spread:
    """Wins, with ties as half, of wins less losses."""
    low, value, high = ((each + 1) / 2 for each in (net.low, net.value, net.high))
    return Spread(value, low, high, [(each + 1) / 2 for each in net.by_seed])


def _ratings(won: Tensor, seeds: Tensor, config: WinMatrixConfig) -> list[Spread]:
    count = len(won)
    games, prompts = _games(won)
    middle, low, high = rating_intervals(
        games, count, clusters=prompts, num_resamples=config.num_resamples, seed=config.seed
    )
    of_game = seeds[prompts]
    by_seed = torch.stack(
        [
            bradley_terry_ratings(wins_of(games[of_game == seed], count), 0.1)
            for seed in seeds.unique()
        ],
        1,
    )
    columns = zip(middle.tolist(), low.tolist(), high.tolist(), by_seed.tolist(), strict=True)
    return [Spread(*row) for row in columns]


def _games(outcomes: Tensor) -> tuple[Tensor, Tensor]:
    """Games (M, 3) of every two policies once, and the prompt (M,) that each is on."""
    count, _, num_prompts = outcomes.shape
    first, second = torch.triu_indices(count, count, offset=1)
    pairs = torch.stack([first, second], 1).repeat_interleave(num_prompts, 0)
    won = outcomes[first, second].reshape(-1, 1).long()
    return torch.cat([pairs, won], 1), torch.arange(num_prompts).repeat(len(first))
