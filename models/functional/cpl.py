"""Contrastive preference learning: the policy's own likelihoods rank two segments.

[CPL] Hejna et al., Contrastive Preference Learning: Learning from Human Feedback without RL, 2023,
arXiv 2310.13639. A response is a segment, a token an action, what stands before it the state.

Where it is DPO: for segments of one step (gamma then plays no part), or whole responses at gamma 1,
with lambda 1, alpha for beta, and a reference to which both segments of a pair are equally likely:
then log pi_ref cancels, and the losses are equal. Any other reference leaves them apart by
beta (log pi_ref(y_c) - log pi_ref(y_r)) in the logit. (Both tested.)

Deviations
1. Soft labels, margins and weights of relabelled pairs are obeyed, as by the ranking loss of reward
   models. Of a soft label the other way round is biased as well, as in the published code:
   p l(S_c - lambda S_r - m) + (1 - p) l(S_r - lambda S_c + m), l = -log sigmoid.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from trimtab.models.functional.checks import require_floating, require_mask, require_shape
from trimtab.models.functional.masked import weighted_mean
from trimtab.models.functional.reward import pair_metrics


def segment_scores(logprobs: Tensor, mask: Tensor, alpha: float, gamma: float) -> Tensor:
    """Discounted sum of a segment's optimal advantages [CPL eq. 5, its exponents].

    S = sum_t gamma^t alpha log pi(a_t | s_t), t counted over the segment's own steps from 0.

    logprobs: (B, T), nats. mask: (B, T) bool, True = a step of the segment. alpha: temperature of
    the maximum-entropy policy. gamma: discount in (0, 1].
    Returns (B,), logits. Raises ShapeError for other shapes or a mask that is not bool.
    """
    require_shape("segment_scores", 2, logprobs=logprobs, mask=mask)
    require_mask("segment_scores", mask)
    require_floating("segment_scores", logprobs=logprobs)
    counted = torch.where(mask, logprobs, torch.zeros_like(logprobs))
    step = (mask.cumsum(1) - 1).clamp_min(0)
    return alpha * (counted * torch.as_tensor(gamma, dtype=logprobs.dtype) ** step).sum(1)


def cpl_loss(
    chosen_scores: Tensor,
    rejected_scores: Tensor,
    *,
    conservative_bias: float,
    label_chosen: Tensor | None = None,
    margin: Tensor | None = None,
    weight: Tensor | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Contrastive loss of two segments [CPL eq. 5, with its conservative bias].

    L = -log sigmoid(S_c - lambda S_r), for label 1.

    chosen_scores, rejected_scores: (B,) of `segment_scores`, logits. conservative_bias: lambda in
    (0, 1]; below 1 the loss is smaller where both segments are likely, which keeps the policy on
    what was compared. label_chosen, margin, weight: (B,), as in `ranking_loss`.
    Returns the loss (scalar, nats) and the metrics of `ranking_loss`, of S_c and S_r.
    Raises ShapeError for other shapes, ValueError for a bias out of range.
    """
    require_shape(
        "cpl_loss",
        1,
        chosen_scores=chosen_scores,
        rejected_scores=rejected_scores,
        label_chosen=label_chosen,
        margin=margin,
        weight=weight,
    )
    require_floating("cpl_loss", chosen_scores=chosen_scores, label_chosen=label_chosen)
    if not 0 < conservative_bias <= 1:
        raise ValueError(
            f"cpl_loss: conservative_bias must be in (0, 1], found {conservative_bias}"
        )
    shift = 0.0 if margin is None else margin
    losses = -F.logsigmoid(chosen_scores - conservative_bias * rejected_scores - shift)
    if label_chosen is not None:
        swapped = -F.logsigmoid(rejected_scores - conservative_bias * chosen_scores + shift)
        losses = label_chosen * losses + (1 - label_chosen) * swapped
    metrics = pair_metrics(chosen_scores.detach(), rejected_scores.detach())
    return weighted_mean(losses, weight), metrics
