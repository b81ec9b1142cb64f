"""The Advantage Model: a reward relative to the one expected, kept inside a margin.

[AM] Stabilizing RLHF through Advantage Model and Selective Rehearsal, arXiv 2309.10202.

Deviations
1. The importance weight of a whole response, pi / pi'_k in [AM eq. 8], overflows: it is taken as
   exp of a log-ratio clipped to [-log_ratio_clip, log_ratio_clip]. How often the clip binds is a
   metric. Normalising the log-ratio by length, if wanted, is the caller's.
2. The log-ratios are data: no gradient flows into the policies.
3. m(x) is a constant, as in the paper's experiments [AM footnote 3].
4. [AM eq. 6] knows certain labels. With a soft label p the loss is its expectation over which
   response is the better one: p times that of the pair, 1 - p times that of the swapped pair,
   bounds included. A ranking margin changes the ranking part only.
5. [AM eq. 7] is an identity that defines e; as a loss it is a squared error on the mean reward of
   samples from the current policy.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from trimtab.models.functional.checks import ShapeError, require_floating, require_shape
from trimtab.models.functional.masked import weighted_mean
from trimtab.models.functional.reward import ranking_loss


def advantage_scores(
    rewards: Tensor,
    expected: Tensor,
    log_ratios: Tensor | None,
    num_policies: float,
    log_ratio_clip: float,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Advantage of each response over the expected reward of its prompt [AM eq. 8].

    a = r - (N - K) / N e - sum_k 1/N exp(clip(log_ratio_k)) r. K = 0 gives a = r - e.

    rewards: (B,), r(x, y), logits. expected: (B,), e(x), logits.
    log_ratios: (B, K), log pi(y|x) - log pi'_k(y|x), nats, None = no other policies (K = 0).
    num_policies: N > K; it weighs the current policy against the others.
    log_ratio_clip: positive, nats; exp of it must be finite in the dtype.
    Returns the advantage scores (B,), logits, and the metric `log_ratio_clip_fraction` (share of
    log-ratios outside the clip, in [0, 1]; 0 if K = 0).
    Raises ShapeError for other shapes, ValueError for N or the clip outside their range.
    """
    require_shape("advantage_scores", 1, rewards=rewards, expected=expected)
    require_floating("advantage_scores", rewards=rewards, expected=expected)
    if log_ratios is not None and (log_ratios.ndim != 2 or log_ratios.shape[0] != rewards.shape[0]):
        raise ShapeError(
            f"advantage_scores: log_ratios must be (B, K) with B = {rewards.shape[0]}, "
            f"found {tuple(log_ratios.shape)}"
        )
    num_others = 0 if log_ratios is None else log_ratios.shape[1]
    if not num_policies > num_others:  # at N = K, e has weight 0, and at ratio 1 a = 0
        raise ValueError(
            f"advantage_scores: num_policies must be above the number of log-ratio columns "
            f"({num_others}), found {num_policies}"
        )
    if log_ratios is None or num_others == 0:
        return rewards - expected, {"log_ratio_clip_fraction": rewards.new_zeros(())}
    _check_clip(log_ratio_clip, rewards.dtype)
    log_ratios = log_ratios.detach()
    ratios = log_ratios.clamp(-log_ratio_clip, log_ratio_clip).exp()
    scale = advantage_scale(num_policies, num_others)
    advantages = rewards - scale * expected - ratios.sum(1) / num_policies * rewards
    is_clipped = log_ratios.abs() > log_ratio_clip
    return advantages, {"log_ratio_clip_fraction": is_clipped.to(rewards.dtype).mean()}


def advantage_scale(num_policies: float, num_others: int) -> float:
    """(N - K) / N, the scale of advantages: at ratios of 1 they are that times r - e [AM eq. 8]."""
    return (num_policies - num_others) / num_policies


def advantage_loss(
    chosen_adv: Tensor,
    rejected_adv: Tensor,
    *,
    margin: float = 2.5,
    label_chosen: Tensor | None = None,
    ranking_margin: Tensor | None = None,
    weight: Tensor | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Ranking loss plus bounding loss, mean over pairs [AM eq. 6].

    L = -[log sigmoid(a_c - a_r) + log sigmoid(m - a_c) + log sigmoid(m + a_r)].

    chosen_adv, rejected_adv: (B,), advantage scores, logits. margin: m, logits, the paper's 2.5.
    label_chosen: (B,), probability that chosen is better, None = 1; ranking_margin: (B,), logits,
    None = 0, reaches the ranking part only. weight: (B,), not negative, None = 1.
    Returns the loss (scalar, nats) and detached metrics: `ranking_loss` and `bounding_loss`
    (nats, they sum to the loss), and `accuracy`, `score_chosen`, `score_rejected`, `score_gap`
    of the advantage scores, as in `reward.ranking_loss`.
    Raises ShapeError for other shapes, ValueError for a margin that is not finite.
    """
    require_shape(
        "advantage_loss",
        1,
        chosen_adv=chosen_adv,
        rejected_adv=rejected_adv,
        label_chosen=label_chosen,
        ranking_margin=ranking_margin,
        weight=weight,
    )
    if not math.isfinite(margin):
        raise ValueError(f"advantage_loss: margin must be finite, found {margin}")
    ranking, metrics = ranking_loss(
        chosen_adv, rejected_adv, label_chosen=label_chosen, margin=ranking_margin, weight=weight
    )
    bounds = _bounds(chosen_adv, rejected_adv, margin)
    if label_chosen is not None:
        swapped = _bounds(rejected_adv, chosen_adv, margin)
        bounds = label_chosen * bounds + (1 - label_chosen) * swapped
    bounding = weighted_mean(bounds, weight)
    parts = {"ranking_loss": ranking.detach(), "bounding_loss": bounding.detach()}
    return ranking + bounding, parts | metrics


def _bounds(better: Tensor, worse: Tensor, margin: float) -> Tensor:
    return -(F.logsigmoid(margin - better) + F.logsigmoid(margin + worse))


def expected_reward_loss(
    expected: Tensor, mean_reward_of_policy_samples: Tensor
) -> tuple[Tensor, dict[str, Tensor]]:
    """Squared error of the expected reward, e(x) = E_{y ~ pi} r(x, y) [AM eq. 7].

    L = mean_i (e_i - target_i)^2; the target is detached, so r is not pulled towards e.

    expected: (B,), e(x), logits. mean_reward_of_policy_samples: (B,), mean of r(x, y) over
    samples y of the current policy, logits.
    Returns the loss (scalar, logits squared) and detached metrics `expected_reward_loss`,
    `expected_mean`, `policy_reward_mean` (logits).
    Raises ShapeError for other shapes.
    """
    target = mean_reward_of_policy_samples.detach()
    require_shape("expected_reward_loss", 1, expected=expected, target=target)
    require_floating("expected_reward_loss", expected=expected, target=target)
    loss = (expected - target).square().mean()
    return loss, {
        "expected_reward_loss": loss.detach(),
        "expected_mean": expected.detach().mean(),
        "policy_reward_mean": target.mean(),
    }


def _check_clip(log_ratio_clip: float, dtype: torch.dtype) -> None:
    """Raise ValueError unless the clip is positive and its exponential finite in `dtype`."""
    largest = math.log(torch.finfo(dtype).max)
    if not 0 < log_ratio_clip < largest:
        raise ValueError(
            f"advantage_scores: log_ratio_clip must be in (0, {largest:.1f}) nats for {dtype}, "
            f"found {log_ratio_clip}"
        )
