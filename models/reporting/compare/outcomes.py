"""Who wins on each prompt, by everybody who judges: from scores, or as a judge model has said."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from trimtab.models.reporting.compare.answers import Answers, rows_by_set
from trimtab.models.reporting.kit.artifacts import ReportInputError, Row
from trimtab.models.statistics.win_rates import outcome_matrix


@dataclass(frozen=True)
class Outcomes:
    """Every two policies on n of the N prompts of a set, by one judge.

    at: (n,) long, rising, which prompts. won: (P, P, n) int8, 1, 0 or -1, as `outcome_matrix`.
    """

    judge: str
    at: Tensor
    won: Tensor


def outcomes_by_scores(answers: Answers, tie_margin: float) -> list[Outcomes]:
    """Of every measure of the answers; all prompts."""
    at = torch.arange(len(answers.seeds))
    return [
        Outcomes(measure, at, outcome_matrix(scores, tie_margin))
        for measure, scores in answers.scores.items()
    ]


def read_verdicts(
    judge: str, path: Path, answers: Mapping[str, Answers], seeds: Sequence[int]
) -> dict[str, Outcomes]:
    """What a judge model says, by set of prompts; path: of verdicts.jsonl.

    seeds: those of the answers, as these count them. Raises ReportInputError for verdicts on other
    policies, seeds or sets, and where a prompt lacks that on some pair.
    """
    return {
        name: _outcomes(judge, name, rows, answers, seeds)
        for name, rows in rows_by_set(path).items()
    }


def _outcomes(
    judge: str, name: str, rows: Sequence[Row], answers: Mapping[str, Answers], seeds: Sequence[int]
) -> Outcomes:
    asked = {row["seed"] for row in rows}
    if name not in answers or not asked <= set(seeds):
        raise ReportInputError(
            f"the judge {judge} has judged the set {name!r} of seeds {sorted(asked)}; found are "
            f"answers to {sorted(answers)} of seeds {list(seeds)}"
        )
    found = answers[name]
    judged = {row[side] for row in rows for side in ("ours", "theirs")}
    if judged != set(found.policies):
        raise ReportInputError(
            f"the judge {judge} has judged the policies {sorted(judged)}, found are answers of "
            f"{found.policies}"
        )
    starts = {seed: int((found.seeds < number).sum()) for number, seed in enumerate(seeds)}
    places = torch.tensor([starts[row["seed"]] + row["place"] for row in rows])
    at, column = places.unique(return_inverse=True)
    count = len(found.policies)
    if len(rows) != len(at) * count * (count - 1) // 2:
        raise ReportInputError(f"the judge {judge} has not judged every pair on every prompt")
    index = {policy: number for number, policy in enumerate(found.policies)}
    ours, theirs, verdict = (
        torch.tensor(values)
        for values in zip(
            *((index[row["ours"]], index[row["theirs"]], row["verdict"]) for row in rows),
            strict=True,
        )
    )
    won = torch.zeros(count, count, len(at), dtype=torch.int8)
    won[ours, theirs, column] = verdict.to(torch.int8)
    won[theirs, ours, column] = -verdict.to(torch.int8)
    return Outcomes(judge, at, won)
