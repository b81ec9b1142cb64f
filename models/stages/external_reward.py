"""Stage `external_reward`: a reward that somebody else brings, tried on the held-out pairs.

It fails before policies are trained where the reward cannot be asked, and says how far it agrees
with the labels. What a panel's members are standardised by is measured here.
"""

from __future__ import annotations

import torch
from torch import Tensor

from trimtab.models.config.external_reward import RewardConfig
from trimtab.models.rewards.checks import RewardError
from trimtab.models.rewards.reward import ExternalReward, Moments, prompt_row, write_reward
from trimtab.models.training import distributed
from trimtab.models.training.data import HELD_OUT, score_row
from trimtab.models.training.progress import Progress
from trimtab.models.training.stage import Stage

SEED = 0  # of a judge's sampled ratings
ANSWERS_AT_ONCE = 512


def run(config: RewardConfig, stage: Stage) -> None:
    """Inputs: `preferences`; as `content`, digests of folders and of functions' sources.

    Output: reward.json, which reward it is; scores.jsonl, its scores of validation and test pairs,
    as a reward model's. Raises RewardError, also where there are no such pairs, and what loading or
    asking a member raises.
    """
    pairs = [(s, row) for s in HELD_OUT for row in stage.rows("preferences", f"{s}.jsonl")]
    if not pairs:
        raise RewardError("found no validation and no test pairs; allowed: some, to try it on")
    prompts = [prompt_row(row) for _, row in pairs for _ in range(2)]
    answers = [row[name] for _, row in pairs for name in ("chosen", "rejected")]
    reward, progress = ExternalReward(config, stage.workdir, SEED), Progress(stage.workdir)
    parts = []
    for start in range(0, len(answers), ANSWERS_AT_ONCE):
        part = slice(start, start + ANSWERS_AT_ONCE)
        parts.append(reward.member_scores(prompts[part], answers[part])[0])
        progress.advance(start + parts[-1].shape[1], len(answers))
    scores = torch.cat(parts, 1)
    distributed.leave()
    num_validation = 2 * sum(split == "validation" for split, _ in pairs)
    reward.moments = _moments(config, scores[:, :num_validation])
    combined = reward.combine(scores)[0].view(-1, 2)
    write_reward(stage, config, reward.moments)
    stage.write_rows(
        "scores.jsonl",
        (
            score_row(row["id"], split, (chosen, rejected))
            for (split, row), (chosen, rejected) in zip(pairs, combined.tolist(), strict=True)
        ),
    )
    gaps = (combined[:, 0] - combined[:, 1])[num_validation // 2 :]
    stage.write_summary(
        {
            "reward": config.label,
            "num_pairs": len(pairs),
            "num_trained_pairs": 0,
            "test_accuracy": float((gaps > 0).float().mean()) if len(gaps) else None,
            **reward.summary(),
        }
    )


def _moments(config: RewardConfig, scores: Tensor) -> Moments:
    """Mean and standard deviation of each member's scores (M, N)."""
    moments = []
    for member, values in zip(config.members, scores.double(), strict=True):
        mean, std = 0.0, 0.0
        if len(values):
            mean, std = float(values.mean()), float(values.std(correction=0))
        if config.panel and std == 0:
            raise RewardError(
                f"{member.label}: found the same score for all {len(values)} answers of the "
                "validation pairs; allowed in a panel: scores that differ, to be standardised by"
            )
        moments.append((mean, std))
    return moments
