"""Every two policies judged: outcomes, ratings, agreement of judges, win rates at equal length."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Any

import torch
from torch import Tensor

from models.comparison.answers import MEAN, MEASURES, START, Answers
from models.comparison.config import WinMatrixConfig
from models.comparison.spread import Bootstrap, Spread
from models.functional.judgement import outcome_matrix
from models.functional.length_control import length_controlled_win_rate
from models.functional.ratings import bradley_terry_ratings, rating_intervals, wins_of
from models.functional.verdicts import cohen_kappa
from models.report.artifacts import ReportInputError

MAIN = "main"
# A regression a resample: fewer than of means.
NUM_REGRESSIONS = 200


@dataclass(frozen=True)
class Duel:
    """One policy against another on a set of prompts, by one judge.

    win, tie, lose: shares; net: wins less losses.
    """

    place: str
    judge: str
    ours: str
    theirs: str
    win: Spread
    tie: Spread
    lose: Spread
    net: Spread


@dataclass(frozen=True)
class Measured:
    """A policy's answers to a set of prompts: a mean by name (gold, judge_score, kl, length)."""

    place: str
    policy: str
    means: dict[str, Spread]


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


@dataclass(frozen=True)
class Agreement:
    """Two judges on all games on main prompts: share of equal verdicts, and Cohen's kappa.

    The mean of the held-out judges is held against gold only, as it is made of the others.
    kappa is None where both give one verdict throughout.
    """

    first: str
    second: str
    num_games: int
    share: float
    kappa: float | None


@dataclass(frozen=True)
class WinMatrix:
    """All of it. duels: every two policies, in both orders."""

    policies: list[str]
    judges: list[str]
    duels: list[Duel]
    measured: list[Measured]
    rated: list[Rated]
    agreements: list[Agreement]

    def to_json(self) -> dict[str, Any]:
        """Plain values that `json.dumps` takes."""
        return asdict(self)

    @staticmethod
    def from_json(values: Mapping[str, Any]) -> WinMatrix:
        """The inverse of `to_json`."""
        return WinMatrix(
            policies=values["policies"],
            judges=values["judges"],
            duels=[Duel(**_with_spreads(row)) for row in values["duels"]],
            measured=[
                Measured(row["place"], row["policy"], _with_spreads(row["means"]))
                for row in values["measured"]
            ],
            rated=[Rated(**_with_spreads(row)) for row in values["rated"]],
            agreements=[Agreement(**row) for row in values["agreements"]],
        )


def _with_spreads(row: Mapping[str, Any]) -> dict[str, Any]:
    return {k: Spread(**v) if isinstance(v, dict) else v for k, v in row.items()}


def judge_all(answers: Mapping[str, Answers], config: WinMatrixConfig) -> WinMatrix:
    """Judge every two policies on every set. Raises ReportInputError without main prompts."""
    if MAIN not in answers:
        raise ReportInputError(f"no answers to the set {MAIN!r}; found {sorted(answers)}")
    duels, measured = [], []
    for place, found in answers.items():
        bootstrap = Bootstrap(found.seeds, config.num_resamples, config.seed)
        for judge in _decisive(found):
            outcomes = outcome_matrix(found.scores[judge], config.tie_margin)
            duels += _duels(place, judge, found.policies, outcomes, bootstrap)
        measured += _measured(place, found, bootstrap)
    main = answers[MAIN]
    rated, agreements = _on_main(main, config)
    return WinMatrix(main.policies, _decisive(main), duels, measured, rated, agreements)


def _decisive(answers: Answers) -> list[str]:
    return [name for name in MEASURES if name in answers.scores]


def _duels(
    place: str, judge: str, policies: list[str], outcomes: Tensor, bootstrap: Bootstrap
) -> list[Duel]:
    """outcomes: (P, P, N)."""
    found = []
    for i, ours in enumerate(policies):
        others = [j for j in range(len(policies)) if j != i]
        won = outcomes[i, others]
        shares = [bootstrap.means(values) for values in (won == 1, won == 0, won == -1, won)]
        for j, *spreads in zip(others, *shares, strict=True):
            found.append(Duel(place, judge, ours, policies[j], *spreads))
    return found


