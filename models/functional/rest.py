"""Reinforced self-training (ReST): the samples that pass each of a rising series of thresholds.

[REST] Gulcehre et al., Reinforced Self-Training (ReST) for Language Modeling, 2023,
arXiv 2308.08998.

Deviations
1. A score that equals the threshold passes (the paper: R > tau). Samples repeat, and so do their
   scores: a high quantile could be the highest score, and leave nothing.
2. Thresholds may be quantiles of the scores themselves; the paper picks values by hand, for rewards
   in [0, 1], which those of a reward model are not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from trimtab.models.functional.checks import refuse_other_choices, require_floating, require_shape


@refuse_other_choices
def improvement_sets(
    scores: Tensor, thresholds: Sequence[float], kind: Literal["quantile", "value"]
) -> list[Tensor]:
    """What each Improve step learns from: F(x, y; tau_i) = 1[R(x, y) >= tau_i] [REST, its filter].

    scores: (N,), any unit. thresholds: strictly rising; in [0, 1) where `kind` is "quantile" (0.7:
    the best 30 % stay), else in the scores' unit.
    Returns one index tensor (n_i,) long per threshold; each set is a subset of the one before.
    Raises ShapeError for other shapes, ValueError for scores of NaN, for thresholds that do not
    rise, or that leave nothing.
    """
    require_shape("improvement_sets", 1, scores=scores)
    require_floating("improvement_sets", scores=scores)
    if bool(scores.isnan().any()):
        raise ValueError("improvement_sets: a score is NaN: it would pass no threshold")
    if any(later <= earlier for earlier, later in zip(thresholds, thresholds[1:], strict=False)):
        raise ValueError(f"improvement_sets: thresholds must rise, found {list(thresholds)}")
    sets = []
    for threshold in thresholds:
        cutoff = torch.quantile(scores, threshold) if kind == "quantile" else threshold
        kept_indices = (scores >= cutoff).nonzero()[:, 0]
        if len(kept_indices) == 0:
            raise ValueError(
                f"improvement_sets: no sample scores {threshold} or more; the highest score is "
                f"{float(scores.max()):.3f}: lower the threshold, or use quantiles"
            )
        sets.append(kept_indices)
    return sets
