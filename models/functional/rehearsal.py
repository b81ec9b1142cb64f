"""Selective rehearsal: which rollouts to rehearse, the loss on them, and weights by what is lost.

[AM] Stabilizing RLHF through Advantage Model and Selective Rehearsal, arXiv 2309.10202.

Deviations
1. [AM eq. 9] prints neither the logarithm nor the minus sign of the NLL it names; both are here.
2. [AM eq. 9] sums over tokens and averages over responses; here the mean is over tokens, so the
   coefficient does not depend on response length. A caller that is given the paper's coefficient
   multiplies it by the mean length.
3. [AM section 3.2] may be seen, it says, as amplifying the weight of the KL penalty for crucial
   instances and their like, and keeps as many examples of every cluster. Which are crucial is
   measured here: `cluster_risk` and what follows are not in the paper.
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
from trimtab.models.functional.masked import masked_mean


def nll_loss(logprobs: Tensor, response_mask: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Negative log-likelihood per token of rehearsed responses [AM eq. 9, second term].

    L = -sum_t log pi(y_t | y_<t, x) / number of counted tokens, over the whole batch.

    logprobs: (B, T), nats. response_mask: (B, T) bool, True = a token of the response, counted.
    Returns the loss (scalar, nats per token) and detached metrics `nll_loss` and `perplexity`
    (its exponential).
    Raises ShapeError for other shapes or a mask that is not bool.
    """
    require_shape("nll_loss", 2, logprobs=logprobs, response_mask=response_mask)
    require_mask("nll_loss", response_mask, "response_mask")
    loss = -masked_mean(logprobs, response_mask)
    return loss, {"nll_loss": loss.detach(), "perplexity": loss.detach().exp()}


def top_k_per_cluster(scores: Tensor, cluster: Tensor, k: int) -> Tensor:
    """Index of the k examples of highest score in each cluster [AM section 3.2].

    Ties go to the lower index; a cluster of fewer than k examples gives all it has.

    scores: (N,), advantage scores or any criterion where higher is better. cluster: (N,) long,
    any ids. k: at least 1.
    Returns (<= N,) long, ascending, on the scores' device.
    Raises ShapeError for other shapes, ValueError for k < 1 or a score that is NaN.
    """
    if k < 1:
        raise ValueError(f"top_k_per_cluster: k must be at least 1, found {k}")
    order, rank, _ = _ranked(scores, cluster)
    return order[rank < k].sort().values


@torch.no_grad()
def cluster_risk(
    nll: Tensor, reference_nll: Tensor, num_tokens: Tensor, cluster: Tensor, num_clusters: int
) -> Tensor:
    """What a policy has lost of the responses of each cluster, never below 0.

    risk_c = max(0, sum_{i in c} (nll_i - reference_nll_i) / tokens of c): the rise of the mean
    NLL a token, the same mean as `nll_loss`.

    nll, reference_nll: (N,), nats, sums over a response's tokens, under the policy and under the
    one that wrote it. num_tokens: (N,) long, above 0. cluster: (N,) long in [0, num_clusters).
    Returns (num_clusters,) float64, nats a token; 0 for a cluster without responses.
    Raises ShapeError for other shapes, ValueError for a value that is not finite.
    """
    arguments = {"reference_nll": reference_nll, "num_tokens": num_tokens, "cluster": cluster}
    require_shape("cluster_risk", 1, nll=nll, **arguments)
    require_floating("cluster_risk", nll=nll, reference_nll=reference_nll)
    risen = nll.double() - reference_nll.double()
    if not bool(risen.isfinite().all()):
        raise ValueError("cluster_risk: an NLL is NaN or infinite; check the policy")
    zeros = risen.new_zeros(num_clusters)
    tokens = zeros.index_add(0, cluster, num_tokens.double())
    return (zeros.index_add(0, cluster, risen) / tokens.clamp_min(1)).clamp_min(0)


