"""Calibration of scores as probabilities, and ranking quality.

[AM] Stabilizing RLHF through Advantage Model and Selective Rehearsal, arXiv 2309.10202.
[ECE] Guo et al., On Calibration of Modern Neural Networks, arXiv 1706.04599.
[RANK] Kendall and Gibbons, Rank Correlation Methods, 5th edition, 1990.

Deviations
1. [AM] publishes neither bin count nor binning: 10 bins, equal width over [0, 1] by default, equal
   mass beside it. A pair's confidence is at least 0.5, so with equal width half the bins stay
   empty; empty bins add nothing.
2. With equal mass, equal probabilities share a bin (the one where the first of them falls), so
   the result does not depend on the order of the examples; bins may then differ in size.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
import torch.nn.functional as F
from scipy.optimize import minimize_scalar
from torch import Tensor

from trimtab.models.functional.checks import require_floating, require_mask, require_shape

Binning = Literal["width", "mass"]


def pair_confidence(score_gap: Tensor) -> tuple[Tensor, Tensor]:
    """Confidence in the predicted order of each pair, and whether it is right [AM figure 2].

    confidence = 1 / (1 + exp(-|gap|)); correct = gap > 0 (a tie is not correct).

    score_gap: (N,), score of the response labelled better minus that of the other, logits.
    Returns confidence (N,), probability in [0.5, 1], and correct (N,) bool.
    Raises ShapeError for other shapes.
    """
    require_shape("pair_confidence", 1, score_gap=score_gap)
    require_floating("pair_confidence", score_gap=score_gap)
    return torch.sigmoid(score_gap.abs()), score_gap > 0


def likeliest_temperature(gap: Tensor) -> float:
    """T that makes labels likeliest by sigmoid(gap / T) [ECE section 4.2]; gap (N,), logits."""

    def loss(log_temperature: float) -> float:
        return float(-F.logsigmoid(gap / math.exp(log_temperature)).mean())

    return math.exp(minimize_scalar(loss, bounds=(-7, 7), method="bounded").x)


def calibration_curve(
    probability: Tensor, correct: Tensor, num_bins: int = 10, binning: Binning = "width"
) -> tuple[Tensor, Tensor, Tensor]:
    """Mean confidence and accuracy by bin of confidence [ECE eq. 3; AM figure 2].

    probability: (N,), confidence in [0, 1]. correct: (N,) bool, True = the prediction is right; or
    (N,) floating in [0, 1], the share of people who hold it right.
    num_bins: G >= 1. binning: "width", bins (g/G, (g+1)/G] with 0 in the first; "mass", bins of
    equal size up to ties (deviation 2).
    Returns bin confidence (G,) and bin accuracy (G,), float64 in [0, 1], NaN where a bin is
    empty, and bin count (G,) long.
    Raises ShapeError for other shapes, ValueError for an option or a probability out of range.
    """
    require_shape("calibration_curve", 1, probability=probability, correct=correct)
    require_floating("calibration_curve", probability=probability)
    if correct.is_floating_point():
        if not bool(((correct >= 0) & (correct <= 1)).all()):
            raise ValueError("calibration_curve: shares that are right must be in [0, 1]")
    else:
        require_mask("calibration_curve", correct, "correct")
    if num_bins < 1:
        raise ValueError(f"calibration_curve: num_bins must be at least 1, found {num_bins}")
    if binning not in ("width", "mass"):
        raise ValueError(f"calibration_curve: binning must be 'width' or 'mass', found {binning!r}")
    if not bool(((probability >= 0) & (probability <= 1)).all()):
        raise ValueError(
            "calibration_curve: probabilities must be in [0, 1]; pass scores through "
            "pair_confidence first"
        )
    bins = _bin_of(probability, num_bins, binning)
    count = torch.bincount(bins, minlength=num_bins)
    confidence = torch.zeros(num_bins, dtype=torch.float64, device=bins.device)
    accuracy = torch.zeros_like(confidence)
    confidence.index_add_(0, bins, probability.detach().double())
    accuracy.index_add_(0, bins, correct.double())
    return confidence / count, accuracy / count, count


def expected_calibration_error(
    probability: Tensor, correct: Tensor, num_bins: int = 10, binning: Binning = "width"
) -> Tensor:
    """Expected calibration error: sum_g n_g / N |accuracy_g - confidence_g| [ECE eq. 3].

    Arguments and errors are those of `calibration_curve`.
    Returns a float64 scalar in [0, 1] (times 100 for the percentages of [AM table 1]).
    """
    confidence, accuracy, count = calibration_curve(probability, correct, num_bins, binning)
    gap = torch.where(count > 0, (accuracy - confidence).abs(), torch.zeros_like(confidence))
    error: Tensor = (gap * count).sum() / count.sum()
    return error


def auroc(scores: Tensor, is_positive: Tensor) -> Tensor:
    """Area under the ROC curve (Mann-Whitney): P(s+ > s-) + P(s+ = s-) / 2.

    scores: (N,), higher = more likely positive. is_positive: (N,) bool, True = positive.
    Returns a float64 scalar in [0, 1].
    Raises ShapeError for other shapes, ValueError if a class is missing or a score is NaN.
    """
    require_shape("auroc", 1, scores=scores, is_positive=is_positive)
    require_floating("auroc", scores=scores)
    require_mask("auroc", is_positive, "is_positive")
    if bool(scores.isnan().any()):
        raise ValueError("auroc: scores holds NaN, which cannot be ranked; score again")
    num_positive = int(is_positive.sum())
    num_negative = scores.shape[0] - num_positive
    if num_positive == 0 or num_negative == 0:
        raise ValueError(
            f"auroc: both classes are needed, found {num_positive} positive and "
            f"{num_negative} negative"
        )
    distinct, place = torch.unique(scores.detach(), return_inverse=True)
    return area_of_places(place[is_positive], place[~is_positive], len(distinct))


def area_of_places(positive: Tensor, negative: Tensor, number: int) -> Tensor:
    """`auroc` of (P,) and (Q,) long, each score's place among `number` distinct ones."""
    ours, others = (places.bincount(minlength=number).double() for places in (positive, negative))
    area: Tensor = (ours * (others.cumsum(0) - others / 2)).sum()
    return area / (len(positive) * len(negative))


