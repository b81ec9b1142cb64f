"""The collapse guard: reads the PPO monitors and says when, and why, a run has gone wrong.

Collapse shows as rising reward with longer responses and falling perplexity [PPO section 5.2], as a
policy far from its reference, or as a score that held-out scorers do not confirm.

Deviations:
1. Rising reward with responses that dwindle is a collapse too: a scorer that dislikes a small
   model's rambling is highest where nothing is said, and there perplexity does not fall.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate

import torch
from torch import Tensor

from trimtab.models.config.policy import CollapseConfig
from trimtab.models.functional.combination import ensemble_scores

History = Sequence[Mapping[str, float]]
TINY = 1e-12  # least of what is divided by


def first_reason(history: History, config: CollapseConfig) -> str | None:
    """The reason at the first step that has one."""
    ends = range(1, len(history) + 1)
    return next(filter(None, (collapse_reason(history[:end], config) for end in ends)), None)


def collapse_reason(history: History, config: CollapseConfig) -> str | None:
    """Why the run has collapsed by its last step, or `None`; `history`: monitors of all steps."""
    window = config.window
    if len(history) < _least_steps(config):
        return None
    read, step, limit = readings(history, window), len(history), config.max_held_out_fall
    if read["kl"] > config.max_kl:
        return (
            f"KL to the reference is {read['kl']:.1f} nats per response over the last {window} "
            f"steps, limit {config.max_kl} (step {step})"
        )
    if limit is not None and read.get("held_out_fall", 0.0) > limit:
        return (
            f"the held-out score fell by {read['held_out_fall']:.2f} spreads from its highest, "
            f"limit {limit}, while the score rose by {read['score_gain']:.2f} (step {step})"
        )
    hacked = read["length"] > config.length_growth and read["perplexity"] < config.perplexity_drop
    if read["score_gain"] > 0 and (hacked or read["length"] < config.length_drop):
        start, now = history[:window], history[-window:]
        return (
            f"score rose from {_mean(start, 'score'):.2f} to {_mean(now, 'score'):.2f} while "
            f"length went from {_mean(start, 'response_length'):.1f} to "
            f"{_mean(now, 'response_length'):.1f} and perplexity from "
            f"{_mean(start, 'perplexity'):.2f} to {_mean(now, 'perplexity'):.2f}: "
            f"the pattern of reward hacking (step {step})"
        )
    return None


def held_out_monitors(scores: Tensor, held_out: Tensor) -> dict[str, Tensor]:
    """What H held-out scorers say of the N responses of a step that were scored.

    scores: (N,), of the scorer that PPO optimises. held_out: (H, N), logits.
    Returns `held_out_score` (mean), `held_out_std` (of the responses' means over scorers),
    `held_out_disagreement` (spread between scorers, each about its mean of the batch, mean over
    responses; logits) and `held_out_agreement` (Pearson correlation of both scores, 0 where one of
    them is constant).
    """
    mean, reported = ensemble_scores(held_out, std_coef=0.0)
    gaps = torch.stack([scores.to(mean) - scores.to(mean).mean(), mean - mean.mean()])
    lengths = gaps.norm(dim=1)
    return {
        "held_out_score": mean.mean(),
        "held_out_std": mean.std(),
        "held_out_disagreement": reported["ensemble_std"],
        "held_out_agreement": gaps.prod(0).sum() / lengths.prod().clamp(min=TINY),
    }


def has_collapsed(reason: str | None, num_steps: int, config: CollapseConfig) -> bool | None:
    """Whether a run has collapsed; `None` if it had too few steps to tell."""
    if reason is None and num_steps < _least_steps(config):
        return None
    return reason is not None


def _least_steps(config: CollapseConfig) -> int:
    return 2 * config.window


def readings(history: History, window: int) -> dict[str, float]:
    """What the guard's limits are about, of the last `window` steps against the first.

    history: the monitors of at least `window` steps. `kl`: nats a response. `length`: over that at
    the start. `perplexity`: less 1, over that at the start. `score_gain`: since the start, in
    spreads of the start's responses. Where held-out scorers score, too: `held_out_fall`, of their
    score from its highest so far, likewise.
    """
    start, now = history[:window], history[-window:]

    def ratio(name: str, floor: float = 0.0) -> float:
        return (_mean(now, name) - floor + TINY) / (_mean(start, name) - floor + TINY)

    score_gain = (_mean(now, "score") - _mean(start, "score")) / max(
        _mean(start, "score_std"), TINY
    )
    read = {
        "kl": _mean(now, "kl"),
        "length": ratio("response_length"),
        "perplexity": ratio("perplexity", floor=1.0),
        "score_gain": score_gain,
    }
    if "held_out_score" not in history[-1]:
        return read
    sums = [0.0, *accumulate(row["held_out_score"] for row in history)]
    means = [(b - a) / window for a, b in zip(sums, sums[window:], strict=False)]
    spread = max(_mean(start, "held_out_std"), TINY)
    return read | {"held_out_fall": (max(means) - means[-1]) / spread}


def _mean(rows: History, name: str) -> float:
    return sum(row[name] for row in rows) / len(rows)
