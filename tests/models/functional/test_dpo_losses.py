"""hinge, ipo and robust: by hand, by a loop, what they are made for, and the gradient."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from trimtab.models.functional.checks import ShapeError
from trimtab.models.functional.dpo import PairLoss, dpo_loss

F64 = torch.float64
LOSSES: tuple[PairLoss, ...] = ("hinge", "ipo", "robust")
# Of a pair's logit at beta; robust is that of sigmoid, whose label is another.
SLOW: dict[str, Callable[[float, float], float]] = {
    "hinge": lambda logit, _: max(0.0, 1 - logit),
    "ipo": lambda logit, beta: (logit / beta - 1 / (2 * beta)) ** 2,
    "robust": lambda logit, _: math.log(1 + math.exp(-logit)),
}


def _pair(gap: float, loss: PairLoss, **more: object) -> float:
    """The loss of one pair whose log-ratios are `gap` and 0."""
    values = [torch.tensor([x], dtype=F64) for x in (gap - 3.0, -5.0, -3.0, -5.0)]
    return dpo_loss(*values, loss=loss, **more)[0].item()  # type: ignore[arg-type]


def test_hinge_by_hand() -> None:
    # At beta 1/2 the logits of gaps 1 and 4 are 1/2 and 2: losses 1/2 and 0.
    assert _pair(1.0, "hinge", beta=0.5) == pytest.approx(0.5, abs=1e-15)
    assert _pair(4.0, "hinge", beta=0.5) == 0.0
    # The other order loses 1 + 2; with a label of .9: .9 x 0 + .1 x 3.
    label = torch.tensor([0.9], dtype=F64)
    assert _pair(4.0, "hinge", beta=0.5, label_chosen=label) == pytest.approx(0.3, abs=1e-15)


def test_ipo_by_hand() -> None:
    # tau 1/4: the gap is to be 2. At 2 nothing is lost, at 5 nine, at -1 nine; a margin of 1/4
    # in logits is a nat: at 3 nothing is lost.
    for gap, expected in ((2.0, 0.0), (5.0, 9.0), (-1.0, 9.0)):
        assert _pair(gap, "ipo", beta=0.25) == pytest.approx(expected, abs=1e-12)
    margin = torch.tensor([0.25], dtype=F64)
    assert _pair(3.0, "ipo", beta=0.25, margin=margin) == pytest.approx(0.0, abs=1e-12)


def test_robust_by_hand() -> None:
    # Logit log 3: -log sigmoid is log(4/3), of the other order log 4. At a rate of .2:
    # (.8 log(4/3) - .2 log 4) / .6.
    expected = (0.8 * math.log(4 / 3) - 0.2 * math.log(4)) / 0.6
    found = _pair(math.log(3), "robust", beta=1.0, label_smoothing=0.2)
    assert found == pytest.approx(expected, abs=1e-12)
    # A label of .8 is as wrong as the rate says: what comes out is the loss of label 1.
    label = torch.tensor([0.8], dtype=F64)
    found = _pair(math.log(3), "robust", beta=1.0, label_smoothing=0.2, label_chosen=label)
    assert found == pytest.approx(math.log(4 / 3), abs=1e-12)


@pytest.mark.parametrize("loss", LOSSES)
def test_equals_loop(loss: PairLoss) -> None:
    beta, rate = 0.3, 0.2
    logprobs = -torch.rand(4, 12, dtype=F64) * 9
    label, weight = torch.rand(2, 12, dtype=F64)
    margin = torch.randn(12, dtype=F64)
    total = 0.0
    for row in range(12):
        c, r, rc, rr = logprobs[:, row].tolist()
        logit = beta * ((c - rc) - (r - rr)) - margin[row].item()
        p, w = label[row].item(), weight[row].item()
        order, other = SLOW[loss](logit, beta), SLOW[loss](-logit, beta)
        seen = p * order + (1 - p) * other
        turned = (1 - p) * order + p * other
        if loss == "robust":
            total += w * ((1 - rate) * seen - rate * turned) / (1 - 2 * rate)
        else:
            total += w * ((1 - rate) * seen + rate * turned)
    found, _ = dpo_loss(
        *logprobs,
        beta=beta,
        loss=loss,
        label_smoothing=rate,
        label_chosen=label,
        margin=margin,
        weight=weight,
    )
    assert found.item() == pytest.approx(total / weight.sum().item(), abs=1e-11)


def test_robust_losses_of_wrong_labels_have_the_mean_of_right_ones() -> None:
    """Over labels of which a share of .3 is turned round, whatever the pair [rDPO]."""
    values = [-torch.rand(9, dtype=F64) for _ in range(4)]
    turned = [values[1], values[0], values[3], values[2]]
    robust = {"beta": 0.7, "loss": "robust", "label_smoothing": 0.3}
    right = dpo_loss(*values, beta=0.7)[0]
    seen, wrong = (dpo_loss(*of, **robust)[0] for of in (values, turned))  # type: ignore[arg-type]
    torch.testing.assert_close(0.7 * seen + 0.3 * wrong, right, rtol=0, atol=1e-12)


@pytest.mark.parametrize("share", [0.5, 0.8, 1.0, 1.3])
def test_ipo_is_least_where_its_paper_has_the_optimum(share: float) -> None:
    """At a log-ratio gap of (p - 1/2) / tau [IPO eq. 10], of labels above 1 as well."""
    gap = torch.zeros(1, dtype=F64, requires_grad=True)
    zero, label = torch.zeros(1, dtype=F64), torch.tensor([share], dtype=F64)
    for _ in range(2):  # Newton's method is exact on a parabola
        loss, _ = dpo_loss(gap, zero, zero, zero, beta=0.25, loss="ipo", label_chosen=label)
        (slope,) = torch.autograd.grad(loss, gap)
        gap = (gap - slope / 2).detach().requires_grad_()
    assert gap.item() == pytest.approx((share - 0.5) / 0.25, abs=1e-12)


@pytest.mark.parametrize("loss", LOSSES)
def test_swapping_pair_label_and_margin_changes_nothing(loss: PairLoss) -> None:
    chosen, rejected, ref_chosen, ref_rejected = -torch.rand(4, 7, dtype=F64)
    label, margin = torch.rand(7, dtype=F64), torch.randn(7, dtype=F64)
    one_way, metrics = dpo_loss(
        chosen,
        rejected,
        ref_chosen,
        ref_rejected,
        beta=0.4,
        loss=loss,
        label_smoothing=0.1,
        label_chosen=label,
        margin=margin,
    )
    other_way, swapped = dpo_loss(
        rejected,
        chosen,
        ref_rejected,
        ref_chosen,
        beta=0.4,
        loss=loss,
        label_smoothing=0.1,
        label_chosen=1 - label,
        margin=-margin,
    )
    torch.testing.assert_close(one_way, other_way, rtol=0, atol=1e-12)
    assert metrics["score_chosen"].item() == swapped["score_rejected"].item()


@pytest.mark.parametrize("loss", LOSSES)
def test_a_prompt_s_constant_in_the_reference_changes_nothing(loss: PairLoss) -> None:
    values = -torch.rand(4, 5, dtype=F64)
    shift, rate = torch.randn(5, dtype=F64), 0.1
    plain, _ = dpo_loss(*values, beta=0.9, loss=loss, label_smoothing=rate)
    shifted, _ = dpo_loss(
        *values[:2], values[2] + shift, values[3] + shift, beta=0.9, loss=loss, label_smoothing=rate
    )
    torch.testing.assert_close(plain, shifted, rtol=0, atol=1e-12)


@pytest.mark.parametrize("loss", LOSSES)
def test_gradient(loss: PairLoss) -> None:
    inputs = [(-torch.rand(4, dtype=F64)).requires_grad_() for _ in range(4)]
    label = torch.rand(4, dtype=F64)

    def total(*values: torch.Tensor) -> torch.Tensor:
        return dpo_loss(*values, beta=0.3, loss=loss, label_smoothing=0.1, label_chosen=label)[0]

    assert torch.autograd.gradcheck(total, inputs)


def test_wrong_shapes_and_rates_are_refused() -> None:
    x = torch.zeros(3)
    for name in ("label_chosen", "margin", "weight"):
        with pytest.raises(ShapeError, match=rf"{name} \(2,\)"):
            dpo_loss(x, x, x, x, beta=1.0, loss="ipo", **{name: torch.zeros(2)})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"must be in \[0, 0\.5\), found up to 0\.5"):
        dpo_loss(x, x, x, x, beta=1.0, loss="robust", label_smoothing=0.5)
