"""Stage `external_reward_model`: scores of all pairs by a reward model that the user has."""

from __future__ import annotations

import math

from trimtab.models.config.reward import ExternalRewardModelConfig
from trimtab.models.training.data import score_row
from trimtab.models.training.external_scorer import ExternalScorer
from trimtab.models.training.progress import Progress
from trimtab.models.training.stage import Stage


def run(config: ExternalRewardModelConfig, stage: Stage) -> None:
    """Inputs: `preferences`; of a model that is a folder `content`, which says what it holds.

    Output: scores.jsonl, as a reward model's; null where the model's chat template refuses one of a
    pair's dialogues. Raises ValueError for a model of another kind, one that refuses all, and for a
    score that is not finite.
    """
    pairs = list(stage.rows_by_split())
    scorer = ExternalScorer.load(config.model)
    asked = [(row["prompt"], row[name]) for _, row in pairs for name in ("chosen", "rejected")]
    scores = scorer.score(asked, Progress(stage.workdir))
    if wrong := [each for each in scores if not math.isfinite(scores[each])]:
        raise ValueError(
            f"{config.model}: found the score {scores[wrong[0]]} of {len(wrong)} answers; allowed: "
            "finite numbers"
        )
    both = [
        (scores.get((row["prompt"], row["chosen"])), scores.get((row["prompt"], row["rejected"])))
        for _, row in pairs
    ]
    both = [each if None not in each else (None, None) for each in both]
    stage.write_rows(
        "scores.jsonl",
        (score_row(row["id"], split, own) for (split, row), own in zip(pairs, both, strict=True)),
    )
    gaps = [better - worse for better, worse in both if better is not None and worse is not None]
    stage.write_summary(
        {
            "num_pairs": len(pairs),
            "num_answers": len(scores),
            "num_cut": scorer.num_cut,
            "num_refused": len(scorer.refused),
            "num_votes": len(gaps),
            "share_for_the_label": sum(gap > 0 for gap in gaps) / max(len(gaps), 1),
        }
    )
