"""The answers of all policies of several seeds, and who wins on each prompt by all who judge,
from scores or as a judge model has said.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from trimtab.models.data.records import read_rows
from trimtab.models.reporting.kit.artifacts import ReportInputError, Row
from trimtab.models.statistics.win_rates import outcome_matrix

HELD_OUT_MEAN = "judge_score"
MEASURES = ("gold", HELD_OUT_MEAN)  # who decides, the first that there is
SFT = "sft"
# Promotion is decided on these prompts, so that they are not judged here as well.
PROMOTION_SET = "validation"


@dataclass(frozen=True)
class Answers:
    """P policies' answers to one set of prompts, N of them over all seeds.

    policies: names, SFT first. seeds: (N,) long, the index of each prompt's seed; each seed's
    prompts stand as in its files. categories: N, of the prompts that have one.
    scores: by judge (P, N): `gold`, where it is known, `judge_score`, the mean of the held-out
    reward models, and each of these where they are several. kl: (P, N), nats to SFT. length:
    (P, N), tokens.
    """

    policies: list[str]
    seeds: Tensor
    categories: list[str | None]
    scores: dict[str, Tensor]
    kl: Tensor
    length: Tensor


def read_answers(evaluations: Mapping[int, Mapping[str, Path]]) -> dict[str, Answers]:
    """The answers by set of prompts; evaluations: by seed and policy the artifact's folder.

    Only one policy's texts are in memory at a time. Raises ReportInputError where
    seeds have other policies or measures, or policies other prompts.
    """
    policies = sorted(next(iter(evaluations.values())), key=lambda name: (name != SFT, name))
    columns: dict[str, dict[str, list[list[float]]]] = {}
    seeds: dict[str, list[int]] = {}
    categories: dict[str, list[str | None]] = {}
    for seed_index, (seed, folders) in enumerate(evaluations.items()):
        if set(folders) != set(policies):
            raise ReportInputError(
                f"seed {seed} has the policies {sorted(folders)}, the first seed {policies}"
            )
        expected: dict[str, list[tuple[str, str | None]]] = {}
        for policy_index, policy in enumerate(policies):
            by_set = rows_by_set(folders[policy] / "responses.jsonl")
            prompts = {
                name: [(row["prompt"], row.get("category")) for row in rows]
                for name, rows in by_set.items()
            }
            expected = expected or prompts
            if prompts != expected:
                raise ReportInputError(
                    f"{policy} of seed {seed} answered other prompts than SFT did"
                )
            for name, rows in by_set.items():
                for measure in _measures(rows[0]):
                    values = columns.setdefault(name, {}).setdefault(
                        measure, [[] for _ in policies]
                    )
                    values[policy_index] += [float(row[measure]) for row in rows]
        for name, prompts_of_set in expected.items():
            seeds.setdefault(name, []).extend([seed_index] * len(prompts_of_set))
            categories.setdefault(name, []).extend(category for _, category in prompts_of_set)
    return {
        name: _answers(policies, seeds[name], categories[name], values)
        for name, values in columns.items()
        if name != PROMOTION_SET
    }


def rows_by_set(path: Path) -> dict[str, list[Row]]:
    """The rows of a JSON-lines file by the set of prompts that they are on."""
    rows: dict[str, list[Row]] = {}
    for row in read_rows(path):
        rows.setdefault(row["set"], []).append(row)
    return rows


def _measures(row: Row) -> list[str]:
    """What a row has been measured by: gold, held-out reward models, KL and length."""
    heldout = sorted(name for name in row if name.startswith("judge_") and name != HELD_OUT_MEAN)
    several = heldout if len(heldout) > 1 else []  # one is its own mean
    return [*(name for name in MEASURES if name in row), *several, "kl", "length"]


def _answers(
    policies: list[str],
    seeds: list[int],
    categories: list[str | None],
    columns: Mapping[str, list[list[float]]],
) -> Answers:
    short = [name for name, rows in columns.items() if {len(row) for row in rows} != {len(seeds)}]
    if short:
        raise ReportInputError(f"only some of the policies or seeds have {', '.join(short)}")
    scores = {name: torch.tensor(rows, dtype=torch.float64) for name, rows in columns.items()}
    kl, length = scores.pop("kl"), scores.pop("length")
    return Answers(policies, torch.tensor(seeds), categories, scores, kl, length)


@dataclass(frozen=True)
class Outcomes:
    """Every two policies on n of the N prompts of a set, by one judge.

    decided_by: a judge model or the name of a score. prompt_index: (n,) long, ascending, into the
    set's N prompts. outcome: (P, P, n) int8, 1, 0 or -1, as `outcome_matrix`.
    """

    decided_by: str
    prompt_index: Tensor
    outcome: Tensor


def outcomes_by_scores(answers: Answers, tie_margin: float) -> list[Outcomes]:
    """Of every measure of the answers; all prompts."""
    prompt_index = torch.arange(len(answers.seeds))
    return [
        Outcomes(measure, prompt_index, outcome_matrix(scores, tie_margin))
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
    judged_seeds = {row["seed"] for row in rows}
    if name not in answers or not judged_seeds <= set(seeds):
        raise ReportInputError(
            f"the judge {judge} has judged the set {name!r} of seeds {sorted(judged_seeds)}; found "
            f"are answers to {sorted(answers)} of seeds {list(seeds)}"
        )
    policies, seed_of = answers[name].policies, answers[name].seeds
    judged = {row[side] for row in rows for side in ("ours", "theirs")}
    if judged != set(policies):
        raise ReportInputError(
            f"the judge {judge} has judged the policies {sorted(judged)}, found are answers of "
            f"{policies}"
        )
    starts = {seed: int((seed_of < index).sum()) for index, seed in enumerate(seeds)}
    indices = torch.tensor([starts[row["seed"]] + row["place"] for row in rows])
    prompt_index, column = indices.unique(return_inverse=True)
    if len(rows) != len(prompt_index) * len(policies) * (len(policies) - 1) // 2:
        raise ReportInputError(f"the judge {judge} has not judged every pair on every prompt")
    ours, theirs = (
        torch.tensor([policies.index(row[side]) for row in rows]) for side in ("ours", "theirs")
    )
    verdict = torch.tensor([row["verdict"] for row in rows], dtype=torch.int8)
    outcome = torch.zeros(len(policies), len(policies), len(prompt_index), dtype=torch.int8)
    outcome[ours, theirs, column] = verdict
    outcome[theirs, ours, column] = -verdict
    return Outcomes(judge, prompt_index, outcome)
