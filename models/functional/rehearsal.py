"""Selective rehearsal: which rollouts to rehearse, and the loss on them.

[AM] Stabilizing RLHF through Advantage Model and Selective Rehearsal, arXiv 2309.10202.

Deviations
1. [AM eq. 9] prints neither the logarithm nor the minus sign of the NLL it names; both are here.
2. [AM eq. 9] sums over tokens and averages over responses; here the mean is over tokens, so the
   coefficient does not depend on response length. A caller that is given the paper's coefficient
   multiplies it by the mean length.
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
    require_shape("top_k_per_cluster", 1, scores=scores, cluster=cluster)
    require_floating("top_k_per_cluster", scores=scores)
    if cluster.dtype != torch.long:
        raise ShapeError(f"top_k_per_cluster: cluster must be torch.long, found {cluster.dtype}")
    if k < 1:
        raise ValueError(f"top_k_per_cluster: k must be at least 1, found {k}")
    if bool(scores.isnan().any()):
        raise ValueError("top_k_per_cluster: scores holds NaN, which cannot be ranked; score again")
    # Two stable sorts order by (cluster, score descending, index ascending).
    order = torch.argsort(scores, descending=True, stable=True)
    order = order[torch.argsort(cluster[order], stable=True)]
    _, sizes = torch.unique_consecutive(cluster[order], return_counts=True)
    first = torch.repeat_interleave(sizes.cumsum(0) - sizes, sizes)
    rank = torch.arange(order.shape[0], device=order.device) - first
    return order[rank < k].sort().values
