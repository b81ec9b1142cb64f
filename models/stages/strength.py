"""Stage `strength`: the ensemble's vote on every pair [RM eq. 4]."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from trimtab.models.config.reward import StrengthConfig
from trimtab.models.functional.strength import calibrated_strength, preference_strength
from trimtab.models.training.data import read_rows, write_rows
from trimtab.models.training.progress import write_json


def run(config: StrengthConfig, inputs: dict[str, Path], workdir: Path) -> None:
    """Inputs: `member_0` ... `member_{M-1}` (scores.jsonl). Output: strength.jsonl of all splits.

    In sample every member votes on every pair; cross-fitted, only those never trained on it.
    num_for and num_against: members that prefer the answer labelled better, and worse.
    Calibrated, members of any kind are weighted by what they tell of the training labels, and one
    whose scores are null, or that was trained on the pair, abstains. Where members say that they
    learned from a copy with labels turned round on purpose (`is_planted`), their weights are found
    on that copy, strength.jsonl says which labels, and the other members, who learned from no
    label, score the copy as it is: the difference of a pair turned round changes its sign.
    """
    members = [
        read_rows(inputs[name] / "scores.jsonl")
        for name in sorted(inputs, key=lambda name: int(name.removeprefix("member_")))
    ]
    first = members[0]
    identifiers = [row["id"] for row in first]
    if any([row["id"] for row in member] != identifiers for member in members):
        raise ValueError("ensemble members scored different pairs; they must share one dataset")
    planted = next(
        ([row["is_planted"] for row in rows] for rows in members if "is_planted" in rows[0]), None
    )
    differences = torch.tensor(
        [_differences(rows, planted) for rows in members], dtype=torch.float64
    )
    counted = torch.tensor([[row["chosen_score"] is not None for row in rows] for rows in members])
    if config.mode != "in_sample":
        counted &= ~torch.tensor([[row["was_trained_on"] for row in member] for member in members])
    in_training = torch.tensor([row["split"] == "train" for row in first])
    weights: dict[str, float] = {}
    if config.mode == "calibrated":
        mean, std, found = calibrated_strength(differences, in_training, counted)
        weights = {f"weight_{index}": weight for index, weight in enumerate(found.tolist())}
    else:
        mean, std = preference_strength(differences, counted)
    values = {
        "strength_mean": mean,
        "strength_std": std,
        "num_members": counted.sum(0),
        "num_for": (counted & (differences > 0)).sum(0),
        "num_against": (counted & (differences < 0)).sum(0),
        **({"is_planted": torch.tensor(planted)} if planted else {}),
    }
    columns = zip(*(each.tolist() for each in values.values()), strict=True)
    voted = (
        {"id": row["id"], "split": row["split"], **dict(zip(values, own, strict=True))}
        for row, own in zip(first, columns, strict=True)
    )
    write_rows(workdir / "output" / "strength.jsonl", voted)
    write_json(
        workdir / "output" / "summary.json",
        {
            "num_members": len(members),
            "share_negative": float((mean[in_training] < 0).double().mean()),
            "strength_mean": float(mean[in_training].mean()),
            "strength_std": float(std[in_training].mean()),
            **weights,
        },
    )


def _differences(rows: list[dict[str, Any]], planted: list[bool] | None) -> list[float]:
    """A member's score differences, 0 where it abstains; `planted`: of the labels turned round."""
    found = [
        0.0 if row["chosen_score"] is None else row["chosen_score"] - row["rejected_score"]
        for row in rows
    ]
    if planted is None or "is_planted" in rows[0]:
        return found
    return [-own if is_turned else own for own, is_turned in zip(found, planted, strict=True)]
