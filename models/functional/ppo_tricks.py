"""Tricks of PPO that PPO-max leaves out, for its ablation: advantage clip and entropy bonus.

[PPO] Secrets of RLHF Part I, arXiv 2307.04964. [CODE] OpenLMLab/MOSS-RLHF, which it published.

Deviations
1. The entropy bonus is given no formula. [CODE] adds |H - c|, of the batch's mean entropy H; here
   the distance is each token's own, so that parts of a batch and ranks add up to it. The two are
   the same where all tokens are on one side of c: its c of 35 nats is beyond any vocabulary's.
"""

from __future__ import annotations

import torch
from torch import Tensor

from models.functional.checks import require_floating, require_mask, require_shape
from models.functional.masked import masked_mean


@torch.no_grad()
def clip_advantages(
    advantages: Tensor, response_mask: Tensor, clip: float
) -> tuple[Tensor, dict[str, Tensor]]:
    """Advantage clipping [PPO section 5.3.1]: clip(A, -clip, clip).

    advantages: (B, T), whitened or in score units. response_mask: (B, T) bool, True = counted.
    clip: positive, in the advantages' unit (the paper's 0.12 and 0.5 are of whitened ones).
    Returns (B, T) without gradient and the metric `advantage_clip_fraction` (the share of counted
    tokens where the clip binds).
    Raises ShapeError for other shapes or a mask that is not bool, ValueError for a clip <= 0.
    """
    require_shape("clip_advantages", 2, advantages=advantages, response_mask=response_mask)
    require_mask("clip_advantages", response_mask, "response_mask")
    require_floating("clip_advantages", advantages=advantages)
    if not clip > 0:
        raise ValueError(f"clip_advantages: clip must be positive, found {clip}")
    binds = (advantages.abs() > clip).to(advantages.dtype)
    metrics = {"advantage_clip_fraction": masked_mean(binds, response_mask)}
    return advantages.clamp(-clip, clip), metrics


def entropy_loss(
    entropies: Tensor, response_mask: Tensor, entropy_clip: float | None
) -> tuple[Tensor, dict[str, Tensor]]:
    """Entropy bonus as a loss [PPO section 5.3.2, appendix B.3]: -mean_t H_t, or mean_t |H_t - c|.

    entropies: (B, T), nats, of the policy at each token, carries the gradient.
    response_mask: (B, T) bool, True = counted. entropy_clip: c > 0, nats, the entropy that the
    bonus leads to, None = ever higher.
    Returns the loss (scalar, nats) and detached means over counted tokens: `entropy_loss` and
    `entropy` (nats).
    Raises ShapeError for other shapes or a mask that is not bool, ValueError for c <= 0.
    """
    require_shape("entropy_loss", 2, entropies=entropies, response_mask=response_mask)
    require_mask("entropy_loss", response_mask, "response_mask")
    if entropy_clip is not None and not entropy_clip > 0:
        raise ValueError(
            f"entropy_loss: entropy_clip must be positive or None, found {entropy_clip}"
        )
    distances = -entropies if entropy_clip is None else (entropies - entropy_clip).abs()
    loss = masked_mean(distances, response_mask)
    return loss, {
        "entropy_loss": loss.detach(),
        "entropy": masked_mean(entropies.detach(), response_mask),
    }
