"""label_noise: posteriors by hand and by counting, unbiased losses as means over wrong labels."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from trimtab.models.functional.advantage import advantage_loss
from trimtab.models.functional.checks import ShapeError
from trimtab.models.functional.cpl import cpl_loss
from trimtab.models.functional.dpo import dpo_loss
from trimtab.models.functional.label_noise import (
    flip_rate_by_pair,
    label_at_rate,
    relabel_by_noise,
    right_probability,
    unbiased_label,
)
from trimtab.models.functional.relabel import Relabel, relabel_soft_labels
from trimtab.models.functional.reward import ranking_loss

F64 = torch.float64
LOG3 = math.log(3)
# The loss of (better, worse) scores of a batch, given the labels and margins of that order.
Loss = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def _values(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=F64)


def _dpo(chosen: Tensor, rejected: Tensor, label: Tensor, margin: Tensor) -> Tensor:
    reference = torch.zeros_like(chosen)
    return dpo_loss(
        chosen, rejected, reference, reference, beta=0.3, label_chosen=label, margin=margin
    )[0]


LOSSES: dict[str, Loss] = {
    "reward model": lambda c, r, p, m: ranking_loss(c, r, label_chosen=p, margin=m)[0],
    "Advantage Model": lambda c, r, p, m: advantage_loss(
        c, r, margin=2.5, label_chosen=p, ranking_margin=m
    )[0],
    "DPO": _dpo,
    "CPL": lambda c, r, p, m: cpl_loss(c, r, conservative_bias=0.5, label_chosen=p, margin=m)[0],
}


def test_unbiased_label_by_hand() -> None:
    # (1 - rho) / (1 - 2 rho): 1, .9/.8, .8/.6, .75/.5, .6/.2.
    got = unbiased_label(_values(0.0, 0.1, 0.2, 0.25, 0.4))
    assert got.tolist() == pytest.approx([1, 9 / 8, 4 / 3, 3 / 2, 3])


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("rate", [0.0, 0.1, 0.3, 0.45])
def test_the_mean_over_wrong_labels_is_the_loss_of_right_ones(name: str, rate: float) -> None:
    """And so are its gradients: a label is right in 1 - rho, else the order seen is the other."""
    loss = LOSSES[name]
    chosen, rejected, margin = torch.randn(3, 6, dtype=F64)
    ones = torch.ones(6, dtype=F64)

    def clean(better: Tensor, worse: Tensor) -> Tensor:
        return loss(better, worse, ones, margin)

    def mean_over_labels(better: Tensor, worse: Tensor) -> Tensor:
        label = unbiased_label(rate * ones)
        as_is = loss(better, worse, label, margin)
        turned = loss(worse, better, label, -margin)
        return (1 - rate) * as_is + rate * turned

    found = []
    for function in (clean, mean_over_labels):
        scores = [chosen.clone().requires_grad_(), rejected.clone().requires_grad_()]
        value = function(*scores)
        found.append([value, *torch.autograd.grad(value, scores)])
    for theirs, ours in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


def test_one_pairs_loss_and_gradient_by_hand() -> None:
    # Gap log 3, label 4/3: -(4/3 log(3/4) - 1/3 log(1/4)) = log(4/3) - 1/3 log 3 = -.0785, below
    # 0; its slope in the gap is 3/4 - 4/3.
    chosen = _values(LOG3).requires_grad_()
    loss, _ = ranking_loss(chosen, _values(0.0), label_chosen=_values(4 / 3))
    loss.backward()
    assert loss.item() == pytest.approx(math.log(4 / 3) - LOG3 / 3) and loss.item() < 0
    assert chosen.grad is not None
    assert chosen.grad.item() == pytest.approx(3 / 4 - 4 / 3)
    assert torch.autograd.gradcheck(
        lambda c: ranking_loss(c, _values(0.0), label_chosen=_values(4 / 3))[0], chosen
    )


def test_the_advantage_models_bounds_hold_what_nothing_holds_in_a_reward_model() -> None:
    # Gap 200, label 4/3: the ranking part is -200/3; bounds of 97.5 on each side, the two of the
    # order seen 4/3 times and none of the other order, which lies inside: 4/3 (97.5 + 97.5).
    far, label = (_values(100.0), _values(-100.0)), _values(4 / 3)
    assert ranking_loss(*far, label_chosen=label)[0].item() == pytest.approx(-200 / 3)
    bounded, _ = advantage_loss(*far, margin=2.5, label_chosen=label)
    assert bounded.item() == pytest.approx(-200 / 3 + 4 / 3 * 195)


def test_a_rate_too_high_is_worse_than_one_too_low() -> None:
    """Labels are wrong in rho = .2; assumed .1 and .3: mean labels (1 - .2 - r) / (1 - 2 r) are
    .875, short of 1, and 1.25, beyond it, where no gap is the best one."""
    for assumed, mean in ((0.1, 0.875), (0.2, 1.0), (0.3, 1.25)):
        label = unbiased_label(_values(assumed))
        assert (0.8 * label + 0.2 * (1 - label)).item() == pytest.approx(mean)


def test_right_probability_by_hand() -> None:
    # w = .2 gives odds of 4, slope 2 and s = log(3) / 2 odds of 3: 12/13. s = -log(8) / 2: 4 / 8,
    # which is 1/3. At s = 0 the label alone speaks, .8. w = 0: labels are right.
    strength = _values(LOG3 / 2, -math.log(8) / 2, 0.0)
    assert right_probability(strength, 2.0, 0.2).tolist() == pytest.approx([12 / 13, 1 / 3, 0.8])
    assert right_probability(strength, 2.0, 0.0).tolist() == [1.0, 1.0, 1.0]
    # A vote that tells nothing leaves the label's share.
    assert right_probability(strength, 0.0, 0.3).tolist() == pytest.approx([0.7] * 3)


def test_right_probability_is_what_counting_gives() -> None:
    """Of pairs whose order, before its label, is right in 3 of 5 or 9 of 10, a tenth of the labels
    is turned round: counted over both orders and both labels."""
    for right, strength in ((0.6, math.log(1.5)), (0.9, math.log(9))):
        seen = {  # label right or wrong, as given: the vote's side, and the other one
            "for": (right * 0.9, (1 - right) * 0.1),
            "against": ((1 - right) * 0.9, right * 0.1),
        }
        for side, sign in (("for", 1), ("against", -1)):
            kept, turned = seen[side]
            got = right_probability(_values(sign * strength), 1.0, 0.1).item()
            assert got == pytest.approx(kept / (kept + turned))


def test_flip_rate_by_pair_by_hand() -> None:
    # sigmoid(-|s|) is 1/2, 1/4, 1/4, mean 1/3; .2 / (1/3) = .6 times these.
    strength = _values(0.0, LOG3, -LOG3)
    got = flip_rate_by_pair(strength, 0.2)
    assert got.tolist() == pytest.approx([0.3, 0.15, 0.15])
    assert got.mean().item() == pytest.approx(0.2)
    # It does not tell which label is seen.
    assert torch.equal(flip_rate_by_pair(-strength, 0.2), got)


def test_where_voters_know_all_the_rates_are_those_of_the_labels() -> None:
    """Labels turned round in a tenth and in three tenths: the vote is sure of the order, and its
    log-odds of the label as given are log 9 and log(7/3), below 0 where the label is wrong."""
    rate = _values(*[0.1] * 10, *[0.3] * 10)
    sign = _values(*[-1.0] + [1.0] * 9, *[-1.0] * 3 + [1.0] * 7)
    strength = sign * torch.logit(1 - rate)
    torch.testing.assert_close(flip_rate_by_pair(strength, (sign < 0).double().mean()), rate)


def _relabelled(kind: Any, strength: Tensor, **options: Any) -> Relabel:
    ones = torch.ones_like(strength)
    given = Relabel(torch.zeros_like(strength, dtype=torch.bool), ones, 0.5 * strength, ones)
    options = {"flip_rate": 0.2, "slope": 1.0, "largest_rate": 0.25, **options}
    return relabel_by_noise(given, strength, kind, **options)


def test_treatments_by_hand() -> None:
    strength = _values(LOG3, -math.log(12), 0.0)
    # Odds 4 x 3, 4 / 12 and 4: the second order is turned, with label 3/4, and its margin with it.
    got = _relabelled("posterior", strength)
    assert got.is_flipped.tolist() == [False, True, False]
    assert got.label.tolist() == pytest.approx([12 / 13, 3 / 4, 4 / 5])
    assert got.margin.tolist() == pytest.approx([LOG3 / 2, math.log(12) / 2, 0.0])
    # One rate for all, and its bound.
    got = _relabelled("unbiased", strength)
    assert not got.is_flipped.any() and got.label.tolist() == pytest.approx([4 / 3] * 3)
    assert torch.equal(got.margin, 0.5 * strength)
    assert _relabelled("unbiased", strength, flip_rate=0.4).label.tolist() == [1.5] * 3
    # sigmoid(-|s|) is 1/4, 1/13, 1/2, mean 43/156: rates .2 x 39/43, .2 x 12/43 and .2 x 78/43,
    # the last of which is bounded by .25.
    got = _relabelled("unbiased_by_pair", strength)
    by_hand = [(1 - rate) / (1 - 2 * rate) for rate in (7.8 / 43, 2.4 / 43, 0.25)]
    assert got.label.tolist() == pytest.approx(by_hand)


def test_soft_labels_are_corrected_too() -> None:
    # Of .7 given and rate .2: (.7 - .2) / .6; of a tie 1/2.
    ones = torch.ones(2, dtype=F64)
    given = Relabel(ones < 0, unbiased_label(_values(0.2, 0.2)), 0 * ones, ones)
    assert relabel_soft_labels(given, _values(0.7, 0.5)).label.tolist() == pytest.approx(
        [5 / 6, 1 / 2]
    )


def test_labels_at_a_rate_by_hand() -> None:
    # Of .7 and a tie at rate .2: .7 x .8 + .3 x .2; unbiased as above.
    given = _values(0.7, 0.5)
    assert label_at_rate(given, 0.2, is_unbiased=False).tolist() == pytest.approx([0.62, 0.5])
    assert label_at_rate(given, 0.2, is_unbiased=True).tolist() == pytest.approx([5 / 6, 0.5])


def test_each_of_smoothing_and_unbiased_labels_undoes_the_other() -> None:
    given = torch.rand(9, dtype=F64)
    smoothed = label_at_rate(given, 0.3, is_unbiased=False)
    torch.testing.assert_close(label_at_rate(smoothed, 0.3, is_unbiased=True), given)


def test_smoothing_at_the_same_rate_undoes_the_correction() -> None:
    label = unbiased_label(_values(0.2))
    zeros = [_values(0.0)] * 3
    corrected, _ = dpo_loss(_values(1.0), *zeros, beta=1.0, label_smoothing=0.2, label_chosen=label)
    plain, _ = dpo_loss(_values(1.0), *zeros, beta=1.0)
    assert corrected.item() == pytest.approx(plain.item())


@pytest.mark.parametrize("rate", [-0.1, 0.5, math.nan])
def test_impossible_rates_are_refused(rate: float) -> None:
    for function in (
        lambda: right_probability(_values(1.0), 1.0, rate),
        lambda: flip_rate_by_pair(_values(1.0), rate),
        lambda: unbiased_label(_values(rate)),
        lambda: label_at_rate(_values(1.0), rate, is_unbiased=False),
    ):
        with pytest.raises(ValueError, match=r"flip rates must be in \[0, 0.5\)"):
            function()


def test_shapes_are_checked() -> None:
    matrix = torch.zeros(2, 2, dtype=F64)
    for function in (
        lambda: right_probability(matrix, 1.0, 0.1),
        lambda: flip_rate_by_pair(matrix, 0.1),
        lambda: unbiased_label(matrix),
        lambda: unbiased_label(torch.zeros(2, dtype=torch.long)),
        lambda: label_at_rate(matrix, 0.1, is_unbiased=True),
        lambda: _relabelled("posterior", matrix),
    ):
        with pytest.raises(ShapeError):
            function()
