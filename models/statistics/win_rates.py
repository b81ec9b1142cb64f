"""Comparing two systems: win, tie and lose shares, and bootstrap intervals.

[AM] Stabilizing RLHF through Advantage Model and Selective Rehearsal, arXiv 2309.10202, reports
win, lose and tie against SFT; [BOOT] Efron and Tibshirani, An Introduction to the Bootstrap, 1993.
The papers give no interval; the percentile one of [BOOT chapter 13] is added.
"""

from __future__ import annotations

import torch
from torch import Tensor

from trimtab.models.functional.checks import require_floating, require_shape

# Resampled values held at once: 32 MiB of float64.
_CHUNK_ELEMENTS = 4_000_000


def win_tie_lose(ours: Tensor, theirs: Tensor, tie_margin: float) -> dict[str, float]:
    """Shares of prompts where ours is better, level and worse [AM section 4.3].

    win: ours - theirs > tie_margin; lose: theirs - ours > tie_margin; tie: neither.

    ours, theirs: (N,), judged scores of two responses to the same prompt, in one unit.
    tie_margin: not negative, in that unit.
    Returns {"win", "tie", "lose"}, shares in [0, 1] that sum to 1.
    Raises ShapeError for other shapes, ValueError for a negative margin or a score that is NaN.
    """
    require_shape("win_tie_lose", 1, ours=ours, theirs=theirs)
    if not tie_margin >= 0:
        raise ValueError(f"win_tie_lose: tie_margin must not be negative, found {tie_margin}")
    gap = ours.detach().double() - theirs.detach().double()
    if bool(gap.isnan().any()):
        raise ValueError("win_tie_lose: a score is NaN, which neither wins nor loses; judge again")
    num_prompts = gap.shape[0]
    num_wins = int((gap > tie_margin).sum())
    num_losses = int((gap < -tie_margin).sum())
    return {
        "win": num_wins / num_prompts,
        "tie": (num_prompts - num_wins - num_losses) / num_prompts,
        "lose": num_losses / num_prompts,
    }


def outcome_matrix(scores: Tensor, tie_margin: float) -> Tensor:
    """Win 1, tie 0 and lose -1 of every system against every other, prompt by prompt.

    o_ijn = sign(s_in - s_jn) where they differ by more than tie_margin, else 0, as `win_tie_lose`.

    scores: (P, N), judged scores of P systems' responses to the same N prompts, in one unit.
    tie_margin: not negative, in that unit.
    Returns (P, P, N) int8; o_jin = -o_ijn.
    Raises ShapeError for other shapes, ValueError for a negative margin or a score that is NaN.
    """
    require_shape("outcome_matrix", 2, scores=scores)
    require_floating("outcome_matrix", scores=scores)
    if not tie_margin >= 0:
        raise ValueError(f"outcome_matrix: tie_margin must not be negative, found {tie_margin}")
    if bool(scores.isnan().any()):
        raise ValueError(
            "outcome_matrix: a score is NaN, which neither wins nor loses; judge again"
        )
    gap = scores.detach().double()[:, None] - scores.detach().double()[None]
    return (gap > tie_margin).to(torch.int8) - (gap < -tie_margin).to(torch.int8)


def bootstrap_interval(
    values: Tensor,
    *,
    num_resamples: int,
    seed: int,
    level: float = 0.95,
) -> tuple[float, float]:
    """Percentile bootstrap interval of the mean [BOOT chapter 13].

    Resamples N values with replacement; the interval holds the central `level` of the resampled
    means. For a win rate pass 0 and 1; for paired systems pass the differences by prompt.

    values: (N,), any unit. num_resamples: at least 1. seed: determines the resamples; the global
    random state is neither read nor advanced. level: in (0, 1).
    Returns (low, high) in the values' unit.
    Raises ShapeError for other shapes, ValueError for an option out of range or a value not
    finite.
    """
    require_shape("bootstrap_interval", 1, values=values)
    require_floating("bootstrap_interval", values=values)
    if num_resamples < 1:
        raise ValueError(
            f"bootstrap_interval: num_resamples must be at least 1, found {num_resamples}"
        )
    if not 0 < level < 1:
        raise ValueError(f"bootstrap_interval: level must be in (0, 1), found {level}")
    values = values.detach().double().cpu()
    if not bool(values.isfinite().all()):
        raise ValueError("bootstrap_interval: values hold NaN or infinity; judge again")
    resampled = _resampled_means(values, num_resamples, seed)
    tail = (1 - level) / 2
    low, high = resampled.quantile(torch.tensor([tail, 1 - tail], dtype=torch.float64)).tolist()
    return low, high


def _resampled_means(values: Tensor, num_resamples: int, seed: int) -> Tensor:
    """(num_resamples,) float64, the mean of each resample; see `bootstrap_interval`."""
    generator = torch.Generator().manual_seed(seed)
    num_values = values.shape[0]
    rows_at_once = max(1, _CHUNK_ELEMENTS // num_values)
    chunks = []
    for start in range(0, num_resamples, rows_at_once):
        rows = min(rows_at_once, num_resamples - start)
        sample = values[
            torch.randint(num_values, (rows, num_values), generator=generator, device="cpu")
        ]
        chunks.append(sample.mean(1))
    return torch.cat(chunks)
