"""Preference losses of the policy alone: the mean log-probability of a token ranks two responses.

[SimPO] Meng, Xia, Chen, SimPO: Simple Preference Optimization with a Reference-Free Reward, 2024,
arXiv 2405.14734. [ORPO] Hong, Lee, Thorne, ORPO: Monolithic Preference Optimization without
Reference Model, 2024, arXiv 2403.07691.

Deviations
1. Soft labels, margins and weights of relabelled pairs are obeyed, as by the ranking loss of reward
   models: the loss of a label p is p times that of the order and 1 - p times that of the other,
   which has a target margin gamma, or an SFT term, of its own. In the code of [SimPO] and in TRL
   gamma turns round with a smoothed label, so that answers that are equally good are pushed apart.
2. The SFT term of [ORPO eq. 6] is the mean over responses of what a response's tokens lose on
   average, as [ORPO eq. 2] has it. In TRL it is the mean over all tokens of a batch, those of the
   prompts among them: a pair's loss would depend on its batch. Equal for prompts of one token and
   responses of one length.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from trimtab.models.functional.checks import require_floating, require_shape
from trimtab.models.functional.masked import weighted_mean
from trimtab.models.functional.reward import pair_metrics, ranking_losses

Metrics = dict[str, Tensor]


def simpo_loss(
    chosen_logprobs: Tensor,
    rejected_logprobs: Tensor,
    *,
    beta: float,
    gamma: float,
    label_chosen: Tensor | None = None,
    margin: Tensor | None = None,
    weight: Tensor | None = None,
) -> tuple[Tensor, Metrics]:
    """The ranking loss of mean log-probabilities, with a target margin [SimPO eq. 6].

    L = -log sigmoid(beta mean log pi(y_c) - beta mean log pi(y_r) - gamma), for label 1.

    chosen_logprobs, rejected_logprobs: (B,), means over a response's tokens, nats a token. beta:
    scale of the reward. gamma: target margin, logits. label_chosen, margin, weight: (B,), as in
    `ranking_loss`.
    Returns the loss (scalar, nats) and the metrics of `ranking_loss`, of beta times the mean
    log-probabilities. Raises ShapeError for other shapes.
    """
    require_shape("simpo_loss", 1, chosen_logprobs=chosen_logprobs, label_chosen=label_chosen)
    chosen, rejected = beta * chosen_logprobs, beta * rejected_logprobs
    shift = torch.zeros_like(chosen) if margin is None else margin
    losses = ranking_losses(chosen, rejected, margin=gamma + shift)
    if label_chosen is not None:
        swapped = ranking_losses(rejected, chosen, margin=gamma - shift)
        losses = label_chosen * losses + (1 - label_chosen) * swapped
    return weighted_mean(losses, weight), pair_metrics(chosen.detach(), rejected.detach())


def log_odds(logprobs: Tensor) -> Tensor:
    """log(p / (1 - p)) of p = exp(logprobs) [ORPO eq. 4].

    logprobs: (B,), at most 0, nats; p above 1 - eps of its type counts as that.
    Returns (B,), logits, finite. Raises ShapeError for other shapes.
    """
    require_shape("log_odds", 1, logprobs=logprobs)
    require_floating("log_odds", logprobs=logprobs)
    logprobs = logprobs.clamp_max(-torch.finfo(logprobs.dtype).eps)
    # log(1 - exp(x)): each form where it cancels nothing.
    is_near_0 = logprobs > -math.log(2)
    near = torch.log(-torch.expm1(torch.where(is_near_0, logprobs, -1.0)))
    far = torch.log1p(-torch.exp(torch.where(is_near_0, -1.0, logprobs)))
    return logprobs - torch.where(is_near_0, near, far)


def orpo_loss(
    chosen_logprobs: Tensor,
    rejected_logprobs: Tensor,
    *,
    beta: float,
    label_chosen: Tensor | None = None,
    margin: Tensor | None = None,
    weight: Tensor | None = None,
) -> tuple[Tensor, Metrics]:
    """The SFT term of the chosen response and the odds ratio's ranking loss [ORPO eq. 6 and 7].

    L = -mean log pi(y_c) - beta log sigmoid(log odds(y_c) - log odds(y_r)), for label 1, the odds
    being those of exp(mean log pi(y)).

    chosen_logprobs, rejected_logprobs: (B,), means over a response's tokens, nats a token. beta:
    lambda, weight of the odds ratio. label_chosen, margin, weight: (B,), as in `ranking_loss`.
    Returns the loss (scalar, nats) and metrics, unweighted means of label 1: those of
    `ranking_loss` of beta times the mean log-probabilities, `nll_loss` (of chosen responses),
    `log_odds_chosen` (the logarithm of the odds ratio) and `log_odds_ratio` (of its sigmoid).
    Raises ShapeError for other shapes.
    """
    require_shape(
        "orpo_loss",
        1,
        chosen_logprobs=chosen_logprobs,
        rejected_logprobs=rejected_logprobs,
        label_chosen=label_chosen,
    )
    chosen, rejected = log_odds(chosen_logprobs), log_odds(rejected_logprobs)
    ranking = ranking_losses(chosen, rejected, label_chosen=label_chosen, margin=margin)
    imitated = chosen_logprobs
    if label_chosen is not None:
        imitated = label_chosen * chosen_logprobs + (1 - label_chosen) * rejected_logprobs
    ratio = (chosen - rejected).detach()
    metrics = pair_metrics(beta * chosen_logprobs.detach(), beta * rejected_logprobs.detach())
    return weighted_mean(beta * ranking - imitated, weight), {
        **metrics,
        "nll_loss": -chosen_logprobs.detach().mean(),
        "log_odds_chosen": ratio.mean(),
        "log_odds_ratio": F.logsigmoid(ratio).mean(),
    }
