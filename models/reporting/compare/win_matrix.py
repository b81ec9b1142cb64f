"""Every two policies judged: outcomes, ratings, agreement of judges, win rates at equal length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Any

import torch
from pydantic import TypeAdapter
from torch import Tensor

from trimtab.models.config.reporting import WinMatrixConfig
from trimtab.models.functional.verdicts import kappa_of_counts
from trimtab.models.reporting.compare.answers import (
    MEAN,
    MEASURES,
    START,
    Answers,
    Outcomes,
    outcomes_by_scores,
)
from trimtab.models.reporting.kit.artifacts import ReportInputError
from trimtab.models.statistics.bootstrap import Bootstrap, percentile_ends
from trimtab.models.statistics.bradley_terry import bradley_terry_ratings, rating_intervals, wins_of
from trimtab.models.statistics.intervals import effective_count, wilson_interval
from trimtab.models.statistics.measured import Spread
from trimtab.models.statistics.win_rates import length_controlled_win_rate

MAIN = "main"
# A regression a resample: fewer than of means.
NUM_REGRESSIONS = 200
# By set of prompts, the outcomes by judge models.
Verdicts = Mapping[str, Sequence[Outcomes]]


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
    """Two judges on all games on the main prompts that both judged.

    share: of equal verdicts; kappa: Cohen's, None where both give one verdict throughout; seeds and
    resamples where they do are left out of it. Prompts are what intervals count or resample, as
    games on one share answers.
    """

    first: str
    second: str
    num_games: int
    share: Spread
    kappa: Spread | None


@dataclass(frozen=True)
class WinMatrix:
    """All of it. judges: those of the main prompts, who decides first; a judge model by its name.

    duels: every two policies, in both orders. by_category: of the main prompts of each category,
    where there are several, every policy against SFT. judge_models: by name, what each was asked
    and what that cost.
    """

    policies: list[str]
    judges: list[str]
    duels: list[Duel]
    by_category: dict[str, list[Duel]]
    measured: list[Measured]
    rated: list[Rated]
    agreements: list[Agreement]
    judge_models: dict[str, dict[str, Any]]

    def to_json(self) -> dict[str, Any]:
        """Plain values that `json.dumps` takes."""
        return asdict(self)

    @staticmethod
    def from_json(values: Mapping[str, Any]) -> WinMatrix:
        """The inverse of `to_json`."""
        return TypeAdapter(WinMatrix).validate_python(values)


def build_win_matrix(
    answers: Mapping[str, Answers],
    config: WinMatrixConfig,
    verdicts: Verdicts | None = None,
    judge_models: Mapping[str, dict[str, Any]] | None = None,
) -> WinMatrix:
    """Compare every two policies on every set. Raises ReportInputError without main prompts."""
    if MAIN not in answers:
        raise ReportInputError(f"no answers to the set {MAIN!r}; found {sorted(answers)}")
    duels, measured = [], []
    for place, found in answers.items():
        bootstrap = Bootstrap(found.seeds, config.num_resamples, config.seed)
        for judged in _shown(_judged(place, found, config, verdicts)):
            duels += _duels(place, judged, found, config)
        measured += _measured(place, found, bootstrap)
    main = answers[MAIN]
    on_main = _judged(MAIN, main, config, verdicts)
    return WinMatrix(
        main.policies,
        [judged.judge for judged in _shown(on_main)],
        duels,
        _compute_by_category(_shown(on_main), main, config),
        measured,
        [row for judged in _shown(on_main) for row in _rate(judged, main, config)],
        _agreements(on_main, main, config),
        dict(judge_models or {}),
    )


def _judged(
    place: str, answers: Answers, config: WinMatrixConfig, verdicts: Verdicts | None
) -> list[Outcomes]:
    return [*outcomes_by_scores(answers, config.tie_margin), *(verdicts or {}).get(place, [])]


def _shown(judged: Sequence[Outcomes]) -> list[Outcomes]:
    """Without the held-out reward models one by one, which count in agreement only."""
    return [
        each for each in judged if each.judge in MEASURES or not each.judge.startswith("judge_")
    ]


def _duels(
    place: str,
    judged: Outcomes,
    answers: Answers,
    config: WinMatrixConfig,
    rivals: Sequence[str] | None = None,
) -> list[Duel]:
    """Every policy against every other, or against some `rivals` only."""
    bootstrap = Bootstrap(answers.seeds[judged.at], config.num_resamples, config.seed)
    found = []
    for i, ours in enumerate(answers.policies):
        others = [
            j
            for j, theirs in enumerate(answers.policies)
            if j != i and (rivals is None or theirs in rivals)
        ]
        if not others:
            continue
        won = judged.won[i, others]
        shares = [bootstrap.shares(won == outcome) for outcome in (1, 0, -1)]
        for j, *spreads in zip(others, *shares, bootstrap.nets(won), strict=True):
            found.append(Duel(place, judged.judge, ours, answers.policies[j], *spreads))
    return found


def _compute_by_category(
    judged: Sequence[Outcomes], answers: Answers, config: WinMatrixConfig
) -> dict[str, list[Duel]]:
    """Every policy against SFT on the main prompts of each category."""
    names = sorted({category for category in answers.categories if category is not None})
    found: dict[str, list[Duel]] = {}
    for name in names if len(names) > 1 else []:
        of_category = torch.tensor([category == name for category in answers.categories])
        for each in judged:
            here = of_category[each.at]
            if bool(here.any()):
                part = Outcomes(each.judge, each.at[here], each.won[..., here])
                found.setdefault(name, []).extend(_duels(MAIN, part, answers, config, [START]))
    return found


def _measured(place: str, answers: Answers, bootstrap: Bootstrap) -> list[Measured]:
    values = {name: answers.scores[name] for name in MEASURES if name in answers.scores}
    values |= {"kl": answers.kl, "length": answers.length}
    means = {name: bootstrap.means(rows) for name, rows in values.items()}
    return [
        Measured(place, policy, {name: rows[index] for name, rows in means.items()})
        for index, policy in enumerate(answers.policies)
    ]


def _rate(judged: Outcomes, answers: Answers, config: WinMatrixConfig) -> list[Rated]:
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


def _agreements(
    judged: Sequence[Outcomes], answers: Answers, config: WinMatrixConfig
) -> list[Agreement]:
    """Every two who judge; not the mean of the held-out reward models and one that it is of."""
    found = []
    for first, second in combinations(judged, 2):
        if first.judge == MEAN and second.judge.startswith("judge_"):
            continue
        both = torch.isin(first.at, second.at)
        if bool(both.any()):
            at = first.at[both]
            tables = _tables(first.won[..., both], second.won[..., torch.isin(second.at, at)])
            found.append(
                _agreement_of(first.judge, second.judge, tables, answers.seeds[at], config)
            )
    return found


def _tables(first: Tensor, second: Tensor) -> Tensor:
    """(n, 3, 3) float64: how often each says what of the n prompts' games; won as in Outcomes."""
    count, _, num_prompts = first.shape
    ours, theirs = torch.triu_indices(count, count, offset=1)
    cell = 3 * (first[ours, theirs].long() + 1) + second[ours, theirs].long() + 1
    tables = torch.zeros(num_prompts, 9, dtype=torch.float64)
    tables.scatter_add_(1, cell.T, torch.ones(num_prompts, len(ours), dtype=torch.float64))
    return tables.reshape(num_prompts, 3, 3)


