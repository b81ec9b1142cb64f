"""Using the preference strength: flips, soft labels and adaptive margins; and people's ratings.

[RM] Secrets of RLHF Part II, arXiv 2401.06080. [LLAMA] Llama 2, arXiv 2307.09288.
[CLEAN] PrefCleanBench, arXiv 2509.23564.

The methods of [RM section 2.5], m a scale of margins, flip_below none where it is not given:
- baseline: nothing.
- flip: flip_fraction 0.1 or 0.2, or flip_below 0.
- margin: margin_scale m.
- flip + margin: the two together.
- soft label: smooth "negative"; soft label + margin: with margin_scale m.
- by bucket [RM section 2.4] (flip the lowest, smooth the middle and the highest, margin for all):
  flip_fraction 0.2, smooth "not_flipped", margin_scale m.

Deviations
1. The margin is scaled and clipped. The paper uses the raw mean but asks for a small range, and
   raw means reach 6 and more.
2. A flipped pair's strength is -mean: the vote is the same, the pair's order is not. So a pair
   flipped because of a negative mean carries a positive margin.
3. "Smooth the pairs with a negative mean" leaves out those that were flipped: a flip already
   corrects them, and smoothing doubts the ones left as annotated.
4. In the paper no pair is reweighted but those that a study leaves out by strength [RM figures 4 to
   6]. `doubt_weight` leaves out what looks wrong, which [CLEAN] finds better than to flip it, or
   lets a pair count as its label is likely. What a person drops has weight 0.
5. `apply_review` is not in the paper: where a person has read a pair, its vote no longer counts.
6. A flipped pair gets no margin by rating. The rating says how much better its annotator found the
   answer that the ensemble finds worse; of the order after the flip it says nothing.
7. Labels may come in soft (a judge's probabilities, [RLAIF] arXiv 2309.00267). A flip then turns
   the label round with its certainty, and smoothing is noise upon it: see `relabel_soft_labels`.
8. flip_fraction and flip_below may be given together: a pair is then flipped only if it meets
   both. The paper flips the weakest tenth or fifth whatever its strength. On its data about a
   quarter of all strengths are below 0 [RM figure 1], so that the two come to the same there; on
   cleaner data the weakest tenth holds pairs whose label no model doubts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from trimtab.models.functional.checks import (
    ShapeError,
    refuse_other_choices,
    require_floating,
    require_mask,
    require_shape,
)

Smooth = Literal["none", "negative", "not_flipped", "all"]
Against = Literal["majority", "all"]
Weights = Literal["none", "probability"]


class Relabel(NamedTuple):
    """What is laid over the raw pairs, which are never changed themselves.

    is_flipped: (N,) bool, True = chosen and rejected change places.
    label: (N,), probability in [0, 1] that the pair's chosen, after the flip, is better; above 1 in
    unbiased losses (`trimtab.models.functional.label_noise`).
    margin: (N,), logits, for the difference after the flip.
    weight: (N,), not negative.
    """

    is_flipped: Tensor
    label: Tensor
    margin: Tensor
    weight: Tensor


@refuse_other_choices
def relabel(
    strength_mean: Tensor,
    *,
    flip_fraction: float | None,
    flip_below: float | None,
    smoothing: float,
    smooth: Smooth,
    margin_scale: float,
    margin_clip: float,
) -> Relabel:
    """Flips [RM section 2.4.1], soft labels [RM eq. 5] and adaptive margins [RM eq. 6].

    strength_mean: (N,), logits, from `preference_strength`.
    flip_fraction: in [0, 1], flip the round(fraction * N) weakest pairs (ties: lower index
    first; the paper tries 0.1 and 0.2). flip_below: logits, flip every pair with
    strength_mean < flip_below. Both given = flip what meets both (deviation 8); both None = no
    flips.
    smoothing: alpha in [0, 0.5]; a smoothed pair's label is 1 - alpha, every other's 1.
    smooth: "none", "negative" (strength_mean < 0 and not flipped), "not_flipped" or "all".
    margin_scale: not negative, unitless; 0 = no margins. margin_clip: not negative, logits;
    margin = clip(margin_scale * strength after the flip, -margin_clip, margin_clip).
    Returns a Relabel of (N,) tensors on strength_mean's device, in its dtype.
    Raises ShapeError for other shapes, ValueError for an option outside its range.
    """
    require_shape("relabel", 1, strength_mean=strength_mean)
    require_floating("relabel", strength_mean=strength_mean)
    _check_options(flip_fraction, flip_below, smoothing, smooth, margin_scale, margin_clip)
    if not bool(strength_mean.isfinite().all()):
        raise ValueError("relabel: strength_mean holds NaN or infinity; score the pairs again")
    is_flipped = _flips(strength_mean, flip_fraction, flip_below)
    strength = torch.where(is_flipped, -strength_mean, strength_mean)
    return Relabel(
        is_flipped=is_flipped,
        label=_labels(strength_mean, is_flipped, smoothing, smooth),
        margin=(
            (margin_scale * strength).clamp(-margin_clip, margin_clip)
            if margin_scale > 0
            else torch.zeros_like(strength)
        ),
        weight=torch.ones_like(strength),
    )


@refuse_other_choices
def doubt_weight(
    relabelled: Relabel,
    strength_mean: Tensor,
    share_against: Tensor | None = None,
    *,
    drop_below: float | None,
    drop_against: Against | None,
    weights: Weights,
) -> Tensor:
    """What each pair counts by the doubt of its label (deviation 4).

    relabelled: what `relabel` returns. strength_mean: (N,), logits. share_against: (N,), share in
    [0, 1] of the voters on a pair, those that prefer one of its answers, who prefer that labelled
    worse; needed for drop_against. drop_below: logits, weight 0 for pairs of strength_mean <
    drop_below. drop_against: weight 0 for pairs that more than half of their voters ("majority"),
    or all of them, contradict [CLEAN: Vote-Maj, Vote-All]; both given, either is enough. weights:
    "probability" = other pairs count as their label is likely to be right, sigmoid(strength after
    the flip). Returns (N,), in [0, 1], in strength_mean's dtype. Raises ShapeError for other
    shapes, ValueError for an option outside its range.
    """
    require_shape(
        "doubt_weight",
        1,
        is_flipped=relabelled.is_flipped,
        strength_mean=strength_mean,
        share_against=share_against,
    )
    if drop_below is not None and not math.isfinite(drop_below):
        raise ValueError(f"doubt_weight: drop_below must be finite, found {drop_below}")
    for name, value, allowed in (
        ("drop_against", drop_against, (None, *get_args(Against))),
        ("weights", weights, get_args(Weights)),
    ):
        if value not in allowed:
            raise ValueError(f"doubt_weight: {name} must be one of {allowed}, found {value!r}")
    if drop_against is not None and share_against is None:
        raise ValueError("doubt_weight: drop_against needs share_against, found None")
    weight = torch.ones_like(strength_mean)
    if weights == "probability":
        weight = torch.where(relabelled.is_flipped, -strength_mean, strength_mean).sigmoid()
    if drop_below is not None:
        weight = weight.masked_fill(strength_mean < drop_below, 0.0)
    if share_against is not None and drop_against is not None:
        contradicted = share_against > 0.5 if drop_against == "majority" else share_against >= 1
        weight = weight.masked_fill(contradicted, 0.0)
    return weight


def relabel_soft_labels(relabelled: Relabel, soft: Tensor) -> Relabel:
    """The treatment of labels that are soft already (deviation 7).

    label = q p + (1 - q) (1 - p), with p the label given and q what `relabel` makes of a certain
    one: that the label is right, or wrong and the treatment too. p = 1 leaves q, q = 1 leaves p
    (also where a pair is flipped: p is then of the order after the flip), and 1/2 stays 1/2.

    A label above 1 of an unbiased loss stays one: of (1 - e) / (1 - 2 e) it is (p - e) / (1 - 2 e).

    relabelled: a Relabel of N pairs. soft: (N,), probability in [0, 1] that chosen is better.
    Returns a new Relabel, `relabelled` is kept.
    Raises ShapeError for other shapes, ValueError for values outside [0, 1].
    """
    require_shape("relabel_soft_labels", 1, label=relabelled.label, soft=soft)
    if not bool(((soft >= 0) & (soft <= 1)).all()):
        raise ValueError("relabel_soft_labels: soft must be probabilities in [0, 1]")
    label = relabelled.label * soft + (1 - relabelled.label) * (1 - soft)
    return relabelled._replace(label=label)


def apply_review(relabelled: Relabel, *, keep: Tensor, flip: Tensor, drop: Tensor) -> Relabel:
    """A person's verdicts in place of the vote's (deviation 5).

    relabelled: a Relabel of N pairs. keep, flip, drop: (N,) bool, at most one True for a pair; of a
    pair with none the vote's treatment stays. A reviewed pair is flipped or as annotated, with
    label 1 and margin 0, as both measure doubt that a person has settled; weight 0 drops it.
    Returns a new Relabel, `relabelled` is kept.
    Raises ShapeError for other shapes, ValueError where a pair has two verdicts.
    """
    verdicts = {"keep": keep, "flip": flip, "drop": drop}
    require_shape("apply_review", 1, is_flipped=relabelled.is_flipped, **verdicts)
    for name, verdict in verdicts.items():
        require_mask("apply_review", verdict, name)
    reviewed = keep | flip | drop
    if bool((keep & flip | keep & drop | flip & drop).any()):
        raise ValueError(
            "apply_review: found a pair with two verdicts, allowed: one of keep, flip, drop"
        )
    return Relabel(
        is_flipped=torch.where(reviewed, flip, relabelled.is_flipped),
        label=relabelled.label.masked_fill(reviewed, 1.0),
        margin=relabelled.margin.masked_fill(reviewed, 0.0),
        weight=relabelled.weight.masked_fill(reviewed, 1.0).masked_fill(drop, 0.0),
    )


def rating_margin(rating: Tensor, is_flipped: Tensor, margins: Sequence[float]) -> Tensor:
    """Margin by how much better people rated the chosen answer [LLAMA eq. 2], to be added.

    rating: (N,) long, 1 (barely better) to 4 (much better), 0 = not rated. is_flipped: (N,) bool.
    margins: four, of ratings 1 to 4, finite and not negative, logits ([LLAMA]: 0, 1/3, 2/3, 1).
    Returns (N,), logits, float64; 0 for pairs that are not rated or flipped.
    Raises ShapeError for other shapes, ValueError for other ratings or margins.
    """
    require_shape("rating_margin", 1, rating=rating, is_flipped=is_flipped)
    if rating.dtype != torch.long or is_flipped.dtype != torch.bool:
        raise ShapeError(
            f"rating_margin: rating must be torch.long and is_flipped torch.bool, found "
            f"{rating.dtype} and {is_flipped.dtype}"
        )
    if len(margins) != 4 or not all(math.isfinite(m) and m >= 0 for m in margins):
        raise ValueError(
            f"rating_margin: margins must be four, finite and not negative, found {margins}"
        )
    if not bool(((rating >= 0) & (rating <= 4)).all()):
        raise ValueError(f"rating_margin: ratings must be 0 to 4, found {rating.unique().tolist()}")
    by_rating = torch.tensor([0.0, *margins], dtype=torch.float64, device=rating.device)
    return by_rating[torch.where(is_flipped, 0, rating)]


def strength_slice(strength_mean: Tensor, keep_from: float, keep_to: float) -> Tensor:
    """Which pairs lie in a slice of the ranking by strength, weakest first [RM section 2.3].

    strength_mean: (N,), logits. keep_from, keep_to: in [0, 1], shares of all pairs; slices that
    meet have no pair in common (ties: lower index first).
    Returns (N,), 1 for the pairs round(keep_from N) to round(keep_to N) - 1 by strength, else 0.
    Raises ShapeError for other shapes, ValueError unless keep_from < keep_to.
    """
    require_shape("strength_slice", 1, strength_mean=strength_mean)
    if not 0 <= keep_from < keep_to <= 1:
        raise ValueError(
            f"strength_slice: found keep_from={keep_from}, keep_to={keep_to}; allowed: "
            "0 <= keep_from < keep_to <= 1"
        )
    order = torch.argsort(strength_mean, stable=True)
    first, last = (round(share * len(order)) for share in (keep_from, keep_to))
    weight = torch.zeros_like(strength_mean)
    weight[order[first:last]] = 1
    return weight


def _flips(mean: Tensor, flip_fraction: float | None, flip_below: float | None) -> Tensor:
    """(N,) bool, True = flip; see `relabel`."""
    if flip_fraction is None and flip_below is None:
        return torch.zeros_like(mean, dtype=torch.bool)
    is_flipped = torch.ones_like(mean, dtype=torch.bool)
    if flip_fraction is not None:
        strongest = torch.argsort(mean, stable=True)[round(flip_fraction * mean.shape[0]) :]
        is_flipped[strongest] = False
    if flip_below is not None:
        is_flipped &= mean < flip_below
    return is_flipped


def _labels(mean: Tensor, is_flipped: Tensor, smoothing: float, smooth: Smooth) -> Tensor:
    """(N,) label of the order after the flip; see `relabel`."""
    if smooth == "all":
        is_smoothed = torch.ones_like(is_flipped)
    elif smooth == "not_flipped":
        is_smoothed = ~is_flipped
    elif smooth == "negative":
        is_smoothed = (mean < 0) & ~is_flipped
    else:
        is_smoothed = torch.zeros_like(is_flipped)
    return 1 - smoothing * is_smoothed.to(mean.dtype)


def _check_options(
    flip_fraction: float | None,
    flip_below: float | None,
    smoothing: float,
    smooth: str,
    margin_scale: float,
    margin_clip: float,
) -> None:
    """Raise ValueError for an option outside the range that `relabel` documents."""
    if flip_fraction is not None and not 0 <= flip_fraction <= 1:
        raise ValueError(f"relabel: flip_fraction must be in [0, 1], found {flip_fraction}")
    if flip_below is not None and not math.isfinite(flip_below):
        raise ValueError(f"relabel: flip_below must be finite, found {flip_below}")
    if not 0 <= smoothing <= 0.5:
        raise ValueError(f"relabel: smoothing must be in [0, 0.5], found {smoothing}")
    if smooth not in get_args(Smooth):
        raise ValueError(f"relabel: smooth must be one of {get_args(Smooth)}, found {smooth!r}")
    for name, value in (("margin_scale", margin_scale), ("margin_clip", margin_clip)):
        if not (math.isfinite(value) and value >= 0):
            raise ValueError(f"relabel: {name} must be finite and not negative, found {value}")
