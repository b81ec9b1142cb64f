"""What follows for a label from how often labels are wrong: its posterior, and unbiased losses.

[N] Natarajan, Dhillon, Ravikumar, Tewari, Learning with Noisy Labels, NeurIPS 2013. [rDPO]
Chowdhury, Kini, Natarajan, Provably Robust DPO, arXiv 2403.00409. [M] Menon, van Rooyen, Natarajan,
Learning from Binary Labels with Instance-Dependent Corruption, arXiv 1605.00751.

The model is that of `trimtab.models.statistics.wrong_labels`. Before a label is seen, the vote s
says that its order is right with probability sigmoid(b s); a share w of all labels is then turned
round. Turning a label round turns the sign of s, and nothing else.

Posterior. By Bayes' rule the log-odds that a label is right are those of the vote and those of the
label itself: b s + log((1 - w) / w). So sigmoid(s) of a calibrated strength, the probability that a
vote foretells the label, is not the probability that the label is right: that has the label's own
evidence besides. As a soft label it is the expectation step.

Unbiased losses. Of a pair whose label is turned round at rate rho, whatever the label,
((1 - rho) l(order) - rho l(other order)) / (1 - 2 rho) has the loss of the right order as its mean
over labels [N lemma 1; rDPO for DPO]. A loss of a label p, p l(order) + (1 - p) l(other), is
linear in p: so it is the loss of the label (1 - rho) / (1 - 2 rho), which is above 1. rho must not
depend on which label is seen, or the mean is another: the posterior does, and is no rate.

A rate by pair. If the right order were a function of the pair, and voters knew all that it depends
on, labels would go against the vote's side at exactly the rate sigmoid(-|s|) of a calibrated
strength [M: noise grows towards the boundary]. Voters know a part of it: the mean of sigmoid(-|s|)
is how often they miss the label, and not below the share of wrong labels. What is above it is the
voters' ignorance, and taken out in proportion: rho(s) = w sigmoid(-|s|) / mean sigmoid(-|s|). The
level is w's, the strength gives the shape. That the shape is so is an assumption: of labels that
are wrong whatever the pair the rate is w for all. So w must come from elsewhere: an estimate that
takes labels to be wrong whatever the pair counts those that are wrong near the boundary as errors
of the vote.

Deviations
1. Rates are bounded. A corrected label has the variance rho (1 - rho) / (1 - 2 rho)^2 about the
   right one: .75 at .25, and from (1 - 5^-1/2) / 2 = .276 on more than 1, the squared distance
   between the two labels that it is there to tell apart. Pairs above the bound are corrected for a
   part of their noise only.
2. Such losses have no lower bound: -log sigmoid(d) for the order seen falls without end through the
   term of the other order, and so does the mean over all pairs where the rate assumed, r, exceeds
   the true one, rho, as the mean label is (1 - rho - r) / (1 - 2 r). So a rate too low errs less
   than one too high. The bounds of an Advantage Model (`advantage_loss`) hold its loss from below.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from trimtab.models.functional.checks import refuse_other_choices, require_floating, require_shape
from trimtab.models.functional.relabel import Relabel

Kind = Literal["posterior", "unbiased", "unbiased_by_pair"]


def right_probability(strength: Tensor, slope: float, flip_rate: float) -> Tensor:
    """The probability that labels are right, sigmoid(b s + log((1 - w) / w)).

    strength: (N,), of labels as given, any unit. slope: b, not negative, log-odds that the vote is
    right per unit of strength. flip_rate: w in [0, 0.5), share of wrong labels.
    Returns (N,), in [0, 1]; 1 where w is 0.
    Raises ShapeError for other shapes, ValueError for a rate out of range.
    """
    require_shape("right_probability", 1, strength=strength)
    require_floating("right_probability", strength=strength)
    rate = torch.as_tensor(flip_rate, dtype=strength.dtype, device=strength.device)
    _require_rates("right_probability", rate)
    return torch.sigmoid(slope * strength + torch.logit(1 - rate))


def flip_rate_by_pair(strength: Tensor, flip_rate: float) -> Tensor:
    """The rate at which each pair's label is turned round, w sigmoid(-|s|) / mean sigmoid(-|s|).

    strength: (N,), calibrated, logits. flip_rate: w in [0, 0.5), the mean of the rates.
    Returns (N,), not negative; above 1/2 where w is large and s near 0.
    Raises ShapeError for other shapes, ValueError for a rate out of range.
    """
    require_shape("flip_rate_by_pair", 1, strength=strength)
    require_floating("flip_rate_by_pair", strength=strength)
    _require_rates("flip_rate_by_pair", torch.as_tensor(flip_rate))
    unsure = torch.sigmoid(-strength.abs())
    return flip_rate * unsure / unsure.mean()


def unbiased_label(flip_rate: Tensor) -> Tensor:
    """The label whose loss is unbiased, (1 - rho) / (1 - 2 rho) [N lemma 1].

    flip_rate: (N,), rho in [0, 0.5). Returns (N,), from 1 on; of the other order 1 - label.
    Raises ShapeError for other shapes, ValueError for a rate out of range.
    """
    require_shape("unbiased_label", 1, flip_rate=flip_rate)
    require_floating("unbiased_label", flip_rate=flip_rate)
    _require_rates("unbiased_label", flip_rate)
    return (1 - flip_rate) / (1 - 2 * flip_rate)


def label_at_rate(label: Tensor, flip_rate: float, *, is_unbiased: bool) -> Tensor:
    """The label that a loss learns from which assumes that labels are wrong at a rate.

    p q + (1 - p) (1 - q): smoothed, q = 1 - rho, or of an unbiased loss, q = (1 - rho) /
    (1 - 2 rho). Both leave 1/2 as it is, and each undoes the other.

    label: (N,), p, probability that the order is right. flip_rate: rho in [0, 0.5).
    is_unbiased: of an unbiased loss, else smoothed.
    Returns (N,), probabilities; unbiased ones may lie outside [0, 1]. Raises ShapeError for other
    shapes, ValueError for a rate out of range.
    """
    require_shape("label_at_rate", 1, label=label)
    require_floating("label_at_rate", label=label)
    # On the host, as nothing is to wait for the device.
    rate = torch.tensor([flip_rate], dtype=torch.float64)
    _require_rates("label_at_rate", rate)
    right = float(unbiased_label(rate)) if is_unbiased else 1 - flip_rate
    return label * right + (1 - label) * (1 - right)


@refuse_other_choices
def relabel_by_noise(
    relabelled: Relabel,
    strength: Tensor,
    kind: Kind,
    *,
    flip_rate: float,
    slope: float,
    largest_rate: float,
) -> Relabel:
    """Labels by how often they are wrong, in place of flips and smoothing.

    relabelled: of N pairs as given; margins turn with the order. strength: (N,), calibrated,
    logits. kind: "posterior" = the likelier order, with its probability as label; "unbiased" = the
    label of an unbiased loss at flip_rate, "unbiased_by_pair" at `flip_rate_by_pair`. flip_rate: in
    [0, 0.5). slope: as in `right_probability`. largest_rate: bound of the rates of unbiased losses,
    below 0.5 (deviation 1).
    Returns a new Relabel. Raises ShapeError for other shapes, ValueError for a rate out of range.
    """
    require_shape("relabel_by_noise", 1, label=relabelled.label, strength=strength)
    if kind == "posterior":
        right = right_probability(strength, slope, flip_rate)
        is_flipped = right < 0.5
        return relabelled._replace(
            is_flipped=is_flipped,
            label=torch.maximum(right, 1 - right),
            margin=torch.where(is_flipped, -relabelled.margin, relabelled.margin),
        )
    rate = torch.full_like(strength, flip_rate)
    if kind == "unbiased_by_pair":
        rate = flip_rate_by_pair(strength, flip_rate)
    return relabelled._replace(label=unbiased_label(rate.clamp(max=largest_rate)))


def _require_rates(where: str, rate: Tensor) -> None:
    """Raise ValueError unless all rates are in [0, 0.5)."""
    if not bool(((rate >= 0) & (rate < 0.5)).all()):
        raise ValueError(
            f"{where}: flip rates must be in [0, 0.5), found up to {float(rate.max()):g}: with "
            "half of the labels wrong nothing can be told"
        )
