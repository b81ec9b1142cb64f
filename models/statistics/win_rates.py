"""Comparing two systems: win, tie and lose shares, and the win rate were both answers equally long.

[AM] Stabilizing RLHF through Advantage Model and Selective Rehearsal, arXiv 2309.10202, reports
win, lose and tie against SFT.
[LC] Dubois et al., Length-Controlled AlpacaEval: A Simple Way to Debias Automatic Evaluators, 2024,
arXiv 2404.04475, its regression of the outcome on the difference of lengths.

Deviations from [LC]
1. Two systems are compared at a time: the paper's term for the difficulty of an instruction, which
   is fitted on the outcomes of many systems on one fixed set of instructions, is left out.
2. A tie is half a win for each side; the paper's judge gives probabilities.
3. Of the two coefficients only that of length is penalised, by a constant; the paper chooses its
   penalty by cross-validation. So the result is the plain win rate where lengths do not differ.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from trimtab.models.functional.checks import ShapeError, require_floating, require_shape
from trimtab.models.statistics.bradley_terry import descend


def win_tie_lose(ours: Tensor, theirs: Tensor, tie_margin: float) -> dict[str, float]:
    """Shares of prompts where ours is better, level and worse [AM section 4.3].

    win: ours - theirs > tie_margin; lose: theirs - ours > tie_margin; tie: neither.

    ours, theirs: (N,), judged scores of two responses to the same prompt, in one unit.
    tie_margin: not negative, in that unit.
    Returns {"win", "tie", "lose"}, shares in [0, 1] that sum to 1.
    Raises ShapeError for other shapes, ValueError for a negative margin or a score that is NaN.
    """
    require_shape("win_tie_lose", 1, ours=ours, theirs=theirs)
    outcome = _outcomes("win_tie_lose", ours, theirs, tie_margin)
    num_wins, num_losses = (int((outcome == sign).sum()) for sign in (1, -1))
    num_prompts = len(outcome)
    return {
        "win": num_wins / num_prompts,
        "tie": (num_prompts - num_wins - num_losses) / num_prompts,
        "lose": num_losses / num_prompts,
    }


def outcome_matrix(scores: Tensor, tie_margin: float) -> Tensor:
    """Win 1, tie 0 and lose -1 of every system against every other, prompt by prompt.

    o_ijn = sign(s_in - s_jn) where they differ by more than tie_margin, else 0, as `win_tie_lose`.

    scores: (P, N), judged scores of P systems' responses to the same N prompts, in one unit.
    tie_margin: not negative, in that unit.
    Returns (P, P, N) int8; o_jin = -o_ijn.
    Raises ShapeError for other shapes, ValueError for a negative margin or a score that is NaN.
    """
    require_shape("outcome_matrix", 2, scores=scores)
    require_floating("outcome_matrix", scores=scores)
    return _outcomes("outcome_matrix", scores[:, None], scores[None], tie_margin)


def _outcomes(where: str, ours: Tensor, theirs: Tensor, tie_margin: float) -> Tensor:
    """int8, 1 where ours is better by more than the margin, -1 where theirs is, else 0."""
    if not tie_margin >= 0:
        raise ValueError(f"{where}: tie_margin must not be negative, found {tie_margin}")
    if bool(ours.isnan().any()) or bool(theirs.isnan().any()):
        raise ValueError(f"{where}: a score is NaN, which neither wins nor loses; judge again")
    gap = ours.detach().double() - theirs.detach().double()
    return (gap > tie_margin).to(torch.int8) - (gap < -tie_margin).to(torch.int8)


def length_control_loss(
    coefficients: Tensor, outcome: Tensor, difference: Tensor, ridge: float
) -> Tensor:
    """Negative log-likelihood of outcomes given lengths [LC], with a penalty on length's effect.

    L = -sum_i [w_i log sigmoid(z_i) + (1 - w_i) log sigmoid(-z_i)] + ridge / 2 phi^2, where
    z_i = theta + phi tanh(d_i / std(d)).

    coefficients: (2,), theta and phi, logits. outcome: (N,), w in [0, 1]: 1 won, 1/2 tied, 0 lost.
    difference: (N,), d, length of our answer less that of theirs, tokens; std is divided by N, and
    phi plays no part where all are equal. ridge: not negative.
    Returns a scalar, nats. Raises ShapeError for other shapes.
    """
    require_shape("length_control_loss", 1, outcome=outcome, difference=difference)
    require_floating("length_control_loss", outcome=outcome, difference=difference)
    if coefficients.shape != (2,):
        raise ShapeError(
            f"length_control_loss: coefficients must be (2,), found {tuple(coefficients.shape)}"
        )
    logits = coefficients[0] + coefficients[1] * _squashed(difference)
    fit = F.binary_cross_entropy_with_logits(logits, outcome, reduction="sum")
    return fit + ridge / 2 * coefficients[1] ** 2


def length_controlled_win_rate(
    outcome: Tensor, difference: Tensor, ridge: float = 1.0
) -> tuple[Tensor, dict[str, Tensor]]:
    """The win rate predicted at a difference of lengths of 0 [LC]: sigmoid(theta).

    theta and phi are at the minimum of `length_control_loss`, found by Newton steps that are halved
    while they do not descend. Where everything is won, or lost, so it is at any length.

    outcome, difference: (N,), as in `length_control_loss`. ridge: above 0.
    Returns the win rate (scalar float64, in [0, 1]) and `length_effect`, phi in logits: above 0,
    longer answers win.
    Raises ShapeError for other shapes, ValueError for an outcome or a ridge out of range.
    """
    require_shape("length_controlled_win_rate", 1, outcome=outcome, difference=difference)
    require_floating("length_controlled_win_rate", outcome=outcome, difference=difference)
    if not ridge > 0 or not bool(((outcome >= 0) & (outcome <= 1)).all()):
        raise ValueError(
            "length_controlled_win_rate: outcome must be in [0, 1] and ridge above 0, found ridge "
            f"{ridge}"
        )
    outcome, difference = outcome.detach().double(), difference.detach().double()
    rate = outcome.mean()
    if float(rate) in (0.0, 1.0):
        return rate, {"length_effect": torch.zeros_like(rate)}
    theta, phi = _minimum(outcome, difference, ridge)
    return theta.sigmoid(), {"length_effect": phi}


def _minimum(outcome: Tensor, difference: Tensor, ridge: float) -> Tensor:
    """(2,), the coefficients at the minimum of `length_control_loss`."""
    inputs = torch.stack([torch.ones_like(difference), _squashed(difference)], 1)
    penalty = torch.tensor([0.0, ridge], dtype=inputs.dtype, device=inputs.device)

    def newton_step(at: Tensor) -> Tensor:
        chance = (inputs @ at).sigmoid()
        gradient = inputs.T @ (chance - outcome) + penalty * at
        hessian = inputs.T @ (inputs * (chance * (1 - chance))[:, None]) + torch.diag(penalty)
        return torch.linalg.solve(hessian, gradient)

    return descend(
        inputs.new_zeros(2),
        lambda at: length_control_loss(at, outcome, difference, ridge),
        newton_step,
    )


def _squashed(difference: Tensor) -> Tensor:
    """tanh(d / std(d)); 0 where all differences are equal, as their effect cannot be told."""
    std = difference.std(correction=0)
    return torch.where(std > 0, torch.tanh(difference / std.clamp_min(1e-30)), 0.0 * difference)
