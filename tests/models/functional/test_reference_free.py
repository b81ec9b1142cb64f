"""SimPO and ORPO: by hand, by a loop, invariants, and the gradient."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from trimtab.models.functional.checks import ShapeError
from trimtab.models.functional.reference_free import log_odds, orpo_loss, simpo_loss

F64 = torch.float64


def softplus(x: float) -> float:
    """-log sigmoid(-x)."""
    return math.log(1 + math.exp(x))


def _one(*values: float) -> list[torch.Tensor]:
    return [torch.tensor([value], dtype=F64) for value in values]


def test_simpo_by_hand() -> None:
    # beta 2, means -1 and -2: rewards -2 and -4; less gamma 1/2 the logit is 3/2.
    loss, metrics = simpo_loss(*_one(-1.0, -2.0), beta=2.0, gamma=0.5)
    assert loss.item() == pytest.approx(softplus(-1.5), abs=1e-12)
    assert (metrics["score_chosen"].item(), metrics["score_rejected"].item()) == (-2.0, -4.0)
    # The other order would have to be gamma ahead as well: its logit is -2 - 1/2.
    (label,) = _one(0.75)
    soft, _ = simpo_loss(*_one(-1.0, -2.0), beta=2.0, gamma=0.5, label_chosen=label)
    assert soft.item() == pytest.approx(0.75 * softplus(-1.5) + 0.25 * softplus(2.5), abs=1e-12)


def test_orpo_by_hand() -> None:
    # Probabilities 3/4 and 1/2: odds 3 and 1, so that the ratio loses log(4/3).
    loss, metrics = orpo_loss(*_one(math.log(0.75), math.log(0.5)), beta=0.1)
    expected = -math.log(0.75) + 0.1 * math.log(4 / 3)
    assert loss.item() == pytest.approx(expected, abs=1e-12)
    assert metrics["nll_loss"].item() == pytest.approx(-math.log(0.75), abs=1e-12)
    assert metrics["log_odds_chosen"].item() == pytest.approx(math.log(3), abs=1e-12)
    assert metrics["log_odds_ratio"].item() == pytest.approx(math.log(0.75), abs=1e-12)
    assert metrics["score_chosen"].item() == pytest.approx(0.1 * math.log(0.75), abs=1e-12)


def test_log_odds_are_those_of_the_probability_at_both_ends() -> None:
    # Of exp(-100) the odds are the probability itself; of 1 - 1e-9 they are 1e9 - 1.
    found = log_odds(torch.tensor([-100.0, math.log(0.5), math.log1p(-1e-9)], dtype=F64))
    expected = torch.tensor([-100.0, 0.0, math.log(1e9 - 1)], dtype=F64)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
    certain = torch.zeros(1, requires_grad=True)
    odds = log_odds(certain)
    odds.backward()
    assert bool(odds.isfinite().all()) and bool(certain.grad.isfinite().all())  # type: ignore[union-attr]


def _treatments() -> dict[str, torch.Tensor]:
    label, weight = torch.rand(2, 9, dtype=F64)
    return {"label_chosen": label, "margin": torch.randn(9, dtype=F64), "weight": weight}


def test_simpo_equals_loop() -> None:
    chosen, rejected = -torch.rand(2, 9, dtype=F64) * 4
    treated, beta, gamma = _treatments(), 2.5, 0.8
    total = 0.0
    for c, r, p, m, w in zip(
        *(x.tolist() for x in (chosen, rejected, *treated.values())), strict=True
    ):
        gap = beta * c - beta * r - m
        total += w * (p * softplus(gamma - gap) + (1 - p) * softplus(gamma + gap))
    loss, _ = simpo_loss(chosen, rejected, beta=beta, gamma=gamma, **treated)
    assert loss.item() == pytest.approx(total / treated["weight"].sum().item(), abs=1e-12)


def test_orpo_equals_loop() -> None:
    chosen, rejected = -torch.rand(2, 9, dtype=F64) * 4 - 1e-3
    treated, beta = _treatments(), 0.3
    total = 0.0
    for c, r, p, m, w in zip(
        *(x.tolist() for x in (chosen, rejected, *treated.values())), strict=True
    ):
        odds = [math.exp(x) / (1 - math.exp(x)) for x in (c, r)]
        gap = math.log(odds[0] / odds[1]) - m
        total += w * p * (-c + beta * softplus(-gap))
        total += w * (1 - p) * (-r + beta * softplus(gap))
    loss, _ = orpo_loss(chosen, rejected, beta=beta, **treated)
    assert loss.item() == pytest.approx(total / treated["weight"].sum().item(), abs=1e-11)


LOSSES = [(simpo_loss, {"beta": 2.0, "gamma": 0.5}), (orpo_loss, {"beta": 0.2})]


@pytest.mark.parametrize(("function", "settings"), LOSSES)
def test_swapping_pair_label_and_margin_changes_nothing(
    function: Any, settings: dict[str, float]
) -> None:
    chosen, rejected = -torch.rand(2, 9, dtype=F64)
    treated = _treatments()
    one_way, _ = function(chosen, rejected, **settings, **treated)
    turned = {
        "label_chosen": 1 - treated["label_chosen"],
        "margin": -treated["margin"],
        "weight": treated["weight"],
    }
    other_way, _ = function(rejected, chosen, **settings, **turned)
    torch.testing.assert_close(one_way, other_way, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("function", "settings"), LOSSES)
def test_labels_above_1_take_wrong_ones_out(function: Any, settings: dict[str, float]) -> None:
    """At rate .25 the label is 1.5: over labels the mean is the loss of the right order."""
    first, second = -torch.rand(2, 9, dtype=F64)
    label = torch.full((9,), 1.5, dtype=F64)
    seen, turned = (
        function(*pair, **settings, label_chosen=label)[0]
        for pair in ((first, second), (second, first))
    )
    right, _ = function(first, second, **settings)
    torch.testing.assert_close(0.75 * seen + 0.25 * turned, right, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("function", "settings"), LOSSES)
def test_gradient(function: Any, settings: dict[str, float]) -> None:
    inputs = [(-torch.rand(5, dtype=F64) - 0.1).requires_grad_() for _ in range(2)]
    label = torch.rand(5, dtype=F64)

    def loss(*values: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = function(*values, **settings, label_chosen=label)[0]
        return result

    assert torch.autograd.gradcheck(loss, inputs)


@pytest.mark.parametrize(("function", "settings"), LOSSES)
def test_wrong_shapes_are_refused(function: Any, settings: dict[str, float]) -> None:
    x, short = torch.full((3,), -1.0), torch.zeros(2)
    with pytest.raises(ShapeError, match=r"\(2,\)"):
        function(x, short, **settings)
    for name in ("label_chosen", "margin", "weight"):
        with pytest.raises(ShapeError, match=r"\(2,\)"):
            function(x, x, **settings, **{name: short})
