"""Stage `relabel`: flips, soft labels and margins from the strength [RM section 2.4], and ratings.

Raw pairs are never mutated: a relabelled pair is the raw pair plus what was decided about it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from models.config_rewards import RelabelConfig
from models.engine.data import read_rows, write_rows
from models.engine.progress import write_json
from models.functional.relabel import Relabel, rating_margin, relabel, strength_slice

CONFIG = RelabelConfig


def run(config: RelabelConfig, inputs: dict[str, Path], workdir: Path) -> None:
    """Inputs: `preferences` (train.jsonl), `strength`. Output: train.jsonl with the treatment."""
    pairs = read_rows(inputs["preferences"] / "train.jsonl")
    strength = {
        row["id"]: row["strength_mean"] for row in read_rows(inputs["strength"] / "strength.jsonl")
    }
    missing = [pair["id"] for pair in pairs if pair["id"] not in strength]
    if missing:
        raise ValueError(f"{len(missing)} pairs have no strength, the first: {missing[0]!r}")
    mean = torch.tensor([strength[pair["id"]] for pair in pairs], dtype=torch.float64)
    own = {"rating_margins", "keep_from", "keep_to"}
    treated = relabel(mean, **config.model_dump(exclude=own))
    kept = strength_slice(mean, config.keep_from, config.keep_to)
    treated = treated._replace(weight=treated.weight * kept)
    if config.rating_margins is not None:
        treated = treated._replace(margin=treated.margin + _of_ratings(config, pairs, treated))
    columns = zip(
        pairs,
        treated.is_flipped.tolist(),
        treated.label.tolist(),
        treated.margin.tolist(),
        treated.weight.tolist(),
        strict=True,
    )
    write_rows(
        workdir / "output" / "train.jsonl",
        (
            {**pair, "is_flipped": flipped, "label": label, "margin": margin, "weight": weight}
            for pair, flipped, label, margin, weight in columns
        ),
    )
    write_json(
        workdir / "output" / "summary.json",
        {
            "num_pairs": len(pairs),
            "share_flipped": float(treated.is_flipped.double().mean()),
            "share_smoothed": float((treated.label < 1).double().mean()),
            "mean_margin": float(treated.margin.mean()),
        },
    )


def _of_ratings(config: RelabelConfig, pairs: list[dict[str, Any]], treated: Relabel) -> Tensor:
    """Margins (N,) by the pairs' ratings; ValueError where no pair has one."""
    assert config.rating_margins is not None
    rating = torch.tensor([pair.get("rating") or 0 for pair in pairs])
    if not bool(rating.any()):
        raise ValueError(
            f"relabel.rating_margins is {config.rating_margins}, but none of {len(pairs)} pairs "
            "has a rating (1 to 4); leave it out, or give preferences with `rating`"
        )
    return rating_margin(rating, treated.is_flipped, config.rating_margins)