@torch.no_grad()
def risk_weights(risk: Tensor, sizes: Tensor, floor: float) -> Tensor:
    """Weights of clusters, in proportion to their risk, with mean 1 over all examples.

    w_c = (floor + risk_c) / (floor + sum_c n_c risk_c / sum_c n_c). The clusters' NLL weighed so
    has, up to its scale, the gradient of sum_c n_c (floor risk_c + risk_c^2 / 2), if risk is the
    rise of the same NLL: uniform rehearsal's loss while risks are far below the floor, and beyond
    it one that holds down their squares. Where all risks are equal, 0 for one, all weights
    are 1; none is below floor / (floor + mean risk), so that no cluster is left out.

    risk: (C,), nats a token, not negative. sizes: (C,) long, n_c, examples of each cluster, at
    least one in all. floor: above 0, nats a token.
    Returns (C,) float64, unitless.
    Raises ShapeError for other shapes, ValueError for a risk that is negative or NaN, or a floor
    that is not above 0.
    """
    require_shape("risk_weights", 1, risk=risk, sizes=sizes)
    require_floating("risk_weights", risk=risk)
    if not floor > 0:
        raise ValueError(f"risk_weights: floor must be above 0, found {floor}")
    if not bool((risk >= 0).all()):
        raise ValueError(f"risk_weights: risk must not be negative or NaN, found {risk.tolist()}")
    raised, counts = floor + risk.double(), sizes.double()
    return raised / ((counts * raised).sum() / counts.sum())


@torch.no_grad()
def kept_per_cluster(weights: Tensor, sizes: Tensor) -> Tensor:
    """How many examples of each cluster are kept, as many in all as there are.

    By largest remainders: shares n_c w_c of sum_c n_c are rounded down, and the clusters of the
    largest remainders, of ties the first, get one more. No cluster that has examples gets less
    than one: shares are of what is beyond 1. Where all weights are equal it is n_c.

    weights: (C,), not negative. sizes: (C,) long, n_c, examples of each cluster.
    Returns (C,) long, whose sum is that of sizes; above n_c where an example is kept several times.
    Raises ShapeError for other shapes, ValueError for weights of which none is above 0.
    """
    require_shape("kept_per_cluster", 1, weights=weights, sizes=sizes)
    require_floating("kept_per_cluster", weights=weights)
    shares = weights.double() * sizes
    if not bool((shares >= 0).all() and shares.sum() > 0):
        raise ValueError(f"kept_per_cluster: some weight must be above 0, found {weights.tolist()}")
    least = (sizes > 0).double()
    beyond = (shares * (sizes.sum() / shares.sum()) - least).clamp_min(0)
    beyond *= (sizes.sum() - least.sum()) / beyond.sum().clamp_min(torch.finfo(beyond.dtype).tiny)
    kept = (least + beyond).floor()
    order = torch.argsort(least + beyond - kept, descending=True, stable=True)
    kept[order[: int(sizes.sum() - kept.sum())]] += 1
    return kept.long()


@torch.no_grad()
def best_of_clusters(scores: Tensor, cluster: Tensor, number: Tensor) -> Tensor:
    """Index of so many examples of each cluster: those of highest score.

    A cluster of fewer examples gives all of them equally often, those of highest score once more.

    scores: (N,), higher is better; of ties the lower index. cluster: (N,) long in [0, C).
    number: (C,) long, how many are wanted of each cluster.
    Returns (sum of number,) long, ascending, with repetitions.
    Raises as `top_k_per_cluster`.
    """
    order, rank, size = _ranked(scores, cluster)
    times = (number[cluster[order]] - rank + size - 1) // size
    return torch.repeat_interleave(order, times.clamp_min(0)).sort().values


def _ranked(scores: Tensor, cluster: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Indices (N,) by cluster and then from the highest score down; of each its rank within its
    cluster, from 0, and that cluster's size."""
    require_shape("rehearsal", 1, scores=scores, cluster=cluster)
    require_floating("rehearsal", scores=scores)
    if cluster.dtype != torch.long:
        raise ShapeError(f"rehearsal: cluster must be torch.long, found {cluster.dtype}")
    if bool(scores.isnan().any()):
        raise ValueError("rehearsal: scores holds NaN, which cannot be ranked; score again")
    # Two stable sorts order by (cluster, score descending, index ascending).
    order = torch.argsort(scores, descending=True, stable=True)
    order = order[torch.argsort(cluster[order], stable=True)]
    _, sizes = torch.unique_consecutive(cluster[order], return_counts=True)
    first = torch.repeat_interleave(sizes.cumsum(0) - sizes, sizes)
    rank = torch.arange(order.shape[0], device=order.device) - first
    return order, rank, torch.repeat_interleave(sizes, sizes)
