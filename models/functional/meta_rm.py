"""MetaRM's difference objective.

[RM] Secrets of RLHF Part II, arXiv 2401.06080; [META] MetaRM, arXiv 2405.00438.

Deviations
1. |r_i - r_j| has no derivative at 0; 0 is taken, so equal scores get no push to part.
2. J of equal scores is not 0 but (k-1)/(2k), as sigmoid(0) = 1/2: J minus that floor is reported
   beside J. The gradient is the same.
"""

from __future__ import annotations

import torch
from torch import Tensor

from trimtab.models.functional.checks import ShapeError, require_floating, require_shape


def difference_objective(scores: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """How far the model tells apart k responses to one prompt, to be maximised [RM eq. 11].

    J = 2/k^2 sum_{i<j} sigmoid(|r(x, s_i) - r(x, s_j)|), mean over prompts.

    scores: (B, k), logits, k >= 2 responses to each of B prompts.
    Returns J (scalar, unitless, in [(k-1)/(2k), (k-1)/k)) with its gradient, and detached metrics
    `meta_objective` (J) and `meta_objective_above_floor` (J - (k-1)/(2k)).
    Raises ShapeError for other shapes or k < 2.
    """
    require_shape("difference_objective", 2, scores=scores)
    require_floating("difference_objective", scores=scores)
    num_responses = scores.shape[1]
    if num_responses < 2:
        raise ShapeError(
            f"difference_objective: scores must be (B, k) with k >= 2, found {tuple(scores.shape)}"
        )
    first, second = torch.triu_indices(num_responses, num_responses, offset=1, device=scores.device)
    separation = torch.sigmoid(
        (scores.index_select(1, first) - scores.index_select(1, second)).abs()
    )
    objective = (2 / num_responses**2) * separation.sum(1).mean()
    floor = (num_responses - 1) / (2 * num_responses)
    return objective, {
        "meta_objective": objective.detach(),
        "meta_objective_above_floor": objective.detach() - floor,
    }