def _agreement_of(
    first: str, second: str, tables: Tensor, seeds: Tensor, config: WinMatrixConfig
) -> Agreement:
    bootstrap = Bootstrap(seeds, config.num_resamples, config.seed)
    resampled = kappa_of_counts((bootstrap.counts @ tables.reshape(-1, 9)).reshape(-1, 3, 3))
    whole = kappa_of_counts(tables.sum(0))
    by_seed = kappa_of_counts(torch.stack([tables[own].sum(0) for own in bootstrap.of_seed]))
    hits = tables.diagonal(dim1=1, dim2=2).sum(1)
    share = Spread(float(whole[0]), *_share_interval(hits, tables.sum((1, 2))), by_seed[0].tolist())
    kappa = None
    if not bool(whole[1].isnan()):
        low, high = percentile_ends(resampled[1]).tolist()
        kappa = Spread(float(whole[1]), low, high, by_seed[1][~by_seed[1].isnan()].tolist())
    return Agreement(first, second, round(float(tables.sum())), share, kappa)


def _share_interval(hits: Tensor, games: Tensor) -> tuple[float, float]:
    """Of the share of games that are hits; those of a prompt, (n,) each, are a cluster."""
    prompts = torch.arange(len(hits)).repeat_interleave(games.long())
    place = torch.cat([torch.arange(number) for number in games.long().tolist()])
    verdicts = (place < hits[prompts]).double()
    share = float(verdicts.mean())
    return wilson_interval(share, effective_count(verdicts, prompts))
