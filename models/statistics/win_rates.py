"""Comparing two systems: win, tie and lose shares.

[AM] Stabilizing RLHF through Advantage Model and Selective Rehearsal, arXiv 2309.10202, reports
win, lose and tie against SFT.
"""

from __future__ import annotations

import torch
from torch import Tensor

from trimtab.models.functional.checks import require_floating, require_shape


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
