"""Stage `external_reward_model`: scores of all pairs by a reward model that the user has."""

from __future__ import annotations

import math
from pathlib import Path

from trimtab.models.config.reward import ExternalRewardModelConfig
from trimtab.models.training.data import SPLITS, read_rows, write_rows
from trimtab.models.training.external_scorer import ExternalScorer
from trimtab.models.training.progress import Progress, write_json


def run(config: ExternalRewardModelConfig, inputs: dict[str, Path], workdir: Path) -> None:
    """Inputs: `preferences`; of a model that is a folder `content`, which says what it holds.

    Output: scores.jsonl, as a reward model's. Raises ValueError for a model of another kind, and
    for a score that is not finite.
    """
    pairs = [
        (split, row)
        for split in SPLITS
        for row in read_rows(inputs["preferences"] / f"{split}.jsonl")
    ]
    scorer = ExternalScorer.load(config.model)
    asked = [(row["prompt"], row[name]) for _, row in pairs for name in ("chosen", "rejected")]
    scores = scorer.score(asked, Progress(workdir))
    if wrong := [each for each in asked if not math.isfinite(scores[each])]:
        raise ValueError(
            f"{config.model}: found the score {scores[wrong[0]]} of {len(wrong)} answers; allowed: "
            "finite numbers"
        )
    write_rows(
        workdir / "output" / "scores.jsonl",
        (
            {
                "id": row["id"],
                "split": split,
                "chosen_score": scores[row["prompt"], row["chosen"]],
                "rejected_score": scores[row["prompt"], row["rejected"]],
                "was_trained_on": False,
            }
            for split, row in pairs
        ),
    )
    agreeing = sum(
        scores[row["prompt"], row["chosen"]] > scores[row["prompt"], row["rejected"]]
        for _, row in pairs
    )
    write_json(
        workdir / "output" / "summary.json",
        {
            "num_pairs": len(pairs),
            "num_answers": len(scores),
            "num_cut": scorer.num_cut,
            "share_for_the_label": agreeing / len(pairs),
        },
    )
