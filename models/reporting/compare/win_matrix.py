"""Every two policies judged: outcomes, ratings, agreement of judges, win rates at equal length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from pydantic import TypeAdapter

from trimtab.models.config.reporting import WinMatrixConfig
from trimtab.models.reporting.compare.agreement import Agreement, agreements
from trimtab.models.reporting.compare.answers import MEASURES, START, Answers
from trimtab.models.reporting.compare.leaderboard import Rated, rate
from trimtab.models.reporting.compare.outcomes import Outcomes, by_scores
from trimtab.models.reporting.kit.artifacts import ReportInputError
from trimtab.models.statistics.bootstrap import Bootstrap
from trimtab.models.statistics.measured import Spread

MAIN = "main"
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
        _by_category(_shown(on_main), main, config),
        measured,
        [row for judged in _shown(on_main) for row in rate(judged, main, config)],
        agreements(on_main, main, config),
        dict(judge_models or {}),
    )


def _judged(
    place: str, answers: Answers, config: WinMatrixConfig, verdicts: Verdicts | None
) -> list[Outcomes]:
    return [*by_scores(answers, config.tie_margin), *(verdicts or {}).get(place, [])]


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


def _by_category(
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
