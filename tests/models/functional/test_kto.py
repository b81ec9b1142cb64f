"""KTO: the baseline and the loss by hand, by a loop, and the gradient."""

from __future__ import annotations

import math

import pytest
import torch

from trimtab.models.functional.checks import ShapeError
from trimtab.models.functional.dpo import kto_loss, mismatched_kl

F64 = torch.float64


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def test_the_baseline_is_the_mean_log_ratio_and_not_below_0() -> None:
    reference = torch.tensor([-2.0, -7.0], dtype=F64)
    ours = torch.tensor([-1.0, -6.5], dtype=F64, requires_grad=True)
    found = mismatched_kl(ours, reference)
    assert found.item() == 0.75 and not found.requires_grad
    assert mismatched_kl(reference, ours).item() == 0.0


def test_by_hand() -> None:
    # beta 2, z0 1/2: log-ratios log 3 + 1/2 and 1/2 have values 2 log 3 and 0. The first answer is
    # desirable and loses 1 - sigmoid(2 log 3) = 1/10; the second is not and loses 1/2, thrice.
    loss = kto_loss(
        torch.tensor([math.log(3) - 0.5, -3.5], dtype=F64),
        torch.tensor([-1.0, -4.0], dtype=F64),
        torch.tensor([1.0, 0.0], dtype=F64),
        torch.tensor(0.5, dtype=F64),
        beta=2.0,
        undesirable_weight=3.0,
    )
    assert loss.item() == pytest.approx((0.1 + 1.5) / 2, abs=1e-12)


def test_equals_loop() -> None:
    logprobs, reference = -torch.rand(2, 11, dtype=F64) * 9
    desirable, weight = torch.rand(2, 11, dtype=F64)
    beta, baseline, weights = 0.3, 0.8, (1.5, 0.7)
    total = 0.0
    for ours, theirs, p, w in zip(
        *(x.tolist() for x in (logprobs, reference, desirable, weight)), strict=True
    ):
        value = beta * math.log(math.exp(ours) / math.exp(theirs)) - beta * baseline
        total += w * p * weights[0] * (1 - sigmoid(value))
        total += w * (1 - p) * weights[1] * (1 - sigmoid(-value))
    loss = kto_loss(
        logprobs,
        reference,
        desirable,
        torch.tensor(baseline, dtype=F64),
        beta=beta,
        desirable_weight=weights[0],
        undesirable_weight=weights[1],
        weight=weight,
    )
    assert loss.item() == pytest.approx(total / weight.sum().item(), abs=1e-12)


def test_an_answer_at_the_baseline_loses_half_of_its_weight() -> None:
    reference = -torch.rand(5, dtype=F64) - 1
    kl = torch.tensor(0.4, dtype=F64)
    desirable = torch.tensor([1.0, 1.0, 0.0, 0.0, 0.5], dtype=F64)
    loss = kto_loss(reference + kl, reference, desirable, kl, beta=0.1)
    assert loss.item() == pytest.approx(0.5, abs=1e-12)


def test_gains_saturate_and_losses_too() -> None:
    """The loss is between 0 and lambda, and flat far from the baseline: what [KTO] is after."""
    ratios = torch.tensor([-400.0, -1.0, 0.0, 1.0, 400.0], dtype=F64, requires_grad=True)
    zero = torch.zeros((), dtype=F64)
    one = torch.ones(5, dtype=F64)
    losses = torch.stack(
        [
            kto_loss(r[None], torch.zeros(1, dtype=F64), one[:1], zero, beta=0.5)
            for r in ratios.unbind()
        ]
    )
    assert losses[0].item() == pytest.approx(1.0) and losses[-1].item() == pytest.approx(0.0)
    assert bool((losses.diff() < 0).all())
    (slopes,) = torch.autograd.grad(losses.sum(), ratios)
    assert slopes.abs().argmax().item() == 2 and slopes[2].item() == pytest.approx(-0.5 / 4)


def test_labels_above_1_take_wrong_ones_out() -> None:
    """A pair turned round at rate .25 has labels (1.5, -.5) of an unbiased loss."""
    logprobs, reference = -torch.rand(2, 2, dtype=F64)
    kl = torch.tensor(0.1, dtype=F64)

    def loss(first: float) -> torch.Tensor:
        desirable = torch.tensor([first, 1 - first], dtype=F64)
        return kto_loss(logprobs, reference, desirable, kl, beta=0.5, undesirable_weight=2.0)

    mean = 0.75 * loss(1.5) + 0.25 * loss(-0.5)
    torch.testing.assert_close(mean, loss(1.0), rtol=0, atol=1e-12)


def test_gradient() -> None:
    logprobs = (-torch.rand(4, dtype=F64)).requires_grad_()
    reference, desirable, weight = -torch.rand(4, dtype=F64), *torch.rand(2, 4, dtype=F64)
    kl = torch.tensor(0.2, dtype=F64)

    def loss(values: torch.Tensor) -> torch.Tensor:
        return kto_loss(values, reference, desirable, kl, beta=0.3, weight=weight)

    assert torch.autograd.gradcheck(loss, [logprobs])


def test_wrong_shapes_are_refused() -> None:
    x, kl = torch.zeros(3), torch.zeros(())
    with pytest.raises(ShapeError, match=r"desirable \(2,\)"):
        kto_loss(x, x, torch.zeros(2), kl, beta=1.0)
    with pytest.raises(ShapeError, match=r"0 axes, found baseline_kl \(3,\)"):
        kto_loss(x, x, x, x, beta=1.0)
    with pytest.raises(ShapeError, match=r"ref_logprobs \(2,\)"):
        mismatched_kl(x, torch.zeros(2))
