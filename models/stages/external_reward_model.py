"""Stage `external_reward_model`: scores of all pairs by a reward model that the user has."""

from __future__ import annotations

import math

from trimtab.models.config.reward import ExternalRewardModelConfig
from trimtab.models.training.data import score_row
from trimtab.models.training.external_scorer import ExternalScorer
from trimtab.models.training.progress import Progress
from trimtab.models.training.stage import Stage


def run(config: ExternalRewardModelConfig, stage: Stage) -> None:
    """Inputs: `preferences`; if the model is a folder, `content`, the digest of that folder.

    Output: scores.jsonl, as a reward model's; null where the model's chat template refuses one of a
    pair's dialogues. Raises ValueError for an unsupported model, for one that refuses every
    answer, and for a score that is not finite.
    """
    pairs = list(stage.rows_by_split())
    scorer = ExternalScorer.load(config.model)
    answers = [(row["prompt"], row[name]) for _, row in pairs for name in ("chosen", "rejected")]
    scores = scorer.score(answers, Progress(stage.workdir))
    if wrong := [score for score in scores.values() if not math.isfinite(score)]:
        raise ValueError(
            f"{config.model}: found the score {wrong[0]} of {len(wrong)} answers; allowed: "
            "finite numbers"
        )
    rows, gaps = [], []
    for (split, row), chosen_text, rejected_text in zip(
        pairs, answers[::2], answers[1::2], strict=True
    ):
        chosen_score, rejected_score = scores.get(chosen_text), scores.get(rejected_text)
        if chosen_score is None or rejected_score is None:
            chosen_score = rejected_score = None
        else:
            gaps.append(chosen_score - rejected_score)
        rows.append(score_row(row["id"], split, (chosen_score, rejected_score)))
    stage.write_rows("scores.jsonl", rows)
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
