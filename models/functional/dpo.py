"""Direct preference optimisation: a policy learns from pairs, without a reward model or sampling.

[DPO] Rafailov et al., Direct Preference Optimization: Your Language Model is Secretly a Reward
Model, 2023, arXiv 2305.18290. [cDPO] Mitchell, A note on DPO with noisy preferences, 2023. [rDPO]
Chowdhury, Kini, Natarajan, Provably Robust DPO, arXiv 2403.00409. [IPO] Azar et al., A General
Theoretical Paradigm to Understand Learning from Human Preferences, arXiv 2310.12036. [RSO] Liu et
al., Statistical Rejection Sampling Improves Preference Optimization, arXiv 2309.06657, whose hinge
loss is that of [SLiC], arXiv 2305.10425. [KTO] Ethayarajh et al., KTO: Model Alignment as Prospect
Theoretic Optimization, arXiv 2402.01306.

With r = beta log pi / pi_ref, and gap = r(chosen) - r(rejected) - margin, a pair loses

    sigmoid    -log sigmoid(gap)                       [DPO eq. 7]
    hinge      max(0, 1 - gap)                         [RSO, hinge-norm]
    ipo        ((gap - 1/2) / beta)^2                  [IPO eq. 17, tau = beta]
    robust     ((1 - e) l(gap) - e l(-gap)) / (1 - 2 e), l of sigmoid, e the share of wrong labels
               [rDPO]

and in KTO each answer for itself, lambda_y - v, against the baseline z0.

Deviations
1. A pair brings the treatment that relabelling gave it, as in the ranking loss of reward models:
   soft label, margin and weight. [DPO eq. 7] is that of label 1, margin 0 and weight 1; a soft
   label of 1 - alpha is [cDPO]. The loss of a label p is p l(gap) + (1 - p) l(-gap), whatever l:
   for ipo it is least at gap p - 1/2, as [IPO eq. 10].
2. `label_smoothing` comes on top of the label, which may be soft already: p (1 - e) + (1 - p) e. Of
   the label of an unbiased loss at the same rate it makes 1: one undoes the other, and callers
   refuse both. Where the loss is robust it is that rate, and (p - e) / (1 - 2 e) the label.
3. Log-probabilities are those of whole responses in the papers. For ipo callers give means over a
   response's tokens, as TRL does, to whom the authors of [IPO] confirmed it: the squares of sums
   would weigh long responses.
4. A pair gives [KTO] a desirable and an undesirable answer, a soft label both of them in part. Its
   baseline is the batch's, as in [KTO section 4] and TRL: prompts with the answers of others. TRL
   takes the answer before, callers here that of the prompt before: one to the same prompt would
   tell of the reward instead.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from trimtab.models.functional.checks import refuse_other_choices, require_floating, require_shape
from trimtab.models.functional.label_noise import label_at_rate
from trimtab.models.functional.masked import weighted_mean
from trimtab.models.functional.reward import pair_metrics, ranking_loss

PairLoss = Literal["sigmoid", "hinge", "ipo", "robust"]


def implicit_rewards(logprobs: Tensor, ref_logprobs: Tensor, beta: float) -> Tensor:
    """The reward whose optimal policy is pi, up to what the prompt alone decides [DPO eq. 5].

    r(x, y) = beta log pi(y|x) / pi_ref(y|x).

    logprobs, ref_logprobs: (B,), of whole responses, nats. beta: weight of the KL to the reference.
    Returns (B,), logits. Raises ShapeError for other shapes.
    """
    require_shape("implicit_rewards", 1, logprobs=logprobs, ref_logprobs=ref_logprobs)
    require_floating("implicit_rewards", logprobs=logprobs)
    return beta * (logprobs - ref_logprobs)


@refuse_other_choices
def dpo_loss(  # noqa: PLR0913 - the four terms of eq. 7 and a pair's treatment
    chosen_logprobs: Tensor,
    rejected_logprobs: Tensor,
    ref_chosen_logprobs: Tensor,
    ref_rejected_logprobs: Tensor,
    *,
    beta: float,
    loss: PairLoss = "sigmoid",
    label_smoothing: float = 0.0,
    label_chosen: Tensor | None = None,
    margin: Tensor | None = None,
    weight: Tensor | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """A loss of the gap between implicit rewards, weighted mean over pairs; see the module.

    That of sigmoid is the ranking loss [DPO eq. 7]; its minimum is pi_ref exp(r / beta) / Z.

    chosen_logprobs, rejected_logprobs, ref_chosen_logprobs, ref_rejected_logprobs: (B,), nats, of
    whole responses; for ipo means over their tokens. beta: weight of the KL to the reference, tau
    of ipo. label_smoothing: in [0, 0.5), share of wrong labels assumed. label_chosen, margin,
    weight: (B,), as in `ranking_loss`.
    Returns the loss (scalar, nats; for hinge and ipo without unit) and the metrics of
    `ranking_loss`, whose scores are implicit rewards: below 0, a response has become less likely
    than under the reference.
    Raises ShapeError for other shapes, ValueError for a smoothing out of range
    and for another loss.
    """
    require_shape(
        "dpo_loss",
        1,
        chosen_logprobs=chosen_logprobs,
        rejected_logprobs=rejected_logprobs,
        label_chosen=label_chosen,
        margin=margin,
        weight=weight,
    )
    if label_smoothing != 0:
        given = torch.ones_like(chosen_logprobs) if label_chosen is None else label_chosen
        label_chosen = label_at_rate(given, label_smoothing, is_unbiased=loss == "robust")
    chosen = implicit_rewards(chosen_logprobs, ref_chosen_logprobs, beta)
    rejected = implicit_rewards(rejected_logprobs, ref_rejected_logprobs, beta)
    if loss in ("sigmoid", "robust"):
        return ranking_loss(
            chosen, rejected, label_chosen=label_chosen, margin=margin, weight=weight
        )
    gap = chosen - rejected if margin is None else chosen - rejected - margin

    def loss_of(gap: Tensor) -> Tensor:
        return F.relu(1 - gap) if loss == "hinge" else ((gap - 0.5) / beta).square()

    losses = loss_of(gap)
    if label_chosen is not None:
        losses = label_chosen * losses + (1 - label_chosen) * loss_of(-gap)
    return weighted_mean(losses, weight), pair_metrics(chosen.detach(), rejected.detach())


def mismatched_kl(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """z0, the KL to the reference as far as other prompts' answers tell it [KTO section 4].

    z0 = max(0, mean of log pi(y'|x) / pi_ref(y'|x)), y' the answers to other prompts than x.

    logprobs, ref_logprobs: (M,), nats, of whole answers y'.
    Returns a scalar without gradient, nats. Raises ShapeError for other shapes.
    """
    return implicit_rewards(logprobs, ref_logprobs, beta=1.0).detach().mean().clamp_min(0)


def kto_loss(  # noqa: PLR0913 - of each answer four numbers, of the batch one
    logprobs: Tensor,
    ref_logprobs: Tensor,
    desirable: Tensor,
    baseline_kl: Tensor,
    *,
    beta: float,
    desirable_weight: float = 1.0,
    undesirable_weight: float = 1.0,
    weight: Tensor | None = None,
) -> Tensor:
    """The loss of answers that are desirable or not, each for itself [KTO section 4].

    l = p lambda_D (1 - sigmoid(r - beta z0)) + (1 - p) lambda_U (1 - sigmoid(beta z0 - r)), r of
    `implicit_rewards`; weighted mean over answers.

    logprobs, ref_logprobs: (R,), of whole answers, nats. desirable: (R,), p, probability that an
    answer is desirable, as a label of pairs: above 1 the loss is unbiased under wrong labels.
    baseline_kl: z0, a scalar, nats, from `mismatched_kl`. beta: how fast the value of an answer
    saturates. desirable_weight, undesirable_weight: lambda_D and lambda_U. weight: (R,), not
    negative, None = 1.
    Returns the loss (scalar, without unit). Raises ShapeError for other shapes.
    """
    require_shape("kto_loss", 1, logprobs=logprobs, desirable=desirable, weight=weight)
    require_shape("kto_loss", 0, baseline_kl=baseline_kl)
    require_floating("kto_loss", desirable=desirable)
    value = implicit_rewards(logprobs, ref_logprobs, beta) - beta * baseline_kl
    losses = desirable * desirable_weight * torch.sigmoid(-value)
    losses = losses + (1 - desirable) * undesirable_weight * torch.sigmoid(value)
    return weighted_mean(losses, weight)
