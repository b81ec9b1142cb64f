"""How far those who judge agree, on every two policies' answers to the main prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import torch
from torch import Tensor

from trimtab.models.config.reporting import WinMatrixConfig
from trimtab.models.functional.verdicts import kappa_of_counts
from trimtab.models.reporting.compare.answers import MEAN, Answers
from trimtab.models.reporting.compare.outcomes import Outcomes
from trimtab.models.statistics.bootstrap import Bootstrap, percentile_ends
from trimtab.models.statistics.intervals import effective_count, wilson_interval
from trimtab.models.statistics.measured import Spread


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


def agreements(
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
            found.append(_agreement(first.judge, second.judge, tables, answers.seeds[at], config))
    return found


def _tables(first: Tensor, second: Tensor) -> Tensor:
    """(n, 3, 3) float64: how often each says what of the n prompts' games; won as in Outcomes."""
    count, _, num_prompts = first.shape
    ours, theirs = torch.triu_indices(count, count, offset=1)
    cell = 3 * (first[ours, theirs].long() + 1) + second[ours, theirs].long() + 1
    tables = torch.zeros(num_prompts, 9, dtype=torch.float64)
    tables.scatter_add_(1, cell.T, torch.ones(num_prompts, len(ours), dtype=torch.float64))
    return tables.reshape(num_prompts, 3, 3)


def _agreement(
    first: str, second: str, tables: Tensor, seeds: Tensor, config: WinMatrixConfig
) -> Agreement:
    bootstrap = Bootstrap(seeds, config.num_resamples, config.seed)
    resampled = kappa_of_counts((bootstrap.counts @ tables.reshape(-1, 9)).reshape(-1, 3, 3))
    whole = kappa_of_counts(tables.sum(0))
    by_seed = kappa_of_counts(torch.stack([tables[own].sum(0) for own in bootstrap.of_seed]))
    hits = tables.diagonal(dim1=1, dim2=2).sum(1)
    share = Spread(float(whole[0]), *_share_interval(hits, tables.sum((1, 2))), by_seed[0].tolist())
    kappa = _spread(whole[1], resampled[1], by_seed[1])
    num_games = round(float(tables.sum()))
    is_known = not bool(whole[1].isnan())
    return Agreement(first, second, num_games, share, kappa if is_known else None)


def _share_interval(hits: Tensor, games: Tensor) -> tuple[float, float]:
    """Of the share of games that are hits; those of a prompt, (n,) each, are a cluster."""
    prompts = torch.arange(len(hits)).repeat_interleave(games.long())
    place = torch.cat([torch.arange(number) for number in games.long().tolist()])
    verdicts = (place < hits[prompts]).double()
    share = float(verdicts.mean())
    return wilson_interval(share, effective_count(verdicts, prompts))


def _spread(value: Tensor, resampled: Tensor, by_seed: Tensor) -> Spread:
    low, high = percentile_ends(resampled).tolist()
    return Spread(float(value), low, high, by_seed[~by_seed.isnan()].tolist())
