"""Contrastive terms of the reward model: SimCSE and SwAV on two views of each representation.

[RM] Secrets of RLHF Part II, arXiv 2401.06080. [SIMCSE] Gao et al., 2021, arXiv 2104.08821.
[SWAV] Caron et al., 2020, arXiv 2006.09882, to which [RM] leaves assignments and prototypes.

Deviations
1. [RM eq. 8] prints h^T c, which grows with a feature's length. Features and prototypes are of
   length 1 here, as in [SWAV], so that tau means the same in both terms.
2. [SWAV] sets prototypes back to length 1 before each step. Here they are divided by their length
   wherever they are used: the same directions are learned, and no parameter is written to outside
   the optimiser.
3. Assignments are computed from logarithms: the same numbers, but no exponential overflows.
4. [RM eq. 7] is per pair of views; the loss is its mean over the batch, as is that of [RM eq. 9].
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from trimtab.models.functional.checks import ShapeError, require_floating, require_shape


def preference_differences(chosen: Tensor, rejected: Tensor) -> Tensor:
    """What "preference difference" contrasts [RM section 3.1.1]: f_c - f_r, then f_r - f_c.

    chosen, rejected: (P, H), representations of the responses of P pairs.
    Returns (2 P, H), first all differences, then their negations.
    Raises ShapeError for other shapes.
    """
    require_shape("preference_differences", 2, chosen=chosen, rejected=rejected)
    difference = chosen - rejected
    return torch.cat([difference, -difference])


def simcse_loss(
    first: Tensor, second: Tensor, temperature: float
) -> tuple[Tensor, dict[str, Tensor]]:
    """InfoNCE between two views, the batch's other samples being the negatives [RM eq. 9].

    l_i = -log(exp(sim(s_i, t_i) / tau) / sum_j exp(sim(s_i, t_j) / tau)), sim the cosine; mean
    over i.

    first, second: (N, H), views s and t of the same N samples in the same order. temperature: tau,
    above 0, unitless.
    Returns the loss (scalar, nats) and detached metrics: `contrastive_loss`, and
    `nearest_view_share`, the share of samples whose own second view is nearer than all others.
    Raises ShapeError for other shapes, ValueError for another temperature.
    """
    require_shape("simcse_loss", 2, first=first, second=second)
    require_floating("simcse_loss", first=first, second=second)
    _require_positive("simcse_loss", temperature=temperature)
    logits = _cosines(first, second) / temperature
    place = torch.arange(len(logits), device=logits.device)
    loss = F.cross_entropy(logits, place)
    is_same = torch.eye(len(logits), device=logits.device).bool()
    others = logits.detach().masked_fill(is_same, -torch.inf)
    is_nearest = logits.detach().diagonal() > others.amax(1)
    return loss, {
        "contrastive_loss": loss.detach(),
        "nearest_view_share": is_nearest.to(logits.dtype).mean(),
    }


def prototype_scores(features: Tensor, prototypes: Tensor) -> Tensor:
    """Cosine of every feature with every prototype, h^T c with both of length 1 [SWAV 3.1].

    features: (N, H). prototypes: (K, H), of any length. Returns (N, K), in [-1, 1].
    Raises ShapeError for other shapes.
    """
    if features.ndim != 2 or prototypes.ndim != 2 or features.shape[1] != prototypes.shape[1]:
        raise ShapeError(
            f"prototype_scores: expected (N, H) and (K, H), found features "
            f"{tuple(features.shape)}, prototypes {tuple(prototypes.shape)}"
        )
    return _cosines(features, prototypes)


@torch.no_grad()
def sinkhorn_assignments(scores: Tensor, epsilon: float, num_iterations: int) -> Tensor:
    """Soft assignments that use all prototypes alike [SWAV section 3.1, Sinkhorn-Knopp].

    exp(scores / epsilon), each prototype's column divided by its sum, then each sample's row by
    its; `num_iterations` times. In the limit every column sums to N / K.

    scores: (N, K), from `prototype_scores`. epsilon: above 0, unitless; smaller is harder.
    num_iterations: at least 1.
    Returns (N, K) without gradient; every row sums to 1.
    Raises ShapeError for other shapes, ValueError for an option outside its range.
    """
    require_shape("sinkhorn_assignments", 2, scores=scores)
    require_floating("sinkhorn_assignments", scores=scores)
    _require_positive("sinkhorn_assignments", epsilon=epsilon, num_iterations=num_iterations)
    logs = scores / epsilon
    for _ in range(num_iterations):
        logs = logs.log_softmax(0)
        logs = logs.log_softmax(1)
    return logs.exp()


def swav_loss(
    first_scores: Tensor,
    second_scores: Tensor,
    *,
    temperature: float,
    epsilon: float,
    num_iterations: int,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Each view predicts the prototypes that the other is assigned to [RM eq. 7 and 8].

    l_i = -sum_k q_s^(k) log p_t^(k) - sum_k q_t^(k) log p_s^(k), p = softmax(scores / tau), q from
    `sinkhorn_assignments`; mean over i.

    first_scores, second_scores: (N, K), from `prototype_scores`, views s and t of the same samples
    in the same order. temperature: tau, above 0, unitless. epsilon, num_iterations: of the
    assignments.
    Returns the loss (scalar, nats) and detached metrics: `contrastive_loss`, and `prototypes_used`,
    exp of the entropy of the mean p: K where all are used alike, 1 where all fall into one.
    Raises ShapeError for other shapes, ValueError for an option outside its range.
    """
    require_shape("swav_loss", 2, first_scores=first_scores, second_scores=second_scores)
    require_floating("swav_loss", first_scores=first_scores, second_scores=second_scores)
    _require_positive("swav_loss", temperature=temperature)
    views = (first_scores, second_scores)
    predicted = [(scores / temperature).log_softmax(1) for scores in views]
    assigned = [sinkhorn_assignments(scores, epsilon, num_iterations) for scores in views]
    crossed = assigned[0] * predicted[1] + assigned[1] * predicted[0]
    loss = -crossed.sum(1).mean()
    used = torch.cat(predicted).detach().exp().mean(0)
    return loss, {
        "contrastive_loss": loss.detach(),
        "prototypes_used": torch.special.entr(used).sum().exp(),
    }


def _cosines(features: Tensor, others: Tensor) -> Tensor:
    """(N, M) cosines of (N, H) with (M, H)."""
    return F.normalize(features, dim=1) @ F.normalize(others, dim=1).T


def _require_positive(where: str, **options: float) -> None:
    for name, value in options.items():
        if not (math.isfinite(value) and value > 0):
            raise ValueError(f"{where}: {name} must be above 0 and finite, found {value}")
