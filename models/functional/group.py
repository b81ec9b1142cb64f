"""Policy gradients without a critic: baselines from a prompt's other responses, and their terms.

[RLOO] Ahmadian et al., Back to Basics, arXiv 2402.14740, section 3.3. [GRPO] Shao et al.,
DeepSeekMath, arXiv 2402.03300, section 4.1. [DR] Liu et al., Understanding R1-Zero-Like Training
(Dr. GRPO), arXiv 2503.20783. [R++] Hu et al., REINFORCE++, arXiv 2501.03262. [DAPO] Yu et al.,
arXiv 2503.14476, section 3. [K] Schulman, Approximating KL Divergence, 2020,
joschu.net/blog/kl-approx.html. [RK] Liu et al., Rethinking KL Regularization in RLHF,
arXiv 2510.01555. [CE] Shah et al., A Comedy of Estimators, arXiv 2512.21852. [DS] DeepSeek-V3.2,
arXiv 2512.02556. [TIS] Yao et al., Your Efficient RL Framework Secretly Brings You Off-Policy RL
Training, 2025, fengyao.notion.site/off-policy-rl.

Deviations
1. A group's standard deviation divides by K - 1 and has 1e-4 added, as in TRL's GRPOTrainer; [GRPO]
   prints neither.
2. [R++] normalises over all tokens of a batch; here that is `masked_whiten`, as for PPO, whose
   variance is the population form and has 1e-8 added.
3. A response's return is the sum of its token rewards, the KL penalty of all tokens included, so
   that each token has the same advantage, as [RLOO], where a response is one action.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from trimtab.models.functional.checks import (
    refuse_other_choices,
    require_floating,
    require_mask,
    require_shape,
)
from trimtab.models.functional.masked import masked_mean

GroupBaseline = Literal["leave_one_out", "group_mean"]
KLEstimator = Literal["k1", "k2", "k3"]
STD_EPS = 1e-4


class LossMean(NamedTuple):
    """What a loss of B responses is a mean over.

    token: all tokens, so that long responses weigh more [DAPO section 3.3; TRL's bnpo].
    sequence: each response's tokens, then responses, so that a token of a long response weighs less
    [GRPO eq. 3]. constant: B max_length tokens, however many there are, so that a token weighs the
    same in a batch of any lengths [DR]. max_length: of a response, tokens, for `constant`.
    """

    over: Literal["token", "sequence", "constant"] = "token"
    max_length: int | None = None

    @property
    def metric_mean(self) -> LossMean:
        """The mean of what is watched beside the loss, which weighs micro batches as it does."""
        return LossMean("token" if self.over == "token" else "sequence")


OVER_TOKENS = LossMean()


@refuse_other_choices
@torch.no_grad()
def group_advantages(
    returns: Tensor, num_responses: int, baseline: GroupBaseline, divide_by_std: bool = False
) -> Tensor:
    """Advantages of K responses to one prompt by each other.

    leave_one_out [RLOO]: R_i - mean of the other K - 1. group_mean [GRPO]: R_i - mean of all K,
    which is (K - 1) / K of it. divide_by_std [GRPO]: over the group's standard deviation, which
    makes prompts weigh alike whose responses differ little; [DR] leaves it out.

    returns: (B,), score units; the K responses to a prompt follow one another. num_responses: K.
    baseline: what is taken off.
    Returns (B,) without gradient, score units, or standard deviations.
    Raises ShapeError for other shapes, ValueError for another baseline, and for a K below 2 or that
    does not divide B.
    """
    require_shape("group_advantages", 1, returns=returns)
    require_floating("group_advantages", returns=returns)
    if num_responses < 2 or len(returns) % num_responses:
        raise ValueError(
            "group_advantages: num_responses must be at least 2 and divide the number of "
            f"responses, found {num_responses} and {len(returns)}"
        )
    grouped = returns.view(-1, num_responses)
    advantages = grouped - grouped.mean(1, keepdim=True)
    if baseline == "leave_one_out":
        advantages = advantages * num_responses / (num_responses - 1)
    if divide_by_std:
        advantages = advantages / (grouped.std(1, keepdim=True) + STD_EPS)
    return advantages.flatten()


def mean_loss(x: Tensor, mask: Tensor, mean: LossMean = OVER_TOKENS) -> Tensor:
    """The mean of the counted tokens' losses.

    x: (B, T), any unit. mask: (B, T) bool, True = counted.
    Returns a scalar in x's unit; a response with no counted token counts as 0 in `sequence`.
    Raises ShapeError for other shapes or a mask that is not bool, ValueError for `constant` without
    a positive max_length.
    """
    require_shape("mean_loss", 2, x=x, mask=mask)
    if mean.over == "token":
        return masked_mean(x, mask)
    if mean.over == "sequence":
        return masked_mean(x, mask, dim=1).mean()
    if mean.over != "constant":
        raise ValueError(f"mean_loss: over must be token, sequence or constant, found {mean.over}")
    if mean.max_length is None or mean.max_length < 1:
        raise ValueError(f"mean_loss: max_length must be positive, found {mean.max_length}")
    require_mask("mean_loss", mask)
    return torch.where(mask, x, torch.zeros_like(x)).sum() / (len(x) * mean.max_length)


@refuse_other_choices
def kl_estimates(logprobs: Tensor, ref_logprobs: Tensor, estimator: KLEstimator = "k1") -> Tensor:
    """Estimates of KL(pi || pi_ref) at sampled tokens [K], of l = log pi - log pi_ref.

    k1 = l; k2 = l^2 / 2; k3 = exp(-l) - 1 + l, which are never below 0. Under tokens of pi the mean
    of k1 and of k3 is the KL, that of k2 is not. What the gradient then is [RK, CE]:
    in the reward (no gradient of its own), k1 gives that of the KL; k2 and k3 are biased.
    In the loss, k1 gives 0 on average; k2 that of the KL; k3 that of KL(pi_ref || pi). That holds
    for tokens of the policy that is updated; after the first update of a rollout they are of an
    earlier one. Times the ratio of the two policies, whose gradient counts, k1 and k3 have that of
    the KL for tokens of either [DS]. In the loss a token answers for its own KL, in the reward for
    that of all tokens behind it as well.

    logprobs: (B, T), nats, of the sampled tokens. ref_logprobs: (B, T), nats.
    Returns (B, T), nats, with the gradient of logprobs.
    Raises ShapeError for other shapes.
    """
    require_shape("kl_estimates", 2, logprobs=logprobs, ref_logprobs=ref_logprobs)
    log_ratio = logprobs - ref_logprobs
    if estimator == "k1":
        return log_ratio
    return log_ratio.square() / 2 if estimator == "k2" else torch.expm1(-log_ratio) + log_ratio


@refuse_other_choices
def truncated_weights(
    logprobs: Tensor,
    sampler_logprobs: Tensor,
    response_mask: Tensor,
    cap: float,
    ratio_of: Literal["token", "response"] = "token",
) -> Tensor:
    """min(pi / pi_sampler, C) of tokens that another engine has sampled [TIS].

    What their advantages are multiplied by, and so the policy loss, as the engine's probabilities
    are not those that the trainer computes. Untruncated they make the gradient unbiased where
    tokens are drawn from pi_sampler, not from its nucleus; C bounds the variance.

    logprobs: (B, T), nats, of the trainer's policy at sampling. sampler_logprobs: (B, T), nats, of
    what the tokens were drawn from. response_mask: (B, T) bool, True = counted. cap: C > 0.
    ratio_of: `response`, the weight of all a response's tokens is that of their product.
    Returns (B, T), without a gradient, 1 where nothing is counted.
    Raises ShapeError for other shapes or a mask that is not bool, ValueError for C <= 0.
    """
    log_probabilities = {"logprobs": logprobs, "sampler_logprobs": sampler_logprobs}
    require_shape("truncated_weights", 2, mask=response_mask, **log_probabilities)
    require_mask("truncated_weights", response_mask, "response_mask")
    if not cap > 0:
        raise ValueError(f"truncated_weights: cap must be positive, found {cap}")
    log_ratio = (logprobs - sampler_logprobs).detach().masked_fill(~response_mask, 0.0)
    if ratio_of == "response":
        log_ratio = log_ratio.sum(1, keepdim=True).expand_as(log_ratio)
    return log_ratio.exp().clamp(max=cap).masked_fill(~response_mask, 1.0)


def overlong_penalties(lengths: Tensor, max_length: int, buffer: int) -> Tensor:
    """Soft penalty on long responses, a share of the whole one [DAPO eq. 13].

    0 up to max_length - buffer tokens, then linear, 1 at max_length.

    lengths: (B,), tokens. max_length: of a response, tokens. buffer: in [1, max_length], tokens.
    Returns (B,) in [0, 1], float32.
    Raises ShapeError for other shapes, ValueError for a buffer out of its range.
    """
    require_shape("overlong_penalties", 1, lengths=lengths)
    if not 1 <= buffer <= max_length:
        raise ValueError(
            f"overlong_penalties: buffer must be in [1, {max_length}] (max_length), found {buffer}"
        )
    return ((lengths - max_length + buffer).float() / buffer).clamp(0.0, 1.0)
