"""Hindsight instruction relabelling: a response is taught as the answer to what it does satisfy.

[HIR] Zhang et al., The Wisdom of Hindsight Makes Language Models Better Instruction Followers,
2023, arXiv 2302.05206; constants and the length-normalised likelihoods are of its published code.

Deviations
1. The paper's instructions are met or not, by a verifier. Here they are grades: K instructions,
   worst first, and of N responses every K-th part by score satisfies each.
2. Likelihoods that the contrastive term compares are means a token, and so is the supervised term:
   a long response does not count for more. (The published code does so; the paper prints sums.)
3. No label smoothing (0.2 in the published code, not in the paper), and no parts of responses: a
   scorer has learned to judge whole ones.
"""

from __future__ import annotations

import torch
from torch import Tensor

from trimtab.models.functional.checks import (
    ShapeError,
    require_floating,
    require_mask,
    require_shape,
)
from trimtab.models.functional.masked import masked_mean


def satisfied_instruction(scores: Tensor, num_instructions: int) -> Tensor:
    """Which of K instructions, worst first, each response satisfies [HIR, its phi].

    The lowest N / K scores get 0, the next 1, and so on; equal scores get that of their mean rank.

    scores: (N,), any unit, higher is better. num_instructions: K >= 2.
    Returns (N,) long in [0, K). Raises ShapeError for other shapes, ValueError for a smaller K or
    a score that is NaN.
    """
    require_shape("satisfied_instruction", 1, scores=scores)
    require_floating("satisfied_instruction", scores=scores)
    if num_instructions < 2:
        raise ValueError(
            "satisfied_instruction: num_instructions must be at least 2, found "
            f"{num_instructions}; one instruction alone cannot be contrasted"
        )
    if bool(scores.isnan().any()):
        raise ValueError(
            "satisfied_instruction: scores holds NaN, which cannot be ranked; score again"
        )
    ordered = scores.sort().values
    num_lower = torch.searchsorted(ordered, scores)
    num_not_higher = torch.searchsorted(ordered, scores, right=True)
    twice_mean_rank = num_lower + num_not_higher - 1
    return twice_mean_rank * num_instructions // (2 * len(scores))


def hir_loss(
    logprobs: Tensor,
    entropies: Tensor,
    response_mask: Tensor,
    satisfied: Tensor,
    *,
    contrastive_coef: float,
    entropy_coef: float,
) -> tuple[Tensor, dict[str, Tensor]]:
    """L = L_supervise + alpha L_contrastive - beta H [HIR, its final loss].

    P_k = mean_t log pi(y_t | y_<t, x, instruction k); L_supervise = -P_s for the satisfied one,
    L_contrastive = -log (exp P_s / sum_k exp P_k), H the mean entropy of what y is drawn from under
    the satisfied one. All are means over responses.

    logprobs, entropies: (B, K, T), nats, of each response under each instruction. response_mask:
    (B, K, T) bool, True = a token of the response, counted. satisfied: (B,) long in [0, K).
    contrastive_coef, entropy_coef: alpha and beta.
    Returns the loss (scalar, nats) and detached metrics `supervised_loss`, `contrastive_loss`,
    `entropy` (nats) and `accuracy` (share of responses likeliest under their own instruction; a
    tie is not).
    Raises ShapeError for other shapes or a mask that is not bool.
    """
    require_shape(
        "hir_loss", 3, logprobs=logprobs, entropies=entropies, response_mask=response_mask
    )
    require_mask("hir_loss", response_mask, "response_mask")
    if satisfied.dtype != torch.long or satisfied.shape != logprobs.shape[:1]:
        raise ShapeError(
            f"hir_loss: satisfied must be long ({logprobs.shape[0]},), found {satisfied.dtype} "
            f"{tuple(satisfied.shape)}"
        )
    likelihoods = masked_mean(logprobs, response_mask, dim=2)
    place = satisfied[:, None]
    likelihood = likelihoods.gather(1, place)[:, 0]
    supervised, contrastive = -likelihood.mean(), (likelihoods.logsumexp(1) - likelihood).mean()
    entropy = masked_mean(entropies, response_mask, dim=2).gather(1, place).mean()
    loss = supervised + contrastive_coef * contrastive - entropy_coef * entropy
    others = likelihoods.detach().scatter(1, place, -torch.inf)
    return loss, {
        "supervised_loss": supervised.detach(),
        "contrastive_loss": contrastive.detach(),
        "entropy": entropy.detach(),
        "accuracy": (likelihood.detach() > others.amax(1)).to(likelihood.dtype).mean(),
    }
