"""Stage `external_reward_votes`: scores of all pairs by a reward that the user has."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from trimtab.models.config.external_reward import ExternalRewardVotesConfig
from trimtab.models.rewards.checks import RewardError
from trimtab.models.rewards.reward import member_of, prompt_row
from trimtab.models.training.data import score_row
from trimtab.models.training.external_scorer import ExternalScorer
from trimtab.models.training.progress import Progress
from trimtab.models.training.stage import Row, Stage

ANSWERS_AT_ONCE = 512
Answer = tuple[Row, str]  # of a pair


def run(config: ExternalRewardVotesConfig, stage: Stage) -> None:
    """Inputs: `preferences`; as `content`, the digest of a model's folder or a function's source.

    Output: scores.jsonl, as a reward model's; null where a model's chat template refuses one of a
    pair's dialogues. Raises RewardError for a score that is not finite, and what loading or asking
    the reward raises; ValueError for a model that refuses every answer.
    """
    pairs = list(stage.rows_by_split())
    answers = [(row, row[name]) for _, row in pairs for name in ("chosen", "rejected")]
    ask = _score_by_model if config.reward.model is not None else _score_by_asking
    scores, about = ask(config, answers, stage)
    rows, gaps = [], []
    for (split, row), chosen, rejected in zip(pairs, scores[::2], scores[1::2], strict=True):
        if chosen is None or rejected is None:
            chosen = rejected = None
        else:
            gaps.append(chosen - rejected)
        rows.append(score_row(row["id"], split, (chosen, rejected)))
    stage.write_rows("scores.jsonl", rows)
    stage.write_summary(
        {
            "num_pairs": len(pairs),
            **about,
            "num_votes": len(gaps),
            "share_for_the_label": sum(gap > 0 for gap in gaps) / max(len(gaps), 1),
        }
    )


def _score_by_model(
    config: ExternalRewardVotesConfig, answers: Sequence[Answer], stage: Stage
) -> tuple[list[float | None], dict[str, Any]]:
    """The score of each answer, None for one that is refused, and what the summary says of them."""
    assert config.reward.model is not None
    scorer = ExternalScorer.load(config.reward.model)
    dialogues = [(row["prompt"], answer) for row, answer in answers]
    scores = scorer.score(dialogues, Progress(stage.workdir))
    if wrong := [score for score in scores.values() if not math.isfinite(score)]:
        raise RewardError(
            f"{config.reward.label}: found the score {wrong[0]} of {len(wrong)} answers; allowed: "
            "finite numbers"
        )
    about = {
        "num_answers": len(scores),
        "num_cut": scorer.num_cut,
        "num_refused": len(scorer.refused),
    }
    return [scores.get(dialogue) for dialogue in dialogues], about


def _score_by_asking(
    config: ExternalRewardVotesConfig, answers: Sequence[Answer], stage: Stage
) -> tuple[list[float | None], dict[str, Any]]:
    """The same of a server or a function; what it answered before a kill is not asked again."""
    member = member_of(config.reward, stage.workdir, seed=0)
    progress, scores = Progress(stage.workdir), list[float | None]()
    for start in range(0, len(answers), ANSWERS_AT_ONCE):
        part = answers[start : start + ANSWERS_AT_ONCE]
        rated, _ = member.rate([prompt_row(row) for row, _ in part], [text for _, text in part])
        scores += rated.tolist()
        progress.advance(len(scores), len(answers))
    return scores, {"num_answers": int(member.summary()["num_rated"])}
