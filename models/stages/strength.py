"""Stage `strength`: the ensemble's vote on every pair [RM eq. 4]."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trimtab.models.config.reward import StrengthConfig
from trimtab.models.functional.strength import calibrated_strength, preference_strength
from trimtab.models.training.data import read_rows, write_rows
from trimtab.models.training.progress import write_json


def run(config: StrengthConfig, inputs: dict[str, Path], workdir: Path) -> None:
    """Inputs: `member_0` ... `member_{M-1}` (scores.jsonl). Output: strength.jsonl of all splits.

    In sample every member votes on every pair; cross-fitted, only those never trained on it.
    num_for and num_against: members that prefer the answer labelled better, and worse.
    Calibrated, members of any kind are weighted by what they tell of the training labels; where
    labels were planted, that is told for them as for all others, and strength.jsonl says which.
    """
    members = [
        read_rows(inputs[name] / "scores.jsonl")
        for name in sorted(inputs, key=lambda name: int(name.removeprefix("member_")))
    ]
    first = members[0]
    identifiers = [row["id"] for row in first]
    if any([row["id"] for row in member] != identifiers for member in members):
        raise ValueError("ensemble members scored different pairs; they must share one dataset")
    differences = torch.tensor(
        [[row["chosen_score"] - row["rejected_score"] for row in member] for member in members],
        dtype=torch.float64,
    )
    counted = torch.ones(differences.shape, dtype=torch.bool)
    if config.mode == "cross_fitted":
        counted = ~torch.tensor([[row["was_trained_on"] for row in member] for member in members])
    in_training = torch.tensor([row["split"] == "train" for row in first])
    weights: dict[str, float] = {}
    if config.mode == "calibrated":
        mean, std, found = calibrated_strength(differences, in_training)
        weights = {f"weight_{index}": weight for index, weight in enumerate(found.tolist())}
    else:
        mean, std = preference_strength(differences, counted)
    write_rows(workdir / "output" / "strength.jsonl", _rows(first, mean, std, differences, counted))
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


def _rows(
    pairs: Sequence[dict[str, Any]],
    mean: Tensor,
    std: Tensor,
    differences: Tensor,
    counted: Tensor,
) -> Iterator[dict[str, Any]]:
    """strength.jsonl, of pairs as a member scored them. differences, counted: (M, N)."""
    columns = zip(
        pairs,
        mean.tolist(),
        std.tolist(),
        counted.sum(0).tolist(),
        (counted & (differences > 0)).sum(0).tolist(),
        (counted & (differences < 0)).sum(0).tolist(),
        strict=True,
    )
    for row, mu, sigma, votes, favour, against in columns:
        yield {
            "id": row["id"],
            "split": row["split"],
            "strength_mean": mu,
            "strength_std": sigma,
            "num_members": votes,
            "num_for": favour,
            "num_against": against,
            **({"is_planted": row["is_planted"]} if "is_planted" in row else {}),
        }
