"""Using the preference strength: flips, soft labels and adaptive margins.

[RM] Secrets of RLHF Part II, arXiv 2401.06080.

Deviations
1. The margin is scaled and clipped. The paper uses the raw mean but asks for a small range, and
   raw means reach 6 and more.
2. A flipped pair's strength is -mean: the vote is the same, the pair's order is not. So a pair
   flipped because of a negative mean carries a positive margin.
3. "Smooth the pairs with a negative mean" leaves out those that were flipped: a flip already
   corrects them, and smoothing doubts the ones left as annotated.
4. Every weight is 1: the paper drops and reweights no pair. Weight 0 is a person's verdict.
5. `overrule` is not in the paper: where a person has read a pair, the vote on it no longer counts.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from models.functional.checks import require_floating, require_mask, require_shape

Smooth = Literal["none", "negative", "all"]


class Relabel(NamedTuple):
    """What is laid over the raw pairs, which are never changed themselves.

    is_flipped: (N,) bool, True = chosen and rejected change places.
    label: (N,), probability in [0, 1] that the pair's chosen, after the flip, is better.
    margin: (N,), logits, for the difference after the flip.
    weight: (N,), not negative.
    """

    is_flipped: Tensor
    label: Tensor
    margin: Tensor
    weight: Tensor


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
    strength_mean < flip_below. Only one of the two may be given; both None = no flips.
    smoothing: alpha in [0, 0.5]; a smoothed pair's label is 1 - alpha, every other's 1.
    smooth: "none", "negative" (strength_mean < 0 and not flipped) or "all".
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


def overrule(treated: Relabel, *, keep: Tensor, flip: Tensor, drop: Tensor) -> Relabel:
    """A person's verdicts in place of the vote's (deviation 5).

    treated: a Relabel of N pairs. keep, flip, drop: (N,) bool, at most one True for a pair; of a
    pair with none the vote's treatment stays. A reviewed pair is flipped or as annotated, with
    label 1 and margin 0, as both measure doubt that a person has settled; weight 0 drops it.
    Returns a new Relabel, `treated` is kept.
    Raises ShapeError for other shapes, ValueError where a pair has two verdicts.
    """
    verdicts = {"keep": keep, "flip": flip, "drop": drop}
    require_shape("overrule", 1, is_flipped=treated.is_flipped, **verdicts)
    for name, verdict in verdicts.items():
        require_mask("overrule", verdict, name)
    reviewed = keep | flip | drop
    if bool((keep & flip | keep & drop | flip & drop).any()):
        raise ValueError(
            "overrule: found a pair with two verdicts, allowed: one of keep, flip, drop"
        )
    return Relabel(
        is_flipped=torch.where(reviewed, flip, treated.is_flipped),
        label=treated.label.masked_fill(reviewed, 1.0),
        margin=treated.margin.masked_fill(reviewed, 0.0),
        weight=treated.weight.masked_fill(reviewed, 1.0).masked_fill(drop, 0.0),
    )


def _flips(mean: Tensor, flip_fraction: float | None, flip_below: float | None) -> Tensor:
    """(N,) bool, True = flip; see `relabel`."""
    is_flipped = torch.zeros_like(mean, dtype=torch.bool)
    if flip_fraction is not None:
        weakest = torch.argsort(mean, stable=True)[: round(flip_fraction * mean.shape[0])]
        is_flipped[weakest] = True
    if flip_below is not None:
        is_flipped = mean < flip_below
    return is_flipped


def _labels(mean: Tensor, is_flipped: Tensor, smoothing: float, smooth: Smooth) -> Tensor:
    """(N,) label of the order after the flip; see `relabel`."""
    if smooth == "all":
        is_smoothed = torch.ones_like(is_flipped)
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
    if flip_fraction is not None and flip_below is not None:
        raise ValueError(
            f"relabel: found flip_fraction={flip_fraction} and flip_below={flip_below}; "
            "give one of the two, or neither for no flips"
        )
    if flip_fraction is not None and not 0 <= flip_fraction <= 1:
        raise ValueError(f"relabel: flip_fraction must be in [0, 1], found {flip_fraction}")
    if flip_below is not None and not math.isfinite(flip_below):
        raise ValueError(f"relabel: flip_below must be finite, found {flip_below}")
    if not 0 <= smoothing <= 0.5:
        raise ValueError(f"relabel: smoothing must be in [0, 0.5], found {smoothing}")
    if smooth not in ("none", "negative", "all"):
        raise ValueError(f"relabel: smooth must be 'none', 'negative' or 'all', found {smooth!r}")
    for name, value in (("margin_scale", margin_scale), ("margin_clip", margin_clip)):
        if not (math.isfinite(value) and value >= 0):
            raise ValueError(f"relabel: {name} must be finite and not negative, found {value}")
