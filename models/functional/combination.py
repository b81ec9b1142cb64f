"""One score from several scorers: an ensemble's or a panel's, less its disagreement, and safety
before help.

[UWO] Coste et al., Reward Model Ensembles Help Mitigate Overoptimization, arXiv 2310.02743.
[LLAMA2] Touvron et al., Llama 2: Open Foundation and Fine-Tuned Chat Models, arXiv 2307.09288.

Deviations
1. [UWO] takes off a multiple of the variance between members; here it is of the standard deviation,
   whose unit is the scores': the multiple means the same whatever their scale.
2. A reward model is known up to a constant, which says nothing of one response: each member's mean
   is taken off before the deviation, not from the score. It is the mean over the batch, or one over
   known answers, with which a score does not depend on the batch.
3. [LLAMA2] writes the rule on probabilities and whitens their logits. The scores here are those
   logits; whitening them is PPO's `score_treatment`, by moments over history. The constant that a
   ranking loss leaves open moves scores against the threshold; an Advantage Model's are bounded.
4. [UWO]'s members are of one kind, and their scores of one unit. A panel's are not: each member is
   standardised by constants first, the same for every batch, so that batches can be compared.
"""

from __future__ import annotations

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


def member_spread(member_scores: Tensor, member_means: Tensor | None = None) -> Tensor:
    """The spread of an ensemble's members [UWO, deviations 1 and 2].

    sqrt(mean_m (c_mi - mean_m c_mi)^2), c_mi = s_mi - m_m.

    member_scores: (M, B), logits, of M members on a batch of B responses. member_means: (M,),
    logits, the members' means over the same known answers; None: m_m = mean_i s_mi.
    Returns (B,), logits; 0 if M = 1. Raises ShapeError for other shapes.
    """
    require_shape("member_spread", 2, member_scores=member_scores)
    require_floating("member_spread", member_scores=member_scores)
    if member_means is None:
        member_means = member_scores.mean(1)
    if member_means.shape != member_scores.shape[:1]:
        raise ShapeError(
            f"member_spread: found member_means {tuple(member_means.shape)} for member_scores "
            f"{tuple(member_scores.shape)}; allowed: (M,) and (M, B)"
        )
    return (member_scores - member_means[:, None]).std(0, correction=0)


def ensemble_scores(
    member_scores: Tensor, std_coef: float, member_means: Tensor | None = None
) -> tuple[Tensor, dict[str, Tensor]]:
    """Mean of an ensemble's scores less a multiple of their spread [UWO, deviations 1 and 2].

    s_i = mean_m s_mi - std_coef spread_i, with `member_spread`.

    member_scores, member_means: as of `member_spread`. std_coef: not negative. Returns (B,),
    logits, and the metric `ensemble_std` (the spread, mean over responses, logits). Raises
    ShapeError for other shapes, ValueError for a negative std_coef.
    """
    if not std_coef >= 0:
        raise ValueError(f"ensemble_scores: std_coef must not be negative, found {std_coef}")
    std = member_spread(member_scores, member_means)
    return member_scores.mean(0) - std_coef * std, {"ensemble_std": std.detach().mean()}


@refuse_other_choices
def panel_scores(
    member_scores: Tensor,
    mean: Tensor,
    std: Tensor,
    combine: Literal["mean", "median"],
    std_coef: float,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Mean or median of standardised scores less a multiple of their spread [UWO, deviation 4].

    s_i = combine_m z_mi - std_coef sqrt(mean_m (z_mi - mean_m z_mi)^2), z_mi = (s_mi - mean_m) /
    std_m.

    member_scores: (M, B), each member's in a unit of its own. mean, std: (M,), each member's on
    answers that are the same for all batches; std above 0. combine: the median of an even M is the
    mean of the middle two. std_coef: not negative.
    Returns (B,), in standard deviations, and the metric `panel_std` (the spread, mean over
    responses, in the same unit).
    Raises ShapeError for other shapes, ValueError for a negative std_coef or a std that is not
    above 0.
    """
    require_shape("panel_scores", 2, member_scores=member_scores)
    require_shape("panel_scores", 1, mean=mean, std=std)
    require_floating("panel_scores", member_scores=member_scores, mean=mean, std=std)
    if not std_coef >= 0:
        raise ValueError(f"panel_scores: std_coef must not be negative, found {std_coef}")
    if not bool((std > 0).all()):
        raise ValueError(f"panel_scores: std must be above 0, found {std.tolist()}")
    standard = (member_scores - mean[:, None]) / std[:, None]
    centre = standard.mean(0) if combine == "mean" else standard.quantile(0.5, dim=0)
    spread = standard.std(0, correction=0)
    return centre - std_coef * spread, {"panel_std": spread.detach().mean()}


def safety_first(
    helpfulness: Tensor, safety: Tensor, is_safety_prompt: Tensor, threshold: float
) -> tuple[Tensor, dict[str, Tensor]]:
    """Llama 2's piecewise combination of two reward models [LLAMA2 section 3.2.3].

    s = s_safety if IS_SAFETY(prompt) or sigmoid(s_safety) < threshold, else s_helpfulness.

    helpfulness, safety: (B,), logits. is_safety_prompt: (B,) bool, True = the prompt is tagged as
    one that may elicit unsafe responses. threshold: in (0, 1), the paper's 0.15.
    Returns (B,), logits, and metrics: `safety_fraction` (the safety score counts),
    `unsafe_fraction` (it is below the threshold), `helpfulness_score` and `safety_score` (means).
    Raises ShapeError for other shapes or a tag that is not bool, ValueError for the threshold.
    """
    require_shape(
        "safety_first",
        1,
        helpfulness=helpfulness,
        safety=safety,
        is_safety_prompt=is_safety_prompt,
    )
    require_mask("safety_first", is_safety_prompt, "is_safety_prompt")
    require_floating("safety_first", helpfulness=helpfulness, safety=safety)
    if not 0 < threshold < 1:
        raise ValueError(f"safety_first: threshold must be in (0, 1), found {threshold}")
    is_unsafe = torch.sigmoid(safety) < threshold
    decides = is_safety_prompt | is_unsafe
    return torch.where(decides, safety, helpfulness), {
        "safety_fraction": decides.to(safety.dtype).mean(),
        "unsafe_fraction": is_unsafe.to(safety.dtype).mean(),
        "helpfulness_score": helpfulness.detach().mean(),
        "safety_score": safety.detach().mean(),
    }
