"""PPO-max: score normalisation, token rewards, GAE, the two clipped losses and other tricks.

[PPO] Secrets of RLHF Part I, arXiv 2307.04964. [CODE] OpenLMLab/MOSS-RLHF, which it published.
[GAE] arXiv 1506.02438. [PPO-clip] arXiv 1707.06347. [CHAN] Chan, Golub and LeVeque, Updating
Formulae and a Pairwise Algorithm for Computing Sample Variances, 1979.

Deviations
1. [PPO section 5.4] keeps "historical mean and variance records" and gives no formula.
   `RunningMoments` merges batches in float64 [CHAN, pairwise update], which equals the moments of
   all scores at once to rounding, and ranks can be merged alike. Every score weighs the same;
   nothing is forgotten. The variance is the population form.
2. A standard deviation below 1e-8 (a history of one value) counts as 1e-8.
3. The KL penalty is the sampled log-ratio at each token, not a sum over the vocabulary; its mean
   under the policy is the KL in [PPO eq. 19].
4. All losses are means over the batch's counted tokens, unless `mean` says another.
5. The value loss is clipped around the rollout's values; the paper names the clip without a
   formula. The larger of the two errors is taken, and half the square, as in [PPO-clip] code.
6. Reward scaling divides by the deviation of a "rolling discounted sum" [PPO section 5.3.1]. A
   response has one score, at its end: that sum is the score, as in the paper's published code.
7. Importance sampling against the reference [PPO section 5.3.2] is told in words: here the ratio's
   denominator is the reference; the responses are still the current policy's own.
8. By default advantages are whitened over a rollout batch. [PPO section 5.3.1] whitens them within
   a minibatch, which can be asked for; [PPO section 5.4] does not list either in PPO-max.
9. Advantage clip and entropy bonus are not part of PPO-max; they are here for its ablation. The
   entropy bonus is given no formula. [CODE] adds |H - c|, of the batch's mean entropy H; here the
   distance is each token's own, so that parts of a batch and ranks add up to it. The two are the
   same where all tokens are on one side of c: its c of 35 nats is beyond any vocabulary's.
10. The ratio may be that of whole responses, which [RLOO] takes as one action each, and its clip
   wider above than below [DAPO section 3.1]; both papers: trimtab.models.functional.group.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from trimtab.models.functional.checks import (
    ShapeError,
    refuse_other_choices,
    require_floating,
    require_mask,
    require_shape,
)
from trimtab.models.functional.group import (
    OVER_TOKENS,
    KLEstimator,
    LossMean,
    kl_estimates,
    mean_loss,
)
from trimtab.models.functional.masked import masked_mean

__all__ = [
    "RunningMoments",
    "gae",
    "kl_loss",
    "normalise_scores",
    "policy_loss",
    "token_rewards",
    "value_loss",
]

MIN_STD = 1e-8


def normalise_scores(scores: Tensor, mean: float, std: float, clip: float | None) -> Tensor:
    """Reward normalisation and clipping [PPO eq. 18]: clip((r - mean) / std, -clip, clip).

    scores: (B,), logits. mean, std: of the history, logits, the batch included; mean 0 is reward
    scaling [PPO section 5.3.1, deviation 6], and std 1 besides the clip alone.
    clip: positive, in standard deviations (the paper's 0.8, also 0.3), None = no clip.
    Returns (B,), standard deviations.
    Raises ShapeError for other shapes, ValueError for a negative std or a clip not positive.
    """
    require_shape("normalise_scores", 1, scores=scores)
    require_floating("normalise_scores", scores=scores)
    if not std >= 0:
        raise ValueError(f"normalise_scores: std must not be negative, found {std}")
    if clip is not None and not clip > 0:
        raise ValueError(f"normalise_scores: clip must be positive or None, found {clip}")
    normalised = (scores - mean) / max(std, MIN_STD)
    return normalised if clip is None else normalised.clamp(-clip, clip)


@refuse_other_choices
@torch.no_grad()
def token_rewards(
    scores: Tensor,
    logprobs: Tensor,
    ref_logprobs: Tensor,
    response_mask: Tensor,
    kl_coef: float | Tensor,
    estimator: KLEstimator = "k1",
) -> Tensor:
    """Token rewards with the KL penalty [PPO eq. 3 and 19].

    r_t = -kl_coef (log pi_t - log pi_ref_t) at each counted token, plus the score at the last;
    another `estimator` of the KL: `kl_estimates`.

    scores: (B,), normalised or raw. logprobs, ref_logprobs: (B, T), nats, of the sampled tokens.
    response_mask: (B, T) bool, True = sampled by the policy and counted. kl_coef: score a nat, of
    all rows or (B,) of each.
    Returns rewards (B, T) without gradient, in the scores' unit; 0 where not counted. A row with
    no counted token is all 0.
    Raises ShapeError for other shapes or a mask that is not bool.
    """
    require_shape(
        "token_rewards",
        2,
        logprobs=logprobs,
        ref_logprobs=ref_logprobs,
        response_mask=response_mask,
    )
    require_mask("token_rewards", response_mask, "response_mask")
    require_shape("token_rewards", 1, scores=scores, one_per_row=response_mask[:, 0])
    if isinstance(kl_coef, Tensor):
        require_shape("token_rewards", 1, scores=scores, kl_coef=kl_coef)
        kl_coef = kl_coef.unsqueeze(1)
    penalty = -kl_coef * kl_estimates(logprobs, ref_logprobs, estimator)
    # Counted tokens from here to the end: exactly 1 at the last counted token.
    num_left = response_mask.long().flip(1).cumsum(1).flip(1)
    is_last = response_mask & (num_left == 1)
    rewards = torch.where(is_last, penalty + scores.unsqueeze(1), penalty)
    return torch.where(response_mask, rewards, torch.zeros_like(rewards))


@torch.no_grad()
def gae(
    rewards: Tensor, values: Tensor, response_mask: Tensor, gamma: float, gae_lambda: float
) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimation [PPO eq. 9; GAE eq. 16].

    delta_t = r_t + gamma V_{t+1} - V_t; A_t = delta_t + gamma lambda A_{t+1}; R_t = A_t + V_t.
    The value and the advantage after the last counted token are 0 (the response has ended).

    rewards, values: (B, T), score units; values[t] is the value before token t.
    response_mask: (B, T) bool, True = counted; each row's True positions are contiguous and may
    start anywhere. gamma, gae_lambda: in [0, 1].
    Returns advantages and returns, (B, T) without gradient, score units; 0 where not counted.
    Raises ShapeError for other shapes or a mask that is not bool or not contiguous, ValueError
    for a gamma or gae_lambda outside [0, 1].
    """
    require_shape("gae", 2, rewards=rewards, values=values, response_mask=response_mask)
    require_mask("gae", response_mask, "response_mask")
    _check_contiguous(response_mask)
    for name, value in (("gamma", gamma), ("gae_lambda", gae_lambda)):
        if not 0 <= value <= 1:
            raise ValueError(f"gae: {name} must be in [0, 1], found {value}")
    rewards = torch.where(response_mask, rewards, torch.zeros_like(rewards))
    values = torch.where(response_mask, values, torch.zeros_like(values))
    advantages = torch.zeros_like(values)
    # values and advantages are 0 at uncounted positions, which is the terminal condition.
    next_value = next_advantage = torch.zeros_like(values[:, 0])
    for t in reversed(range(rewards.shape[1])):
        delta = rewards[:, t] + gamma * next_value - values[:, t]
        advantage = delta + gamma * gae_lambda * next_advantage
        next_advantage = torch.where(response_mask[:, t], advantage, torch.zeros_like(advantage))
        next_value = values[:, t]
        advantages[:, t] = next_advantage
    return advantages, advantages + values


@refuse_other_choices
def policy_loss(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    policy_clip: float | tuple[float, float] | None,
    ratio_of: Literal["token", "response"] = "token",
    mean: LossMean = OVER_TOKENS,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Clipped policy loss [PPO eq. 15]: -mean_t min(ratio A, clip(ratio, 1 - eps, 1 + eps) A).

    logprobs: (B, T), nats, carries the gradient. old_logprobs: (B, T), nats, the ratio's
    denominator: at sampling, or of the reference [PPO section 5.3.2, deviation 7].
    advantages: (B, T), any scale. response_mask: (B, T) bool, True = counted.
    policy_clip: eps > 0, or one below 1 and one above it [deviation 10], None = plain
    importance-weighted mean. ratio_of: `response` takes the ratio of a whole response, and the mean
    of its advantages; there is then one loss a response.
    Returns the loss (scalar, the advantages' unit) and detached means over counted tokens, or over
    responses where the loss is no mean over tokens: `clip_fraction` (the clip binds: the clipped
    term is the smaller), `approx_kl` (ratio - 1 - log ratio >= 0, nats, an estimate of
    KL(old || new)), `ratio_mean`.
    Raises ShapeError for other shapes or a mask that is not bool, ValueError for eps <= 0.
    """
    require_shape(
        "policy_loss",
        2,
        logprobs=logprobs,
        old_logprobs=old_logprobs,
        advantages=advantages,
        response_mask=response_mask,
    )
    require_mask("policy_loss", response_mask, "response_mask")
    clips = policy_clip if isinstance(policy_clip, tuple) else (policy_clip, policy_clip)
    if policy_clip is not None and not all(eps is not None and eps > 0 for eps in clips):
        raise ValueError(f"policy_loss: policy_clip must be positive or None, found {policy_clip}")
    difference, mask = logprobs - old_logprobs.detach(), response_mask
    log_ratio = torch.where(mask, difference, torch.zeros_like(difference))
    advantages = advantages.detach()
    if ratio_of == "response":
        log_ratio = log_ratio.sum(1, keepdim=True)
        advantages = masked_mean(advantages, mask, dim=1).unsqueeze(1)
        mask = mask.any(1, keepdim=True)
    ratio = log_ratio.exp()
    clipped = unclipped = ratio * advantages
    below, above = clips
    if below is not None and above is not None:
        clipped = ratio.clamp(1 - below, 1 + above) * advantages
    loss = -mean_loss(torch.minimum(unclipped, clipped), mask, mean)
    with torch.no_grad():
        watched = {
            "clip_fraction": (clipped < unclipped).to(ratio.dtype),
            "approx_kl": torch.expm1(log_ratio) - log_ratio,
            "ratio_mean": ratio,
        }
        metrics = {n: mean_loss(values, mask, mean.metric_mean) for n, values in watched.items()}
    return loss, metrics


@refuse_other_choices
def kl_loss(
    logprobs: Tensor,
    ref_logprobs: Tensor,
    response_mask: Tensor,
    kl_coef: float | Tensor,
    estimator: KLEstimator,
    mean: LossMean = OVER_TOKENS,
    old_logprobs: Tensor | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """The KL penalty as a term of the loss [GRPO eq. 3 and 4]: the mean of kl_coef KL_t.

    What each `estimator` leads to, and its bias: `kl_estimates`.

    logprobs: (B, T), nats, carries the gradient. ref_logprobs: (B, T), nats. response_mask: (B, T)
    bool, True = counted. kl_coef: of all responses or (B,) of each. old_logprobs: (B, T), nats, at
    sampling; given, each KL_t is multiplied by the ratio to them [DeepSeek-V3.2, arXiv 2512.02556].
    Returns the loss (scalar, the coefficient's unit) and, detached, `kl_loss`. Raises ShapeError
    for other shapes or a mask that is not bool.
    """
    log_probabilities = {"ref_logprobs": ref_logprobs, "old_logprobs": old_logprobs}
    require_shape("kl_loss", 2, logprobs=logprobs, mask=response_mask, **log_probabilities)
    require_mask("kl_loss", response_mask, "response_mask")
    if isinstance(kl_coef, Tensor):
        require_shape("kl_loss", 1, kl_coef=kl_coef, one_per_row=response_mask[:, 0])
        kl_coef = kl_coef.unsqueeze(1)
    # Zeros before exponentials, whose gradient would be NaN where nothing is counted.
    zeros = torch.zeros_like(logprobs)
    ours = torch.where(response_mask, logprobs, zeros)
    theirs = torch.where(response_mask, ref_logprobs.detach(), zeros)
    estimates = kl_coef * kl_estimates(ours, theirs, estimator)
    if old_logprobs is not None:
        old = torch.where(response_mask, old_logprobs.detach(), zeros)
        estimates = estimates * (ours - old).exp()
    loss = mean_loss(estimates, response_mask, mean)
    return loss, {"kl_loss": loss.detach()}


def value_loss(
    values: Tensor,
    old_values: Tensor,
    returns: Tensor,
    response_mask: Tensor,
    value_clip: float | None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Clipped value loss [PPO eq. 16, section 5.4; deviation 5].

    0.5 mean_t max((V - R)^2, (clip(V, V_old - c, V_old + c) - R)^2).

    values: (B, T), score units, carries the gradient. old_values: (B, T), at the rollout.
    returns: (B, T), score units. response_mask: (B, T) bool, True = counted.
    value_clip: c > 0, score units, None = plain half squared error.
    Returns the loss (scalar, score units squared) and detached metrics over counted tokens:
    `clip_fraction` (the clipped error is the larger; 0 without a clip) and `explained_variance`
    (1 - var(R - V) / var(R), at most 1; 0 where returns do not vary).
    Raises ShapeError for other shapes or a mask that is not bool, ValueError for c <= 0.
    """
    require_shape(
        "value_loss",
        2,
        values=values,
        old_values=old_values,
        returns=returns,
        response_mask=response_mask,
    )
    require_mask("value_loss", response_mask, "response_mask")
    if value_clip is not None and not value_clip > 0:
        raise ValueError(f"value_loss: value_clip must be positive or None, found {value_clip}")
    # Zeros before the squares: 2 * NaN * 0 would reach the gradient of uncounted positions.
    zeros = torch.zeros_like(values)
    values = torch.where(response_mask, values, zeros)
    old_values = torch.where(response_mask, old_values.detach(), zeros)
    returns = torch.where(response_mask, returns.detach(), zeros)
    error = largest = (values - returns).square()
    if value_clip is not None:
        near = old_values + (values - old_values).clamp(-value_clip, value_clip)
        largest = torch.maximum(error, (near - returns).square())
    loss = 0.5 * masked_mean(largest, response_mask)
    with torch.no_grad():
        metrics = {
            "clip_fraction": masked_mean((largest > error).to(values.dtype), response_mask),
            "explained_variance": _explained_variance(values, returns, response_mask),
        }
    return loss, metrics


def _explained_variance(values: Tensor, returns: Tensor, mask: Tensor) -> Tensor:
    """1 - var(R - V) / var(R) over counted tokens, 0 where var(R) is 0; see `value_loss`."""
    residual = returns - values
    residual_var = masked_mean((residual - masked_mean(residual, mask)).square(), mask)
    return_var = masked_mean((returns - masked_mean(returns, mask)).square(), mask)
    ratio = residual_var / return_var.clamp_min(torch.finfo(return_var.dtype).tiny)
    return torch.where(return_var > 0, 1 - ratio, torch.zeros_like(ratio))


def _check_contiguous(response_mask: Tensor) -> None:
    """Raise ShapeError unless each row's True positions form one run (or none)."""
    starts = response_mask.clone()
    starts[:, 1:] &= ~response_mask[:, :-1]
    rows = (starts.sum(1) > 1).nonzero().flatten().tolist()
    if rows:
        raise ShapeError(
            f"gae: the counted tokens of a row must be contiguous, found a gap in {len(rows)} "
            f"rows (first {rows[0]}); mask only before and after the response"
        )


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
    entropies: Tensor,
    response_mask: Tensor,
    entropy_clip: float | None,
    mean: LossMean = OVER_TOKENS,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Entropy bonus as a loss [PPO section 5.3.2, appendix B.3]: -mean_t H_t, or mean_t |H_t - c|.

    entropies: (B, T), nats, of the policy at each token, carries the gradient.
    response_mask: (B, T) bool, True = counted. entropy_clip: c > 0, nats, the entropy that the
    bonus leads to, None = ever higher.
    Returns the loss (scalar, nats) and, detached, `entropy_loss` and `entropy`, a mean over counted
    tokens (nats).
    Raises ShapeError for other shapes or a mask that is not bool, ValueError for c <= 0.
    """
    require_shape("entropy_loss", 2, entropies=entropies, response_mask=response_mask)
    require_mask("entropy_loss", response_mask, "response_mask")
    if entropy_clip is not None and not entropy_clip > 0:
        raise ValueError(
            f"entropy_loss: entropy_clip must be positive or None, found {entropy_clip}"
        )
    distances = -entropies if entropy_clip is None else (entropies - entropy_clip).abs()
    loss = mean_loss(distances, response_mask, mean)
    return loss, {
        "entropy_loss": loss.detach(),
        "entropy": mean_loss(entropies.detach(), response_mask, mean.metric_mean),
    }


@dataclass
class RunningMoments:
    """Count, mean and population variance of every score seen so far.

    count, mean, var: Python floats (float64), so they survive a checkpoint bit for bit.
    Before any data mean is 0 and var 1, so that normalising changes nothing.
    """

    count: float = 0.0
    mean: float = 0.0
    var: float = 1.0

    @property
    def std(self) -> float:
        """Population standard deviation, in the scores' unit."""
        return math.sqrt(self.var)

    def update(self, x: Tensor) -> None:
        """Merge the elements of x, any shape; an empty x changes nothing.

        Raises ValueError if x holds NaN or infinity, which would poison the whole history.
        """
        if x.numel() == 0:
            return
        flat = x.detach().double().flatten()
        if not bool(flat.isfinite().all()):
            raise ValueError(
                "RunningMoments.update: scores hold NaN or infinity; check the reward model"
            )
        self.merge(float(flat.numel()), flat.mean().item(), flat.var(correction=0).item())

    def merge(self, count: float, mean: float, var: float) -> None:
        """Merge another set's moments: another rank's, or a batch's [CHAN, pairwise update].

        n = n_a + n_b; mean = mean_a + delta n_b / n; M2 = M2_a + M2_b + delta^2 n_a n_b / n.
        """
        if count == 0:
            return
        if self.count == 0:
            self.count, self.mean, self.var = count, mean, var
            return
        total = self.count + count
        delta = mean - self.mean
        squares = self.count * self.var + count * var + delta**2 * self.count * count / total
        self.mean += delta * count / total
        self.var = squares / total
        self.count = total

    def state_dict(self) -> dict[str, float]:
        """The three moments, JSON-ready."""
        return {"count": self.count, "mean": self.mean, "var": self.var}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Take over the moments of `state_dict`. Raises KeyError if one is missing."""
        self.count, self.mean, self.var = state["count"], state["mean"], state["var"]


def steered_kl_coef(coef: float, kl: float, target: float, share: float) -> float:
    """The KL coefficient after a step at `kl`, steered to `target` [Ziegler et al. 2019, eq. 2.2].

    coef (1 + clip(kl / target - 1, -.2, .2) share): raised where the policy is further away.
    coef: score a nat. kl, target: nats an answer, target above 0. share: responses of the step over
    the horizon. Returns the next coefficient, score a nat.
    """
    error = min(max(kl / target - 1, -0.2), 0.2)
    return coef * (1 + error * share)
