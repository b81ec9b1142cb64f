"""Preference strength: an ensemble's vote on every pair.

[RM] Secrets of RLHF Part II, arXiv 2401.06080.

Deviations
1. `counted` lets a member abstain on a pair. The paper has every member score the pairs it was
   trained on, so a memorised wrong label looks right; with `fold_of` a pair can be scored only by
   members that never saw it (cross-fitting). Without it the paper's in-sample vote is computed.
2. Where the number of pairs is not a multiple of the number of groups, the first groups hold one
   pair more; the paper does not say.
3. `calibrated_strength` adds up votes of different kinds of models (stacking) in place of a mean,
   which would let the kind with the largest scores decide. Their weights are found as if a share of
   the labels were wrong whatever the votes, as some are: without, those labels draw the weights
   towards members that are sure of nothing. Where members abstain, a sum of fewer votes has a scale
   of its own.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import expit, log_expit, xlogy
from torch import Tensor

from trimtab.models.functional.checks import require_floating, require_mask, require_shape
from trimtab.models.functional.masked import masked_mean

# With half of the labels wrong, nothing could be told.
MOST_WRONG = 0.45
# Pairs on which the same members vote, from which their scale is found.
FEWEST_ALIKE = 200


def preference_strength(
    differences: Tensor, counted: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation over members of each pair's score difference [RM eq. 4].

    mean_i = sum_m d_im / M, std_i = sqrt(sum_m (d_im - mean_i)^2 / M), M = members counted for i
    (population form: one member gives std 0).

    differences: (M, N), d_im = r_m(chosen_i) - r_m(rejected_i), logits.
    counted: (M, N) bool, True = member m votes on pair i, None = all do.
    Returns mean (N,) and std (N,), logits.
    Raises ShapeError for other shapes, ValueError if a pair has no member that counts.
    """
    require_shape("preference_strength", 2, differences=differences, counted=counted)
    require_floating("preference_strength", differences=differences)
    if counted is None:
        counted = torch.ones_like(differences, dtype=torch.bool)
    require_mask("preference_strength", counted, "counted")
    voteless = (~counted.any(0)).nonzero().flatten().tolist()
    if voteless:
        raise ValueError(
            f"preference_strength: {len(voteless)} of {differences.shape[1]} pairs have no "
            f"counted member (first at index {voteless[0]}); every pair needs at least one: "
            f"check that each fold is left out by some member"
        )
    mean = masked_mean(differences, counted, dim=0)
    variance = masked_mean((differences - mean).square(), counted, dim=0)
    return mean, variance.sqrt()


