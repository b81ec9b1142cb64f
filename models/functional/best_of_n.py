"""Best of n samples: which is best, how far that is from the policy, what fewer would have given.

[STIENNON] Learning to summarize from human feedback, 2020, arXiv 2009.01325, appendix G.3: the KL.
[BEIRAMI] Theoretical guarantees on the best-of-n alignment policy, 2024, arXiv 2401.01879: it is an
upper bound, near where samples are rarely equal. [WEBGPT] Nakano et al., 2021, arXiv 2112.09332,
appendix I: the estimator.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from trimtab.models.functional.checks import require_floating, require_shape


def best_of_n_kl(num_samples: int) -> float:
    """Most nats between the best of n samples and one [STIENNON G.3, BEIRAMI].

    KL <= log n - (n - 1) / n. num_samples: n >= 1. Returns nats. Raises ValueError
    for less.
    """
    if num_samples < 1:
        raise ValueError(f"best_of_n_kl: num_samples must be at least 1, found {num_samples}")
    return math.log(num_samples) - (num_samples - 1) / num_samples


def best_of(scores: Tensor) -> Tensor:
    """The place of the highest of n scores; of equal ones the first.

    scores: (B, n), any unit, higher is better. Returns (B,) long, in [0, n). Raises ShapeError for
    other shapes, ValueError for a score that is NaN.
    """
    require_shape("best_of", 2, scores=scores)
    require_floating("best_of", scores=scores)
    if bool(scores.isnan().any()):
        raise ValueError("best_of: scores holds NaN, which cannot be ranked; score again")
    return torch.argsort(scores, dim=1, descending=True, stable=True)[:, 0]


def best_of_k_values(scores: Tensor, values: Tensor) -> Tensor:
    """Mean value of the best of k samples for every k <= n, from one set of n [WEBGPT app. I].

    Over all subsets of k of a row's n samples, the mean value of the one with the highest score:
    sum_i C(i - 1, k - 1) / C(n, k) v_(i), v_(i) the value of the sample with the i-th lowest score.
    Unbiased for samples drawn independently. Of equal scores the first counts as the higher.

    scores: (B, n), by which is chosen. values: (B, n), what the chosen one is worth (the scores
    themselves, or another judge's).
    Returns (n,) float64: for k = 1 .. n the mean over rows, in the values' unit.
    Raises ShapeError for other shapes.
    """
    require_shape("best_of_k_values", 2, scores=scores, values=values)
    require_floating("best_of_k_values", scores=scores, values=values)
    order = torch.argsort(scores, dim=1, descending=True, stable=True).flip(1)
    by_rank = values.double().gather(1, order).mean(0)
    num_samples = scores.shape[1]
    counts = [
        [math.comb(rank, k - 1) / math.comb(num_samples, k) for rank in range(num_samples)]
        for k in range(1, num_samples + 1)
    ]
    return torch.tensor(counts, dtype=torch.float64, device=scores.device) @ by_rank
