"""The reward model's ranking loss with soft labels, margins and weights.

[RM] Secrets of RLHF Part II, arXiv 2401.06080.

Deviations
1. The margin stands inside the sigmoid, -log sigmoid(r_c - r_r - margin). [RM eq. 6] prints it
   outside, where it would be a constant without a gradient.
2. The published code's -log(sigmoid(d) + 1e-5) is not used: it caps the loss near 11.5 and kills
   the gradient on badly ordered pairs. logsigmoid is exact for every d.
3. The paper names "soft label + margin" without a formula. Here the margin shifts the difference
   in both terms: -[p log sigmoid(d - m) + (1 - p) log sigmoid(-(d - m))], so that swapping a pair
   while taking 1 - p for p and -m for m leaves the loss as it was.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from models.functional.checks import require_floating, require_shape
from models.functional.masked import weighted_mean


def ranking_losses(
    chosen_scores: Tensor,
    rejected_scores: Tensor,
    *,
    label_chosen: Tensor | None = None,
    margin: Tensor | None = None,
) -> Tensor:
    """Ranking loss of each pair, before any averaging [RM eq. 2, 5 and 6].

    l_i = -[p_i log sigmoid(d_i - m_i) + (1 - p_i) log sigmoid(-(d_i - m_i))], d = r_c - r_r.

    chosen_scores, rejected_scores: (B,), logits. label_chosen: (B,), probability in [0, 1] that
    chosen is better (1 - alpha under smoothing), None = 1. margin: (B,), logits, None = 0.
    Returns (B,), nats. Raises ShapeError for other shapes.
    """
    require_shape(
        "ranking_losses",
        1,
        chosen_scores=chosen_scores,
        rejected_scores=rejected_scores,
        label_chosen=label_chosen,
        margin=margin,
    )
    require_floating("ranking_losses", chosen_scores=chosen_scores, label_chosen=label_chosen)
    gap = chosen_scores - rejected_scores
    if margin is not None:
        gap = gap - margin
    if label_chosen is None:
        return -F.logsigmoid(gap)
    return -(label_chosen * F.logsigmoid(gap) + (1 - label_chosen) * F.logsigmoid(-gap))


def ranking_loss(
    chosen_scores: Tensor,
    rejected_scores: Tensor,
    *,
    label_chosen: Tensor | None = None,
    margin: Tensor | None = None,
    weight: Tensor | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Weighted mean of the pairs' ranking losses [RM eq. 2, 5 and 6].

    loss = sum_i w_i l_i / sum_i w_i, with l_i from `ranking_losses`.

    chosen_scores, rejected_scores: (B,), logits. label_chosen: (B,), probability in [0, 1] that
    chosen is better, None = 1. margin: (B,), logits, None = 0. weight: (B,), not negative,
    None = 1.
    Returns the loss (scalar, nats) and detached, unweighted means: `accuracy` (share of pairs
    with r_c > r_r; a tie is not correct, margin and label play no part), `score_chosen`,
    `score_rejected`, `score_gap` (logits).
    Raises ShapeError for other shapes.
    """
    require_shape("ranking_loss", 1, chosen_scores=chosen_scores, weight=weight)
    losses = ranking_losses(
        chosen_scores, rejected_scores, label_chosen=label_chosen, margin=margin
    )
    loss = weighted_mean(losses, weight)
    return loss, pair_metrics(chosen_scores.detach(), rejected_scores.detach())


def pair_metrics(chosen_scores: Tensor, rejected_scores: Tensor) -> dict[str, Tensor]:
    """Unweighted means over detached (B,) scores, as `ranking_loss` returns them."""
    gap = chosen_scores - rejected_scores
    return {
        "accuracy": (gap > 0).to(gap.dtype).mean(),
        "score_chosen": chosen_scores.mean(),
        "score_rejected": rejected_scores.mean(),
        "score_gap": gap.mean(),
    }
