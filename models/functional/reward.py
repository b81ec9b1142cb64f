"""The reward model's ranking loss with soft labels, margins and weights, and its imitation term.

[RM] Secrets of RLHF Part II, arXiv 2401.06080. [PPO] Secrets of RLHF Part I, arXiv 2307.04964.
[InstructGPT] Ouyang et al., 2022, arXiv 2203.02155.

Deviations
1. The margin stands inside the sigmoid, -log sigmoid(r_c - r_r - margin). [RM eq. 6] prints it
   outside, where it would be a constant without a gradient.
2. The published code's -log(sigmoid(d) + 1e-5) is not used: it caps the loss near 11.5 and kills
   the gradient on badly ordered pairs. logsigmoid is exact for every d.
3. The paper names "soft label + margin" without a formula. Here the margin shifts the difference
   in both terms: -[p log sigmoid(d - m) + (1 - p) log sigmoid(-(d - m))], so that swapping a pair
   while taking 1 - p for p and -m for m leaves the loss as it was.
4. The imitation term is the mean over a response's tokens, not their sum, so that its coefficient
   does not depend on response length, and then the same weighted mean over pairs as the ranking
   loss.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from trimtab.models.functional.checks import (
    ShapeError,
    require_floating,
    require_mask,
    require_shape,
)
from trimtab.models.functional.masked import masked_mean, weighted_mean


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
    chosen is better (1 - alpha under smoothing), None = 1; above 1 the loss is unbiased under wrong
    labels (`label_noise`), and can be negative. margin: (B,), logits, None = 0.
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

    chosen_scores, rejected_scores: (B,), logits. label_chosen, margin: (B,), as in
    `ranking_losses`. weight: (B,), not negative, None = 1.
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
    """Unweighted means over detached (B,) scores, as `ranking_loss` returns them.

    chosen_scores, rejected_scores: (B,), logits. Returns scalars: `accuracy`, a share in [0, 1],
    and `score_chosen`, `score_rejected` and `score_gap`, logits.
    """
    gap = chosen_scores - rejected_scores
    return {
        "accuracy": (gap > 0).to(gap.dtype).mean(),
        "score_chosen": chosen_scores.mean(),
        "score_rejected": rejected_scores.mean(),
        "score_gap": gap.mean(),
    }


def weight_per_prompt(weight: Tensor, prompt: Tensor) -> Tensor:
    """Weights under which a prompt counts once, however many pairs it has [InstructGPT eq. 1].

    w_p / (number of pairs of p's prompt), which is K (K - 1) / 2 where all of K responses are
    compared. In `ranking_loss` a prompt's pairs then have the mean of their losses as theirs.

    weight: (P,), not negative. prompt: (P,) long, the prompt of each pair, any ids.
    Returns (P,), in weight's unit.
    Raises ShapeError for other shapes or prompts that are not long.
    """
    require_shape("weight_per_prompt", 1, weight=weight, prompt=prompt)
    if prompt.dtype != torch.long:
        raise ShapeError(f"weight_per_prompt: prompt must be torch.long, found {prompt.dtype}")
    _, place, count = prompt.unique(return_inverse=True, return_counts=True)
    return weight / count[place]


def imitation_loss(
    logprobs: Tensor, response_mask: Tensor, *, weight: Tensor | None = None
) -> tuple[Tensor, dict[str, Tensor]]:
    """Negative log-likelihood of preferred responses under the trunk [PPO section 3.1].

    loss = sum_i w_i n_i / sum_i w_i, n_i = -mean_t log p(y_t | y_<t, x) over response i's tokens.

    logprobs: (B, T), nats, of the tokens of each pair's preferred response. response_mask: (B, T)
    bool, True = a token of the response, counted. weight: (B,), not negative, None = 1.
    Returns the loss (scalar, nats per token) and the detached metric `imitation_loss`.
    Raises ShapeError for other shapes or a mask that is not bool.
    """
    require_shape("imitation_loss", 2, logprobs=logprobs, response_mask=response_mask)
    require_mask("imitation_loss", response_mask, "response_mask")
    loss = weighted_mean(-masked_mean(logprobs, response_mask, dim=1), weight)
    return loss, {"imitation_loss": loss.detach()}
