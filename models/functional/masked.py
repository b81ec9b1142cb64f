"""Means, whitening and log-probabilities over counted positions.

Masks are bool and True = counted. What stands at an uncounted position, NaN and infinities
included, changes neither a result nor a gradient: masking a position equals dropping it.

Conventions
1. The mean over no counted element is 0 with gradient 0 (not NaN), so that a padding row or a
   micro-batch of zero weight adds nothing to a sum over ranks.
2. Variances divide by the number counted (population), as everywhere in this package.
3. Logits below float32 are raised to float32 before any exponential: a bf16 log-probability has
   an error of up to 0.03 nats, the size of a whole policy update.
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


def masked_mean(x: Tensor, mask: Tensor, dim: int | None = None) -> Tensor:
    """Mean of the counted elements: sum_i mask_i x_i / sum_i mask_i.

    x: (...), any unit. mask: (...) bool, True = counted, same shape as x.
    dim: the axis to average over, None for all.
    Returns a scalar, or x's shape without `dim`, in x's unit; 0 where nothing is counted.
    Raises ShapeError for other shapes or a mask that is not bool.
    """
    require_shape("masked_mean", None, x=x, mask=mask)
    require_mask("masked_mean", mask)
    require_floating("masked_mean", x=x)
    # where, not a product: 0 * NaN is NaN, in the value and in the gradient.
    counted = torch.where(mask, x, torch.zeros_like(x))
    if dim is None:
        return counted.sum() / mask.sum().clamp_min(1)
    return counted.sum(dim) / mask.sum(dim).clamp_min(1)


def masked_whiten(x: Tensor, mask: Tensor, shift_mean: bool = True, eps: float = 1e-8) -> Tensor:
    """Scale the counted elements to variance 1, and to mean 0 unless `shift_mean` is False.

    (x - mean) / sqrt(var + eps), [PPO section 5.3.1, advantage normalisation], mean and
    population variance over all counted elements.

    x: (...), any unit. mask: (...) bool, True = counted. shift_mean: False adds the mean back.
    Returns x's shape, unitless; 0 at uncounted positions.
    Raises ShapeError for other shapes or a mask that is not bool.
    """
    require_shape("masked_whiten", None, x=x, mask=mask)
    require_mask("masked_whiten", mask)
    require_floating("masked_whiten", x=x)
    mean = masked_mean(x, mask)
    centred = torch.where(mask, x - mean, torch.zeros_like(x))
    whitened = centred * torch.rsqrt(masked_mean(centred.square(), mask) + eps)
    if shift_mean:
        return whitened
    return torch.where(mask, whitened + mean, torch.zeros_like(x))


def weighted_mean(x: Tensor, weight: Tensor | None) -> Tensor:
    """Weighted mean sum_i w_i x_i / sum_i w_i; the plain mean where `weight` is None.

    x: (B,), any unit. weight: (B,), not negative, None = all 1.
    Returns a scalar in x's unit; 0 where all weights are 0.
    Raises ShapeError for other shapes.
    """
    require_shape("weighted_mean", 1, x=x, weight=weight)
    require_floating("weighted_mean", x=x, weight=weight)
    if weight is None:
        return x.mean()
    return (weight * x).sum() / weight.sum().clamp_min(torch.finfo(weight.dtype).tiny)


def logprobs_of(logits: Tensor, labels: Tensor) -> Tensor:
    """Log-probability of each label: log softmax(logits)[label].

    logits: (..., V), nats up to a constant; -inf forbids a token. labels: (...) long in [0, V);
    put any valid id at positions that are not counted (there is no ignore index).
    Returns (...), nats, float32 or wider.
    Raises ShapeError if labels are not long or not shaped as logits without the last axis.
    """
    if logits.ndim == 0 or logits.shape[:-1] != labels.shape:
        raise ShapeError(
            f"logprobs_of: labels must have the shape of logits without the last axis, found "
            f"logits {tuple(logits.shape)}, labels {tuple(labels.shape)}; shift before the call"
        )
    if labels.dtype != torch.long:
        raise ShapeError(f"logprobs_of: labels must be torch.long, found {labels.dtype}")
    logits = _widen_to_float32(logits)
    picked = logits.gather(-1, labels.unsqueeze(-1)).squeeze(-1)
    # One reduced tensor instead of a second (..., V): half the peak memory of log_softmax.
    return picked - torch.logsumexp(logits, dim=-1)


def entropy_of(logits: Tensor) -> Tensor:
    """Entropy of softmax(logits): H = logsumexp(l) - sum_v p_v l_v = -sum_v p_v log p_v.

    logits: (..., V), nats up to a constant; -inf forbids a token, at least one is finite.
    Returns (...), nats, in [0, log V], float32 or wider.
    Raises ShapeError for a tensor without axes.
    """
    if logits.ndim == 0 or logits.shape[-1] == 0:
        raise ShapeError(f"entropy_of: logits must be (..., V), found {tuple(logits.shape)}")
    logits = _widen_to_float32(logits)
    probabilities = torch.softmax(logits, dim=-1)
    # A forbidden token has p log p = 0, but 0 * -inf is NaN: give it any finite logit here.
    finite = logits.masked_fill(logits == -torch.inf, 0.0)
    return torch.logsumexp(logits, dim=-1) - (probabilities * finite).sum(-1)


def _widen_to_float32(x: Tensor) -> Tensor:
    """Raise half-precision tensors to float32; leave float32 and float64 as they are."""
    require_floating("logits", logits=x)
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