def calibrated_strength(
    differences: Tensor,
    learned: Tensor,
    counted: Tensor | None = None,
    label: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The vote of M members whose scores are on different scales, in logits.

    Strength is the sum of the members' differences, each times a weight of at least 0 under which
    the labels are likeliest, a share of them being wrong (logistic regression without intercept, as
    exchanging the two answers turns the sign). On the whole it is the log-odds that labels are as
    given. The members must not have been trained on the pairs they vote on, or weights
    tell who knows the labels by heart. A member that abstains on a pair adds nothing to its
    strength, and the pair tells nothing of the member's weight. Strengths of pairs on which the
    same members vote are scaled together, if FEWEST_ALIKE of them are learned from.

    differences: (M, N), score of the answer labelled better less that of the other. learned: (N,)
    bool, the pairs that the weights are found on, at least one. counted: (M, N) bool, True = member
    m votes on pair i, None = all do. label: (N,), the probability in [0, 1] that the answer
    labelled better is; of p the loss is p times that of the label and 1 - p times that of the
    other; None = 1. Returns strength (N,), 0 where nobody votes, the spread (N,)
    of what each member that votes says by itself, likewise calibrated, and weights (M,), 0 of a
    member that votes on none of the learned pairs; float64.
    Raises ShapeError for other shapes, ValueError for counted differences that are not finite.
    """
    require_shape("calibrated_strength", 2, differences=differences, counted=counted)
    require_shape("calibrated_strength", 1, learned=learned, label=label)
    if counted is None:
        counted = torch.ones_like(differences, dtype=torch.bool)
    require_mask("calibrated_strength", counted, "counted")
    if not bool(differences[counted].isfinite().all()):
        raise ValueError("calibrated_strength: differences must be finite")
    voted, is_known = counted.numpy(), learned.numpy()
    votes = np.where(voted, differences.double().numpy(), 0.0)
    known = votes[:, is_known]
    share = np.ones(len(is_known)) if label is None else label.double().numpy()
    count = voted[:, is_known].sum(1, keepdims=True)
    scale = np.sqrt((known**2).sum(1, keepdims=True) / np.maximum(count, 1))
    votes, known = (scores / np.where(scale > 0, scale, 1) for scores in (votes, known))
    labels = share[is_known]
    weights = np.where(scale[:, 0] > 0, _weights_despite_errors(known, labels), 0.0)
    by_member = [
        _likeliest_weights(vote[None, where], labels[where]) if where.any() else np.zeros(1)
        for vote, where in zip(known, voted[:, is_known], strict=True)
    ]
    alone = torch.from_numpy(np.stack(by_member) * votes)
    mean = masked_mean(alone, counted, dim=0)
    spread = masked_mean((alone - mean).square(), counted, dim=0).sqrt()
    unscaled = weights / np.where(scale > 0, scale, 1)[:, 0]
    total = _scaled_by_voters(weights @ votes, voted, is_known, share)
    return torch.from_numpy(total), spread, torch.from_numpy(unscaled)


def _scaled_by_voters(
    total: NDArray[np.float64],
    voted: NDArray[np.bool_],
    is_known: NDArray[np.bool_],
    label: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Strengths (N,) whose scale is the likeliest for each set of members that vote (M, N)."""
    sets, set_of = np.unique(voted, axis=1, return_inverse=True)
    scaled = total.copy()
    if sets.shape[1] == 1:
        return scaled
    for number in range(sets.shape[1]):
        in_set = set_of.ravel() == number
        known = total[in_set & is_known]
        size = np.sqrt((known**2).mean()) if len(known) >= FEWEST_ALIKE else 0.0
        if size > 0:
            scaled[in_set] *= (
                _likeliest_weights(known[None] / size, label[in_set & is_known])[0] / size
            )
    return scaled


def _likeliest_weights(
    votes: NDArray[np.float64], label: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Weights w (M,) >= 0 of the largest likelihood of labels (N,), their log-odds being w @ votes;
    votes (M, N) of unit size.

    A penalty that hardly matters, and a bound, keep them finite where the votes know all labels.
    """

    def loss(weights: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        gap = weights @ votes
        value = -(label * log_expit(gap) + (1 - label) * log_expit(-gap)).mean()
        slope = votes * (expit(gap) - label)
        return float(value + 1e-4 * weights @ weights), slope.mean(1) + 2e-4 * weights

    start = np.full(len(votes), 1 / len(votes))
    bounds = [(0.0, 100.0)] * len(votes)
    weights: NDArray[np.float64] = minimize(loss, start, jac=True, bounds=bounds).x
    return weights


def _weights_despite_errors(
    votes: NDArray[np.float64], label: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Weights w (M,) >= 0 in whose relation labels are likeliest if a share e of them is wrong.

    A label is then as given at g = e + (1 - 2 e) sigmoid(v @ votes), and the other way round at
    1 - g. Of w = c v the scale c is that of the largest likelihood under log-odds w @ votes: of all
    labels, wrong ones too. votes: (M, N) of unit size. label: (N,). e is found with v.
    """

    def loss(values: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        weights, share = values[:-1], values[-1]
        right = expit(weights @ votes)
        as_is = share + (1 - 2 * share) * right
        other = share + (1 - 2 * share) * expit(-(weights @ votes))
        value = -(xlogy(label, as_is) + xlogy(1 - label, other)).mean()
        against = np.divide(1 - label, other, out=np.zeros_like(other), where=label < 1)
        surplus = label / as_is - against
        slope = (1 - 2 * share) * right * (1 - right) * surplus
        by_share = -((1 - 2 * right) * surplus).mean()
        gradient = [*(-(votes * slope).mean(1) + 2e-4 * weights), by_share]
        return float(value + 1e-4 * weights @ weights), np.array(gradient)

    if len(votes) == 1:
        return _likeliest_weights(votes, label)
    start = [*np.full(len(votes), 1 / len(votes)), MOST_WRONG / 10]
    bounds = [*[(0.0, 100.0)] * len(votes), (0.0, MOST_WRONG)]
    relation: NDArray[np.float64] = minimize(loss, start, jac=True, bounds=bounds).x[:-1]
    together = relation @ votes
    size = np.sqrt((together**2).mean())
    if size == 0:
        return relation
    return relation / size * _likeliest_weights(together[None] / size, label)


def fold_of(num_pairs: int, num_folds: int, seed: int) -> Tensor:
    """A random fold for every pair, sizes equal up to one (deviation 1).

    Where several pairs share a prompt, draw folds for the prompts and index them by prompt:
    a member that saw a sibling pair has seen the answer.

    num_pairs: N >= 1. num_folds: in [2, N]. seed: determines the folds; the global random state
    is neither read nor advanced.
    Returns (N,) long on the CPU, values in [0, num_folds).
    Raises ValueError for a num_folds outside [2, N].
    """
    if not 2 <= num_folds <= num_pairs:
        raise ValueError(
            f"fold_of: num_folds must be in [2, {num_pairs}] (the number of pairs), "
            f"found {num_folds}"
        )
    generator = torch.Generator().manual_seed(seed)
    return torch.randperm(num_pairs, generator=generator, device="cpu") % num_folds
