"""Stage `relabel`: flips, soft labels and margins from the strength [RM section 2.4], and ratings.

Raw pairs are never mutated: a relabelled pair is the raw pair plus what was decided about it. A
person's verdict comes before the vote.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trimtab.models.config.reward import RelabelConfig
from trimtab.models.data import Source, read_review
from trimtab.models.functional.relabel import (
    Relabel,
    apply_review,
    rating_margin,
    relabel,
    relabel_soft_labels,
    strength_slice,
)
from trimtab.models.training.data import SPLITS, read_rows, write_rows
from trimtab.models.training.progress import write_json

# Verdicts that stand in place of the vote's; the fourth, unsure, leaves the pair to the vote.
OVERRULING = ("keep", "flip", "drop")


def run(config: RelabelConfig, inputs: dict[str, Path], workdir: Path) -> None:
    """Inputs: `preferences`, `strength`, and `review` where the configuration names one.

    Output: train.jsonl with the treatment, and the reviewer's verdict (or null) as `review`.
    """
    pairs = read_rows(inputs["preferences"] / "train.jsonl")
    verdicts = _verdicts(config, inputs)
    strength = {
        row["id"]: row["strength_mean"] for row in read_rows(inputs["strength"] / "strength.jsonl")
    }
    missing = [pair["id"] for pair in pairs if pair["id"] not in strength]
    if missing:
        raise ValueError(f"{len(missing)} pairs have no strength, the first: {missing[0]!r}")
    mean = torch.tensor([strength[pair["id"]] for pair in pairs], dtype=torch.float64)
    given = [verdicts.get(pair["id"]) for pair in pairs]
    relabelled = _relabelled(config, pairs, mean, given)
    columns = zip(
        pairs,
        relabelled.is_flipped.tolist(),
        relabelled.label.tolist(),
        relabelled.margin.tolist(),
        relabelled.weight.tolist(),
        given,
        strict=True,
    )
    names = ("is_flipped", "label", "margin", "weight", "review")
    write_rows(
        workdir / "output" / "train.jsonl",
        ({**pair, **dict(zip(names, values, strict=True))} for pair, *values in columns),
    )
    num_reviewed = sum(each is not None for each in given)
    num_smoothed = sum(
        label < pair.get("label", 1.0)
        for pair, label in zip(pairs, relabelled.label.tolist(), strict=True)
    )
    write_json(
        workdir / "output" / "summary.json",
        {
            "num_pairs": len(pairs),
            "share_flipped": float(relabelled.is_flipped.double().mean()),
            "share_smoothed": num_smoothed / len(pairs),
            "mean_margin": float(relabelled.margin.mean()),
            "num_reviewed": num_reviewed,
            "num_reviewed_held_out": len(verdicts) - num_reviewed,
        },
    )


def _relabelled(
    config: RelabelConfig, pairs: list[dict[str, Any]], mean: Tensor, given: list[str | None]
) -> Relabel:
    """Relabelling by strength and ratings, then by the review, then weight 0 outside the slice
    and the number of pairs."""
    own = {"rating_margins", "keep_from", "keep_to", "max_pairs", "review"}
    relabelled = relabel(mean, **config.model_dump(exclude=own))
    labels = torch.tensor([pair.get("label", 1.0) for pair in pairs], dtype=torch.float64)
    relabelled = relabel_soft_labels(relabelled, labels)
    if config.rating_margins is not None:
        relabelled = relabelled._replace(
            margin=relabelled.margin + _of_ratings(config, pairs, relabelled)
        )
    relabelled = apply_review(
        relabelled, **{name: torch.tensor([each == name for each in given]) for name in OVERRULING}
    )
    kept = strength_slice(mean, config.keep_from, config.keep_to)
    if config.max_pairs is not None:
        # The first of one random order, so that fewer pairs are some of more.
        order = torch.randperm(len(mean), generator=torch.Generator().manual_seed(0))
        drawn = order[kept[order] > 0][: config.max_pairs]
        kept = torch.zeros_like(kept).index_fill(0, drawn, 1.0)
    return relabelled._replace(weight=relabelled.weight * kept)


def _verdicts(config: RelabelConfig, inputs: dict[str, Path]) -> dict[str, str]:
    """The review by pair id; warns of verdicts on held-out pairs, which stay as annotated."""
    if config.review is None:
        return {}
    split_of = {
        row["id"]: split
        for split in SPLITS
        for row in read_rows(inputs["preferences"] / f"{split}.jsonl")
    }
    name = config.review.rstrip("/").rpartition("/")[2]
    verdicts = read_review(Source(str(inputs["review"] / name), name=name), split_of.keys())
    held_out = sum(split_of[identifier] != "train" for identifier in verdicts)
    if held_out:
        warnings.warn(
            f"{name}: {held_out} of {len(verdicts)} verdicts are on validation and test pairs, "
            "which stay as annotated: policies and scorers are measured on them",
            stacklevel=2,
        )
    return verdicts


def _of_ratings(config: RelabelConfig, pairs: list[dict[str, Any]], relabelled: Relabel) -> Tensor:
    """Margins (N,) by the pairs' ratings; ValueError where no pair has one."""
    assert config.rating_margins is not None
    rating = torch.tensor([pair.get("rating") or 0 for pair in pairs])
    if not bool(rating.any()):
        raise ValueError(
            f"relabel.rating_margins is {config.rating_margins}, but none of {len(pairs)} pairs "
            "has a rating (1 to 4); leave it out, or give preferences with `rating`"
        )
    return rating_margin(rating, relabelled.is_flipped, config.rating_margins)