def spearman(first: Tensor, second: Tensor) -> Tensor:
    """Spearman's rank correlation: Pearson's correlation of the ranks [RANK chapter 3].

    rho = sum_i (r_i - m)(s_i - m) / sqrt(sum_i (r_i - m)^2 sum_i (s_i - m)^2), m = (N + 1) / 2,
    equal values taking their mean rank.

    first, second: (N,), any units.
    Returns a float64 scalar in [-1, 1], NaN where all values of a side are equal.
    Raises ShapeError for other shapes, ValueError if a value is NaN.
    """
    require_shape("spearman", 1, first=first, second=second)
    for name, values in (("first", first), ("second", second)):
        if bool(values.isnan().any()):
            raise ValueError(f"spearman: {name} holds NaN, which cannot be ranked")
    return spearman_of_dense_ranks(dense_ranks(first), dense_ranks(second))


def spearman_of_dense_ranks(first: Tensor, second: Tensor) -> Tensor:
    """`spearman` of two (N,) `dense_ranks`, or of the same examples drawn from both.

    Sorting is done once for all draws.
    """
    middle = (first.shape[0] + 1) / 2
    x, y = _mean_ranks(first) - middle, _mean_ranks(second) - middle
    correlation: Tensor = (x * y).sum() / (x.square().sum() * y.square().sum()).sqrt()
    return correlation


def dense_ranks(values: Tensor) -> Tensor:
    """(N,) long, from 0: of each value how many different smaller ones there are."""
    ranks: Tensor = torch.unique(values.detach(), return_inverse=True)[1]
    return ranks


def spearman_ceiling(values: Tensor) -> Tensor:
    """The highest `spearman` that anything without equal values reaches with these [RANK ch. 3].

    sqrt(1 - sum_t (t^3 - t) / (N^3 - N)) over runs of t equal values: their mean ranks vary less
    than the ranks 1 to N of what orders them perfectly.

    values: (N,), N >= 2, any unit.
    Returns a float64 scalar in [0, 1]: 1 without equal values, 0 where all are equal.
    Raises ShapeError for other shapes, ValueError for fewer than two values.
    """
    require_shape("spearman_ceiling", 1, values=values)
    count = float(values.shape[0])
    if count < 2:
        raise ValueError(f"spearman_ceiling: at least 2 values are needed, found {count:.0f}")
    tied = torch.unique(values.detach(), return_counts=True)[1].double()
    ceiling: Tensor = (1 - (tied**3 - tied).sum() / (count**3 - count)).sqrt()
    return ceiling


def _mean_ranks(dense: Tensor) -> Tensor:
    """(N,) float64 ranks from 1 up: t equal ones, the last at rank e, have e - (t - 1) / 2."""
    tied = torch.bincount(dense)
    ranks: Tensor = (tied.cumsum(0).double() - (tied.double() - 1) / 2)[dense]
    return ranks


def _bin_of(probability: Tensor, num_bins: int, binning: Binning) -> Tensor:
    """(N,) long, the bin of each example; see `calibration_curve`."""
    if binning == "width":
        edges = torch.arange(1, num_bins, device=probability.device).double() / num_bins
        # In the probabilities' own dtype, so that 0.1 falls on the edge 0.1.
        return torch.bucketize(probability.detach(), edges.to(probability.dtype))
    _, place, tied = torch.unique(probability.detach(), return_inverse=True, return_counts=True)
    first = tied.cumsum(0) - tied
    bins: Tensor = first * num_bins // probability.shape[0]
    return bins[place]
