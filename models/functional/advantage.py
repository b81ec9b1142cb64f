"""The Advantage Model: a reward relative to the one expected, kept inside a margin.

[AM] Stabilizing RLHF through Advantage Model and Selective Rehearsal, arXiv 2309.10202.

Deviations
1. The importance weight of a whole response, pi / pi'_k in [AM eq. 8], overflows: it is taken as
   exp of a log-ratio clipped to [-log_ratio_clip, log_ratio_clip]. How often the clip binds is a
   metric. Normalising the log-ratio by length, if wanted, is the caller's.
2. The log-ratios are data: no gradient flows into the policies.
3. As printed, [AM eq. 8] takes r(x, y) itself for the sample of each policy's expected reward. So r
   has the coefficient 1 - sum_k ratio_k / N, which turns negative where the ratios are large, and
   whoever scores an answer without its ratios has another score than was trained.
   `leave_one_out_advantages` takes the pair's other response, with self-normalised weights, and
   leaves r - e as the one score. Over both responses of pairs that are drawn from the mixture it
   estimates the same expectation where ratios are of whole responses; ratios a token, or clipped,
   leave it nearer to the mixture's mean.
4. m(x) is a constant in the paper's experiments; how to choose it is left open [AM footnote 3].
   With a constant the optimum is not calibrated: m = 2.5 turns a probability of .9 into .783.
   `calibrated_margin` is the m(x) whose optimum is. With it a pair labelled either way has the
   same gradient: what is learned is the log-odds that m(x) is made of.
5. [AM eq. 6] knows certain labels. With a soft label p the loss is its expectation over which
   response is the better one: p times that of the pair, 1 - p times that of the swapped pair,
   bounds included. A ranking margin changes the ranking part only.
6. [AM eq. 7] is an identity that defines e; as a loss it is a squared error on the mean reward of
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
    _check_clip("advantage_scores", log_ratio_clip, rewards.dtype)
    log_ratios = log_ratios.detach()
    ratios = log_ratios.clamp(-log_ratio_clip, log_ratio_clip).exp()
    scale = advantage_scale(num_policies, num_others)
    advantages = rewards - scale * expected - ratios.sum(1) / num_policies * rewards
    is_clipped = log_ratios.abs() > log_ratio_clip
    return advantages, {"log_ratio_clip_fraction": is_clipped.to(rewards.dtype).mean()}


def advantage_scale(num_policies: float, num_others: int) -> float:
    """(N - K) / N, the scale of advantages: at ratios of 1 they are that times r - e [AM eq. 8].

    num_policies: N, above 0. num_others: K. Returns a number without unit.
    """
    return (num_policies - num_others) / num_policies


def mixture_weights(log_ratios: Tensor, log_ratio_clip: float) -> Tensor:
    """Self-normalised importance weights of responses that K policies wrote in equal parts.

    w_i = K / sum_k exp(-clip(log_ratio_ik)), pi over the mixture of the pi'_k, divided by its mean
    over the responses (the balance heuristic of Veach and Guibas 1995).

    log_ratios: (N, K), log pi(y|x) - log pi'_k(y|x), nats, K >= 1. log_ratio_clip: positive, nats.
    Returns (N,), positive, of mean 1, without a gradient.
    Raises ShapeError for other shapes, ValueError for a clip out of range.
    """
    require_shape("mixture_weights", 2, log_ratios=log_ratios)
    require_floating("mixture_weights", log_ratios=log_ratios)
    _check_clip("mixture_weights", log_ratio_clip, log_ratios.dtype)
    clipped = log_ratios.detach().clamp(-log_ratio_clip, log_ratio_clip)
    weights = clipped.neg().exp().mean(1).reciprocal()
    return weights / weights.mean()


def leave_one_out_advantages(
    rewards: Tensor, expected: Tensor, weight_sums: Tensor, num_policies: float
) -> Tensor:
    """[AM eq. 8] with each response's baseline estimated from the pair's other response j.

    a_i = r_i - (1 - W_j / N) e - W_j / N r_j = (r_i - e) - W_j / N (r_j - e). At weights of 1, W =
    K, the coefficient of e is the printed (N - K) / N. r_j - e is held fixed, as in leave-one-out
    baselines of REINFORCE [Kool et al. 2019]. A shift of both r and e changes no advantage and has
    no gradient.

    rewards, expected: (B, 2), r and e of both responses of a pair, logits; e is of their prompt.
    weight_sums: (B, 2), W = K times `mixture_weights`, each below N (`require_enough_policies`).
    Returns (B, 2), logits. Raises ShapeError for other shapes.
    """
    require_shape(
        "leave_one_out_advantages", 2, rewards=rewards, expected=expected, weight_sums=weight_sums
    )
    scores = rewards - expected
    return scores - weight_sums.flip(1) / num_policies * scores.detach().flip(1)


def require_enough_policies(weight_sums: Tensor, num_policies: float) -> None:
    """Raise ValueError unless N is above every sum of weights over the K policies.

    At or above N the baseline has more than the whole weight, or, as [AM eq. 8] is printed, the
    coefficient of r is no longer positive and the order of responses turns round.

    weight_sums: (B,), without unit, of any dtype. num_policies: N. Returns nothing.
    """
    largest = float(weight_sums.max())
    if not num_policies > largest:
        raise ValueError(
            f"num_policies must be above the largest sum of importance weights, {largest:.3g}, "
            f"found {num_policies:g}: raise it, or lower log_ratio_clip"
        )


def calibrated_margin(log_odds: Tensor, largest: float) -> Tensor:
    """The m(x) under which [AM eq. 6] is least where sigmoid(a_c - a_r) is the label's probability.

    For a certain label eq. 6 is least at a_c = -a_r = m / 3: there the slope of its ranking part,
    sigmoid(-2m/3), is that of each bound. So m(x) = 3/2 l for a label whose log-odds of being right
    are l, negative for one that is rather wrong; the same pair labelled the other way has -m(x)
    and the same optimum, and so has every mixture of the two.

    log_odds: (N,), logits, infinite for a certain label. largest: positive, bound of |m|, logits.
    Returns m(x) (N,), logits. Raises ShapeError for other shapes, ValueError for the bound.
    """
    require_shape("calibrated_margin", 1, log_odds=log_odds)
    require_floating("calibrated_margin", log_odds=log_odds)
    if not 0 < largest < math.inf:
        raise ValueError(f"calibrated_margin: largest must be positive, found {largest}")
    return (1.5 * log_odds).clamp(-largest, largest)


def advantage_loss(
    chosen_adv: Tensor,
    rejected_adv: Tensor,
    *,
    margin: float | Tensor = 2.5,
    bounded: tuple[Tensor, Tensor] | None = None,
    label_chosen: Tensor | None = None,
    ranking_margin: Tensor | None = None,
    weight: Tensor | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Ranking loss plus bounding loss, mean over pairs [AM eq. 6].

    L = -[log sigmoid(a_c - a_r) + log sigmoid(m - a_c) + log sigmoid(m + a_r)].

    chosen_adv, rejected_adv: (B,), advantage scores, logits. margin: m, logits, the paper's 2.5; or
    m(x) (B,) of pairs in the order given, finite, whose negative holds for the swapped pair.
    bounded: the advantages, (B,) each, that the bounds hold, if others than those that are ranked.
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
    better, worse = bounded or (chosen_adv, rejected_adv)
    if isinstance(margin, Tensor):
        require_shape("advantage_loss", 1, margin=margin, better=better, worse=worse)
    elif not math.isfinite(margin):
        raise ValueError(f"advantage_loss: margin must be finite, found {margin}")
    ranking, metrics = ranking_loss(
        chosen_adv, rejected_adv, label_chosen=label_chosen, margin=ranking_margin, weight=weight
    )
    bounds = _bounds(better, worse, margin)
    if label_chosen is not None:
        swapped = _bounds(worse, better, -margin if isinstance(margin, Tensor) else margin)
        bounds = label_chosen * bounds + (1 - label_chosen) * swapped
    bounding = weighted_mean(bounds, weight)
    parts = {"ranking_loss": ranking.detach(), "bounding_loss": bounding.detach()}
    return ranking + bounding, parts | metrics


def _bounds(better: Tensor, worse: Tensor, margin: float | Tensor) -> Tensor:
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


def _check_clip(name: str, log_ratio_clip: float, dtype: torch.dtype) -> None:
    """Raise ValueError unless the clip is positive and its exponential finite in `dtype`."""
    largest = math.log(torch.finfo(dtype).max)
    if not 0 < log_ratio_clip < largest:
        raise ValueError(
            f"{name}: log_ratio_clip must be in (0, {largest:.1f}) nats for {dtype}, "
            f"found {log_ratio_clip}"
        )
