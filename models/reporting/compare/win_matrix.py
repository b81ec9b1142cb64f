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
    HELD_OUT_MEAN,
    MEASURES,
    SFT,
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

    def duels_on(self, place: str, judge: str) -> dict[tuple[str, str], Duel]:
        """By both policies' names."""
        return {(d.ours, d.theirs): d for d in self.duels if (d.place, d.judge) == (place, judge)}

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
    judged = {
        place: [*outcomes_by_scores(part, config.tie_margin), *(verdicts or {}).get(place, [])]
        for place, part in answers.items()
    }
    # The held-out reward models one by one count in agreement only.
    shown = {
        place: [
            o for o in outcomes if o.decided_by in MEASURES or not o.decided_by.startswith("judge_")
        ]
        for place, outcomes in judged.items()
    }
    duels, measured = [], []
    for place, part in answers.items():
        for outcomes in shown[place]:
            duels += _duels(place, outcomes, part, config)
        bootstrap = Bootstrap(part.seeds, config.num_resamples, config.seed)
        values = {name: part.scores[name] for name in MEASURES if name in part.scores}
        values |= {"kl": part.kl, "length": part.length}
        means = {name: bootstrap.means(rows) for name, rows in values.items()}
        for index, policy in enumerate(part.policies):
            of_policy = {name: rows[index] for name, rows in means.items()}
            measured.append(Measured(place, policy, of_policy))
    main = answers[MAIN]
    return WinMatrix(
        main.policies,
        [outcomes.decided_by for outcomes in shown[MAIN]],
        duels,
        _duels_by_category(shown[MAIN], main, config),
        measured,
        [rated for outcomes in shown[MAIN] for rated in _rate(outcomes, main, config)],
        _agreements(judged[MAIN], main, config),
        dict(judge_models or {}),
    )


def _duels(
    place: str,
    outcomes: Outcomes,
    answers: Answers,
    config: WinMatrixConfig,
    rivals: Sequence[str] = (),
) -> list[Duel]:
    """Every policy against every other, or against some `rivals` only."""
    bootstrap = Bootstrap(answers.seeds[outcomes.prompt_index], config.num_resamples, config.seed)
    duels, allowed = [], rivals or answers.policies
    for i, ours in enumerate(answers.policies):
        others = [j for j, theirs in enumerate(answers.policies) if j != i and theirs in allowed]
        if not others:
            continue
        won = outcomes.outcome[i, others]
        shares = [bootstrap.shares(won == outcome) for outcome in (1, 0, -1)]
        for j, *spreads in zip(others, *shares, bootstrap.nets(won), strict=True):
            duels.append(Duel(place, outcomes.decided_by, ours, answers.policies[j], *spreads))
    return duels


def _duels_by_category(
    judged: Sequence[Outcomes], answers: Answers, config: WinMatrixConfig
) -> dict[str, list[Duel]]:
    """Every policy against SFT on the main prompts of each category."""
    names = sorted({category for category in answers.categories if category is not None})
    duels: dict[str, list[Duel]] = {}
    for name in names if len(names) > 1 else []:
        of_category = torch.tensor([category == name for category in answers.categories])
        for outcomes in judged:
            is_in = of_category[outcomes.prompt_index]
            if bool(is_in.any()):
                at, outcome = outcomes.prompt_index[is_in], outcomes.outcome[..., is_in]
                part = Outcomes(outcomes.decided_by, at, outcome)
                duels.setdefault(name, []).extend(_duels(MAIN, part, answers, config, [SFT]))
    return duels


def _rate(outcomes: Outcomes, answers: Answers, config: WinMatrixConfig) -> list[Rated]:
    """Every policy, by what one judge says of the prompts it has judged."""
    seeds, judge = answers.seeds[outcomes.prompt_index], outcomes.decided_by
    bootstrap = Bootstrap(seeds, config.num_resamples, config.seed)
    start = answers.policies.index(SFT)
    ratings = []
    for index, rating in enumerate(_ratings(outcomes.outcome, seeds, config)):
        policy = answers.policies[index]
        if policy == SFT:
            ratings.append(Rated(judge, policy, rating, None, None, None))
            continue
        against_start = outcomes.outcome[index, start]
        won = (against_start.double() + 1) / 2
        longer = (answers.length[index] - answers.length[start])[outcomes.prompt_index]

        def controlled(places: Tensor, won: Tensor = won, longer: Tensor = longer) -> float:
            return float(length_controlled_win_rate(won[places], longer[places])[0])

        net = bootstrap.nets(against_start[None])[0]
        # Wins, with ties as half, of wins less losses.
        low, value, high = ((number + 1) / 2 for number in (net.low, net.value, net.high))
        plain = Spread(value, low, high, [(number + 1) / 2 for number in net.by_seed])
        rate = bootstrap.spread(controlled, NUM_REGRESSIONS)
        effect = float(length_controlled_win_rate(won, longer)[1]["length_effect"])
        ratings.append(Rated(judge, policy, rating, plain, rate, effect))
    return ratings


