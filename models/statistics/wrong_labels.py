"""How many of the labels that a vote contradicts are really wrong, without a right label.

[DS] Dawid and Skene, Maximum Likelihood Estimation of Observer Error-Rates Using the EM Algorithm,
Applied Statistics 28, 1979: errors of who labels, from agreement alone.
[ZD] Zou and Donner, Construction of Confidence Limits about Effect Measures: a General Approach,
Statistics in Medicine 27, 2008: the interval of a sum from those of its parts.

The model. A pair's strength s is the vote's log-odds, up to scale, that its label is as given.
Whoever votes was not trained on the pair, so that turning its label round turns the sign of s and
nothing else. Let a share w of the labels be wrong, whatever the pair, and the vote be for the worse
answer with probability q(u) = sigmoid(-b u), where u = |s|, b >= 0: at u = 0 it is a coin, and the
surer it is the less often it errs. A label is contradicted (s < 0) where exactly one of the two is
wrong:

    d(u) = w (1 - q(u)) + (1 - w) q(u) = w + (1 - 2 w) q(u).

So false alarms become rare where the vote is sure, and what is still contradicted there are wrong
labels: that tells w from b. Both are the likeliest for the signs of all s. The contradicted label
of strength u is wrong with probability

    p(u) = w (1 - q(u)) / d(u),

and the estimate is the sum of p over the contradicted ones: their number less the expected false
alarms. It is what `trimtab.models.functional.strength` assumes of labels to weigh the voters.

What cannot be told. Where no strength is large, w = 0 with a poor vote and a large w with a better
one are nearly as likely: the interval then says so. Labels that are wrong where the vote is unsure
count as errors of the vote; pairs on which it is surely mistaken count as wrong labels.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.special import expit, xlogy

from trimtab.models.statistics.measured import Interval, flatten, with_ends

Array = np.ndarray[Any, np.dtype[np.float64]]
Mask = np.ndarray[Any, np.dtype[np.bool_]]
# Twice the difference in log-likelihood within a 95 % interval, one degree of freedom; its root is
# the normal quantile.
CHI_SQUARE = 3.841
# Strengths are cut by size into so many groups, each of which stands for its mean.
GROUPS = 100
# w in steps that are finer the smaller it is; b in units of 1 / root mean square of s.
SHARES = 0.5 * (np.arange(201) / 201) ** 2
SLOPES = np.concatenate([[0.0], np.geomspace(0.02, 50, 80)])
# Of the labels that are expected to be wrong, the part that the first pairs to look at hold; and
# how many pairs these are at least.
PART_OF_FIRST, FEWEST_FIRST = 0.8, 20


@dataclass(frozen=True)
class WrongLabels:
    """How many labels are wrong.

    contradicted: of the labels that the vote contradicts the number that are wrong. share: of all
    labels, in [0, 0.5). num_first: how many of the contradicted ones to look at first, the weakest,
    which hold PART_OF_FIRST of those expected to be wrong. worth: that of `wrong_labels`. slopes:
    the likeliest b under each of SHARES, per unit of strength.
    """

    contradicted: Interval
    share: Interval
    num_first: int
    worth: float
    slopes: tuple[float, ...] = field(repr=False)

    def slope_at(self, share: float) -> float:
        """The likeliest b where this share of the labels is wrong, in [0, 0.5)."""
        return float(np.interp(share, SHARES, self.slopes))

    def numbers(self) -> dict[str, float | str]:
        """Flat, as a summary holds them."""
        return {
            **flatten(num_to_look_at_first=self.num_first, worth_of_a_pair=self.worth),
            **with_ends("num_really_wrong", self.contradicted),
            **with_ends("share_wrong", self.share),
        }


@dataclass(frozen=True)
class _Signs:
    """Pairs by size of their strength, G groups: u (G,), pairs (G,) and contradicted ones (G,), as
    many independent ones as they are worth."""

    size: Array
    pairs: Array
    against: Array

    def log_likelihood(self, slope: float) -> Array:
        """(W,) under each of SHARES."""
        error = expit(-slope * self.size)
        against = SHARES[:, None] + (1 - 2 * SHARES[:, None]) * error
        likelihood: Array = xlogy(self.against, against).sum(1)
        return likelihood + xlogy(self.pairs - self.against, 1 - against).sum(1)


def wrong_labels(
    strength: Array, worth: float = 1.0, is_asked: Mask | None = None
) -> WrongLabels | None:
    """How many labels are wrong, with 95 % intervals; None where every strength asked about is 0.

    The interval of w is that of the profile likelihood, b being the likeliest for each w. The
    number of wrong ones among those contradicted varies about its expectation besides, by the sum
    of p (1 - p): both are put together as by [ZD].

    strength: (N,), of labels as given, logits up to scale. worth: how many independent pairs a pair
    is worth, in (0, 1], as pairs of one prompt depend on each other. is_asked: (N,), the labels
    that are asked about; the others, whose share of wrong ones is another, help to tell how often
    the vote errs. None: all.
    """
    is_counted = np.ones(len(strength), bool) if is_asked is None else is_asked
    if not strength[is_counted].any():
        return None
    unit = float(np.sqrt(np.square(strength).mean()))
    scaled = strength / unit
    parts = [
        _signs(scaled[part], worth) for part in (is_counted, ~is_counted) if scaled[part].any()
    ]
    # (B, W): of each b the likelihood under each w, that of the others under their own likeliest.
    likelihood = np.array([parts[0].log_likelihood(slope) for slope in SLOPES])
    for others in parts[1:]:
        best = [others.log_likelihood(slope).max() for slope in SLOPES]
        likelihood += np.array(best)[:, None]
    profile, slopes = likelihood.max(0), SLOPES[likelihood.argmax(0)]
    inside = np.flatnonzero(2 * (profile.max() - profile) <= CHI_SQUARE)
    places = [int(profile.argmax()), int(inside[0]), int(inside[-1])]
    against = -scaled[is_counted & (scaled < 0)]
    chances = [_chance_wrong(against, SHARES[at], slopes[at]) for at in places]
    value, low, high = (float(chance.sum()) for chance in chances)
    spread = [CHI_SQUARE * float((chance * (1 - chance)).sum()) for chance in chances]
    return WrongLabels(
        contradicted=Interval(
            value,
            max(0.0, value - float(np.hypot(value - low, spread[1] ** 0.5))),
            min(float(len(against)), value + float(np.hypot(high - value, spread[2] ** 0.5))),
        ),
        share=Interval(*(float(SHARES[at]) for at in places)),
        num_first=_num_first(chances[0]),
        worth=worth,
        slopes=tuple((slopes / unit).tolist()),
    )


def _signs(strength: Array, worth: float) -> _Signs:
    """Of strengths (N,); those of 0 say nothing."""
    strength = strength[strength != 0]
    order = np.argsort(np.abs(strength), kind="stable")
    groups = np.array_split(strength[order], min(GROUPS, len(strength)))
    pairs = np.array([len(group) for group in groups], np.float64)
    size = np.array([np.abs(group).mean() for group in groups])
    against = np.array([(group < 0).sum() for group in groups], np.float64)
    return _Signs(size, worth * pairs, worth * against)


def _chance_wrong(size: Array, share: float, slope: float) -> Array:
    """p(u) of contradicted labels of sizes u (F,)."""
    error = expit(-slope * size)
    wrong = share * (1 - error)
    chance: Array = wrong / (wrong + (1 - share) * error) if share > 0 else np.zeros(len(size))
    return chance


def _num_first(chance: Array) -> int:
    """How many of the contradicted labels to look at first, by their chances of being wrong."""
    held = np.cumsum(np.sort(chance)[::-1])
    enough = int(np.searchsorted(held, PART_OF_FIRST * chance.sum())) + 1
    return min(len(chance), max(FEWEST_FIRST, enough))
