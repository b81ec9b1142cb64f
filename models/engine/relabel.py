"""Stage `relabel`: flips, soft labels and margins from the strength [RM section 2.4].

Raw pairs are never mutated: a relabelled pair is the raw pair plus what was decided about it.
"""

from __future__ import annotations

from pathlib import Path

import torch

from models.config import RelabelConfig
from models.engine.data import read_rows, write_rows
from models.engine.progress import write_json
from models.functional.relabel import relabel

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
    treated = relabel(mean, **config.model_dump())
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