def _ratings(won: Tensor, seeds: Tensor, config: WinMatrixConfig) -> list[Spread]:
    count, _, num_prompts = won.shape
    # Games (M, 3) of every two policies once, and the prompt (M,) that each is on.
    first, second = torch.triu_indices(count, count, offset=1)
    pairs = torch.stack([first, second], 1).repeat_interleave(num_prompts, 0)
    games = torch.cat([pairs, won[first, second].reshape(-1, 1).long()], 1)
    prompts = torch.arange(num_prompts).repeat(len(first))
    middle, low, high = rating_intervals(
        games, count, clusters=prompts, num_resamples=config.num_resamples, seed=config.seed
    )
    by_seed = [
        bradley_terry_ratings(wins_of(games[seeds[prompts] == seed], count), 0.1)
        for seed in seeds.unique()
    ]
    columns = (middle.tolist(), low.tolist(), high.tolist(), torch.stack(by_seed, 1).tolist())
    return [Spread(*row) for row in zip(*columns, strict=True)]


def _agreements(
    judged: Sequence[Outcomes], answers: Answers, config: WinMatrixConfig
) -> list[Agreement]:
    """Every two who judge; not the mean of the held-out reward models and one that it is of."""
    agreements = []
    for first, second in combinations(judged, 2):
        names = first.decided_by, second.decided_by
        if names[0] == HELD_OUT_MEAN and names[1].startswith("judge_"):
            continue
        both = torch.isin(first.prompt_index, second.prompt_index)
        if bool(both.any()):
            at = first.prompt_index[both]
            theirs = second.outcome[..., torch.isin(second.prompt_index, at)]
            tables = _tables(first.outcome[..., both], theirs)
            share, kappa = _agreement(tables, answers.seeds[at], config)
            num_games = round(float(tables.sum()))
            agreements.append(Agreement(*names, num_games, share, kappa))
    return agreements


def _tables(first: Tensor, second: Tensor) -> Tensor:
    """(n, 3, 3) float64: how often each says what of the n prompts' games; as in Outcomes."""
    count, _, num_prompts = first.shape
    ours, theirs = torch.triu_indices(count, count, offset=1)
    cell = 3 * (first[ours, theirs].long() + 1) + second[ours, theirs].long() + 1
    tables = torch.zeros(num_prompts, 9, dtype=torch.float64)
    tables.scatter_add_(1, cell.T, torch.ones(num_prompts, len(ours), dtype=torch.float64))
    return tables.reshape(num_prompts, 3, 3)


def _agreement(
    tables: Tensor, seeds: Tensor, config: WinMatrixConfig
) -> tuple[Spread, Spread | None]:
    """The share of equal verdicts, and Cohen's kappa; tables as of `_tables`."""
    bootstrap = Bootstrap(seeds, config.num_resamples, config.seed)
    share, kappa = kappa_of_counts(tables.sum(0))
    shares, kappas = kappa_of_counts(
        torch.stack([tables[rows].sum(0) for rows in bootstrap.of_seed])
    )
    # Of the share of games that agree; those of a prompt are a cluster.
    games, hits = tables.sum((1, 2)).long(), tables.diagonal(dim1=1, dim2=2).sum(1)
    prompts = torch.arange(len(hits)).repeat_interleave(games)
    place = torch.cat([torch.arange(number) for number in games.tolist()])
    verdicts = (place < hits[prompts]).double()
    ends = wilson_interval(float(verdicts.mean()), effective_count(verdicts, prompts))
    of_share = Spread(float(share), *ends, shares.tolist())
    if bool(kappa.isnan()):
        return of_share, None
    resampled = kappa_of_counts((bootstrap.counts @ tables.reshape(-1, 9)).reshape(-1, 3, 3))
    low, high = percentile_ends(resampled[1]).tolist()
    return of_share, Spread(float(kappa), low, high, kappas[~kappas.isnan()].tolist())
