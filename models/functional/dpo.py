"""Direct preference optimisation: a policy learns from pairs, without a reward model or sampling.

[DPO] Rafailov et al., Direct Preference Optimization: Your Language Model is Secretly a Reward
Model, 2023, arXiv 2305.18290. [cDPO] Mitchell, A note on DPO with noisy preferences, 2023.

Deviations
1. A pair brings the treatment that relabelling gave it, as in the ranking loss of reward models:
   soft label, margin and weight. [DPO eq. 7] is that of label 1, margin 0 and weight 1; a soft
   label of 1 - alpha is [cDPO].
2. `label_smoothing` comes on top of the label, which may be soft already: p (1 - e) + (1 - p) e. Of
   the label of an unbiased loss at the same rate it makes 1: one undoes the other, and callers
   refuse both.
"""

from __future__ import annotations

from torch import Tensor

from trimtab.models.functional.checks import require_floating, require_shape
from trimtab.models.functional.reward import ranking_loss


def implicit_rewards(logprobs: Tensor, ref_logprobs: Tensor, beta: float) -> Tensor:
    """The reward whose optimal policy is pi, up to what the prompt alone decides [DPO eq. 5].

    r(x, y) = beta log pi(y|x) / pi_ref(y|x).

    logprobs, ref_logprobs: (B,), of whole responses, nats. beta: weight of the KL to the reference.
    Returns (B,), logits. Raises ShapeError for other shapes.
    """
    require_shape("implicit_rewards", 1, logprobs=logprobs, ref_logprobs=ref_logprobs)
    require_floating("implicit_rewards", logprobs=logprobs)
    return beta * (logprobs - ref_logprobs)


def dpo_loss(  # noqa: PLR0913 - the four terms of eq. 7 and a pair's treatment
    chosen_logprobs: Tensor,
    rejected_logprobs: Tensor,
    ref_chosen_logprobs: Tensor,
    ref_rejected_logprobs: Tensor,
    *,
    beta: float,
    label_smoothing: float = 0.0,
    label_chosen: Tensor | None = None,
    margin: Tensor | None = None,
    weight: Tensor | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """The ranking loss of implicit rewards [DPO eq. 7]; its minimum is pi_ref exp(r / beta) / Z.

    L = -log sigmoid(beta log pi(y_c)/pi_ref(y_c) - beta log pi(y_r)/pi_ref(y_r)), for label 1.

    chosen_logprobs, rejected_logprobs, ref_chosen_logprobs, ref_rejected_logprobs: (B,), of whole
    responses, nats. beta: weight of the KL to the reference. label_smoothing: in [0, 0.5), share of
    wrong labels assumed. label_chosen, margin, weight: (B,), as in `ranking_loss`.
    Returns the loss (scalar, nats) and the metrics of `ranking_loss`, whose scores are implicit
    rewards: below 0, a response has become less likely than under the reference.
    Raises ShapeError for other shapes.
    """
    require_shape(
        "dpo_loss",
        1,
        chosen_logprobs=chosen_logprobs,
        rejected_logprobs=rejected_logprobs,
        label_chosen=label_chosen,
    )
    if label_smoothing > 0:
        label = chosen_logprobs.new_ones(len(chosen_logprobs))
        label = label if label_chosen is None else label_chosen
        label_chosen = label * (1 - label_smoothing) + (1 - label) * label_smoothing
    return ranking_loss(
        implicit_rewards(chosen_logprobs, ref_chosen_logprobs, beta),
        implicit_rewards(rejected_logprobs, ref_rejected_logprobs, beta),
        label_chosen=label_chosen,
        margin=margin,
        weight=weight,
    )
