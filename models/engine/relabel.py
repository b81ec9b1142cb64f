"""Stage `relabel`: flips, soft labels and margins from the strength [RM section 2.4].

Raw pairs are never mutated: a relabelled pair is the raw pair plus what was decided about it. A
person's verdict comes before the vote.
"""

from __future__ import annotations

import warnings
from pathlib import Path

import torch

from models.config import RelabelConfig
from models.engine.data import SPLITS, read_rows, write_rows
from models.engine.progress import write_json
from models.functional.relabel import overrule, relabel
from models.preferences import Source, read_review

CONFIG = RelabelConfig
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
    treated = overrule(
        relabel(mean, **config.model_dump(exclude={"review"})),
        **{name: torch.tensor([each == name for each in given]) for name in OVERRULING},
    )
    columns = zip(
        pairs,
        treated.is_flipped.tolist(),
        treated.label.tolist(),
        treated.margin.tolist(),
        treated.weight.tolist(),
        given,
        strict=True,
    )
    names = ("is_flipped", "label", "margin", "weight", "review")
    write_rows(
        workdir / "output" / "train.jsonl",
        ({**pair, **dict(zip(names, values, strict=True))} for pair, *values in columns),
    )
    num_reviewed = sum(each is not None for each in given)
    write_json(
        workdir / "output" / "summary.json",
        {
            "num_pairs": len(pairs),
            "share_flipped": float(treated.is_flipped.double().mean()),
            "share_smoothed": float((treated.label < 1).double().mean()),
            "mean_margin": float(treated.margin.mean()),
            "num_reviewed": num_reviewed,
            "num_reviewed_held_out": len(verdicts) - num_reviewed,
        },
    )


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
