"""Stage `strength`: the ensemble's vote on every pair [RM eq. 4]."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from trimtab.models.config.reward import StrengthConfig
from trimtab.models.data.records import read_rows
from trimtab.models.functional.masked import masked_mean
from trimtab.models.functional.strength import calibrated_strength, preference_strength
from trimtab.models.training.data import with_columns
from trimtab.models.training.stage import Row, Stage


def run(config: StrengthConfig, stage: Stage) -> None:
    """Inputs: `member_0` ... `member_{M-1}` (scores.jsonl); calibrated, `preferences` for labels
    that are not certain. Output: strength.jsonl of all splits.

    In sample every member votes on every pair; cross-fitted, only those never trained on it.
    num_for and num_against: members that prefer the answer labelled better, and worse; calibrated,
    of those that have a weight.
    Calibrated, members of any kind are weighted by what they tell of the training labels, and one
    whose scores are null, or that was trained on the pair, abstains. Where members say that they
    learned from a copy with planted flips (`is_planted`), their weights are found
    on that copy, strength.jsonl says which labels, and the other members, who learned from no
    label, score the copy as it is: the difference of a flipped pair changes its sign.
    """
    members = _members(stage)
    first = members[0]
    identifiers = [row["id"] for row in first]
    planted, differences = _differences(members)
    counted = torch.tensor([[row["chosen_score"] is not None for row in rows] for rows in members])
    trained = torch.tensor([[row["was_trained_on"] for row in member] for member in members])
    if config.mode != "in_sample":
        counted &= ~trained
    in_training = torch.tensor([row["split"] == "train" for row in first])
    weights: dict[str, float] = {}
    says, speaks = differences, counted
    if config.mode == "calibrated":
        says, speaks = _merge_cross_fitted(differences, counted, trained.any(1))
        label = _labels(stage, identifiers)
        mean, std, by_member = calibrated_strength(says, in_training, speaks, label)
        weights = {f"weight_{index}": weight for index, weight in enumerate(by_member.tolist())}
        speaks = speaks & (by_member > 0)[:, None]
    else:
        mean, std = preference_strength(differences, counted)
    values: dict[str, Any] = {
        "strength_mean": mean,
        "strength_std": std,
        "num_members": counted.sum(0),
        "num_for": (speaks & (says > 0)).sum(0),
        "num_against": (speaks & (says < 0)).sum(0),
        **({"is_planted": planted} if planted else {}),
    }
    pairs = [{"id": row["id"], "split": row["split"]} for row in first]
    stage.write_rows("strength.jsonl", with_columns(pairs, values))
    stage.write_summary(
        {
            "num_members": len(members),
            "share_negative": float((mean[in_training] < 0).double().mean()),
            "strength_mean": float(mean[in_training].mean()),
            "strength_std": float(std[in_training].mean()),
            **weights,
        }
    )


def _members(stage: Stage) -> list[list[Row]]:
    """The members' scores in order; ValueError where they are of different pairs."""
    members = [read_rows(folder / "scores.jsonl") for folder in stage.several("member")]
    identifiers = [row["id"] for row in members[0]]
    if any([row["id"] for row in member] != identifiers for member in members):
        raise ValueError("ensemble members scored different pairs; they must share one dataset")
    return members


def _labels(stage: Stage, identifiers: list[str]) -> Tensor | None:
    """The probabilities (N,) that labels are right, where the preferences say."""
    if "preferences" not in stage.inputs:
        return None
    rows = stage.rows("preferences", "train.jsonl")
    label = {row["id"]: row["label"] for row in rows if "label" in row}
    return torch.tensor([label.get(name, 1.0) for name in identifiers], dtype=torch.float64)


def _merge_cross_fitted(
    differences: Tensor, counted: Tensor, is_part: Tensor
) -> tuple[Tensor, Tensor]:
    """Differences and votes (V, N) of the voters. Members (M,) that are parts of a cross-fitted
    voter, each trained on the others' pairs, become one voter, which stands last."""
    if not bool(is_part.any()):
        return differences, counted
    parts, votes = differences[is_part], counted[is_part]
    together = masked_mean(parts, votes, dim=0)  # of a training pair one part votes
    return (
        torch.cat([differences[~is_part], together[None]]),
        torch.cat([counted[~is_part], votes.any(0)[None]]),
    )


def _differences(members: list[list[Row]]) -> tuple[list[bool] | None, Tensor]:
    """Which labels are planted flips, None if no member learned from a copy with such; and
    the members' score differences (M, N) on the copy, 0 where a member abstains."""
    learned = [rows for rows in members if "is_planted" in rows[0]]
    planted = [row["is_planted"] for row in learned[0]] if learned else None
    differences = torch.tensor(
        [
            [
                0.0 if row["chosen_score"] is None else row["chosen_score"] - row["rejected_score"]
                for row in rows
            ]
            for rows in members
        ],
        dtype=torch.float64,
    )
    if planted is not None:
        is_outside = torch.tensor(["is_planted" not in rows[0] for rows in members])
        is_flipped = is_outside[:, None] & torch.tensor(planted)
        differences = torch.where(is_flipped, -differences, differences)
    return planted, differences