def _measured(place: str, answers: Answers, bootstrap: Bootstrap) -> list[Measured]:
    values = {name: answers.scores[name] for name in _decisive(answers)}
    values |= {"kl": answers.kl, "length": answers.length}
    means = {name: bootstrap.means(rows) for name, rows in values.items()}
    return [
        Measured(place, policy, {name: rows[index] for name, rows in means.items()})
        for index, policy in enumerate(answers.policies)
    ]


def _on_main(answers: Answers, config: WinMatrixConfig) -> tuple[list[Rated], list[Agreement]]:
    """Ratings, win rates at equal length, and who agrees with whom."""
    bootstrap = Bootstrap(answers.seeds, config.num_resamples, config.seed)
    verdicts, rated = {}, []
    for judge, scores in answers.scores.items():
        outcomes = outcome_matrix(scores, config.tie_margin)
        games, prompts = _games(outcomes)
        verdicts[judge] = games[:, 2]
        if judge in MEASURES:
            ratings = _ratings(games, prompts, answers, config)
            rated += _rated(judge, answers, outcomes, ratings, bootstrap)
    agreements = []
    for first, second in combinations(verdicts, 2):
        if first == MEAN:  # of which the second is a part
            continue
        share, kappa = cohen_kappa(verdicts[first], verdicts[second])
        known = None if bool(kappa.isnan()) else float(kappa)
        agreements.append(Agreement(first, second, len(verdicts[first]), float(share), known))
    return rated, agreements


def _games(outcomes: Tensor) -> tuple[Tensor, Tensor]:
    """Games (M, 3) of every two policies once, and the prompt (M,) that each is on."""
    count, _, num_prompts = outcomes.shape
    first, second = torch.triu_indices(count, count, offset=1)
    pairs = torch.stack([first, second], 1).repeat_interleave(num_prompts, 0)
    won = outcomes[first, second].reshape(-1, 1).long()
    return torch.cat([pairs, won], 1), torch.arange(num_prompts).repeat(len(first))


def _ratings(
    games: Tensor, prompts: Tensor, answers: Answers, config: WinMatrixConfig
) -> list[Spread]:
    count = len(answers.policies)
    middle, low, high = rating_intervals(
        games, count, clusters=prompts, num_resamples=config.num_resamples, seed=config.seed
    )
    of_game = answers.seeds[prompts]
    by_seed = torch.stack(
        [
            bradley_terry_ratings(wins_of(games[of_game == seed], count), 0.1)
            for seed in range(int(answers.seeds.max()) + 1)
        ],
        1,
    )
    columns = zip(middle.tolist(), low.tolist(), high.tolist(), by_seed.tolist(), strict=True)
    return [Spread(*row) for row in columns]


def _rated(
    judge: str, answers: Answers, outcomes: Tensor, ratings: list[Spread], bootstrap: Bootstrap
) -> list[Rated]:
    start = answers.policies.index(START)
    found = []
    for index, (policy, rating) in enumerate(zip(answers.policies, ratings, strict=True)):
        if policy == START:
            found.append(Rated(judge, policy, rating, None, None, None))
            continue
        won = (outcomes[index, start].double() + 1) / 2
        longer = answers.length[index] - answers.length[start]

        def controlled(places: Tensor, won: Tensor = won, longer: Tensor = longer) -> float:
            return float(length_controlled_win_rate(won[places], longer[places])[0])

        _, effect = length_controlled_win_rate(won, longer)
        found.append(
            Rated(
                judge,
                policy,
                rating,
                bootstrap.means(won[None])[0],
                bootstrap.spread(controlled, NUM_REGRESSIONS),
                float(effect["length_effect"]),
            )
        )
    return found
