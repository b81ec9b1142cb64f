"""meta_rm: the difference objective."""

import math

import pytest
import torch
from torch import Tensor

from trimtab.models.functional.checks import ShapeError
from trimtab.models.functional.meta_rm import difference_objective
from trimtab.models.functional.reward import ranking_loss

F64 = torch.float64


def test_objective_by_hand() -> None:
    # k = 3, scores 0, log 3, 0: differences log 3, 0, log 3: sigmoids 3/4, 1/2, 3/4, sum 2.
    # J = 2/9 * 2 = 4/9; floor (3 - 1) / 6 = 1/3; above it 1/9.
    scores = torch.tensor([[0.0, math.log(3), 0.0]], dtype=F64)
    objective, metrics = difference_objective(scores)
    assert objective.item() == pytest.approx(4 / 9, abs=1e-12)
    assert metrics["meta_objective"].item() == pytest.approx(4 / 9, abs=1e-12)
    assert metrics["meta_objective_above_floor"].item() == pytest.approx(1 / 9, abs=1e-12)


def test_objective_equals_loop() -> None:
    scores = torch.randn(4, 5, dtype=F64)
    total = 0.0
    for row in scores.tolist():
        for i in range(5):
            for j in range(i + 1, 5):
                total += 1 / (1 + math.exp(-abs(row[i] - row[j])))
    assert difference_objective(scores)[0].item() == pytest.approx(2 / 25 * total / 4, abs=1e-12)


def test_equal_scores_give_the_floor_and_no_gradient() -> None:
    scores = torch.full((2, 5), 1.7, dtype=F64, requires_grad=True)
    objective, metrics = difference_objective(scores)
    objective.backward()
    assert objective.item() == pytest.approx(0.4, abs=1e-12)  # (5 - 1) / 10
    assert metrics["meta_objective_above_floor"].item() == pytest.approx(0.0, abs=1e-12)
    assert scores.grad is not None
    assert scores.grad.eq(0).all()


def test_objective_invariants() -> None:
    scores = torch.randn(3, 4, dtype=F64)
    objective, _ = difference_objective(scores)
    for same in (scores + 9, -scores, scores[:, torch.randperm(4)], scores.repeat(2, 1)):
        torch.testing.assert_close(difference_objective(same)[0], objective, rtol=0, atol=1e-12)
    assert difference_objective(2 * scores)[0] > objective
    # Far apart every sigmoid is 1: twice the floor.
    apart = torch.arange(4.0, dtype=F64)[None] * 1e4
    assert difference_objective(apart)[0].item() == pytest.approx(3 / 4, abs=1e-12)


def test_ascent_parts_the_scores() -> None:
    scores = torch.tensor([[0.0, 0.1]], dtype=F64, requires_grad=True)
    difference_objective(scores)[0].backward()
    assert scores.grad is not None
    assert scores.grad[0, 0] < 0 < scores.grad[0, 1]


def test_objective_gradient() -> None:
    # Distinct scores, away from the kink of |.| at 0.
    scores = torch.tensor([[0.0, 1.0, -2.0], [0.5, 3.0, 4.0]], dtype=F64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda s: difference_objective(s)[0], scores)
    assert not any(value.requires_grad for value in difference_objective(scores)[1].values())


def test_wrong_shapes_are_refused() -> None:
    with pytest.raises(ShapeError, match=r"k >= 2, found \(3, 1\)"):
        difference_objective(torch.zeros(3, 1))
    with pytest.raises(ShapeError, match="2 axes"):
        difference_objective(torch.zeros(3))


def _updated(eta: float, pairs: Tensor, label: Tensor, answers: Tensor) -> tuple[Tensor, Tensor]:
    """theta and theta' of a linear scorer after the published update has converged [RM alg. 1]."""
    theta = torch.zeros(answers.shape[-1], dtype=F64)
    raised = theta
    for step in range(1000):
        start = theta.clone().requires_grad_()
        objective, _ = difference_objective(answers @ start)
        raised = (theta + eta * torch.autograd.grad(objective, start)[0]).requires_grad_()
        loss, _ = ranking_loss(pairs @ raised, torch.zeros(len(pairs)).double(), label_chosen=label)
        rate = 2 / (1 + step / 50)
        theta = theta - rate * torch.autograd.grad(loss, raised)[0]
    return theta, raised.detach()


@pytest.mark.slow
def test_the_published_update_narrows_what_the_ascent_spreads() -> None:
    """At its fixed point grad L(theta') = 0: theta' is the plain optimum, theta lies before it.

    To a few thousandths: J has a kink where two answers change their order, and steps cross it.
    """
    generator = torch.Generator().manual_seed(0)
    pairs = torch.randn(40, 3, generator=generator, dtype=F64)
    label = torch.sigmoid(pairs @ torch.tensor([1.0, -0.5, 0.2], dtype=F64))
    answers = torch.randn(10, 4, 3, generator=generator, dtype=F64)
    plain, _ = _updated(0.0, pairs, label, answers)

    def spread(theta: Tensor) -> float:
        scores = answers @ theta
        return float((scores[:, :, None] - scores[:, None, :]).abs().mean())

    spreads = [spread(plain)]
    turned, _ = _updated(-1.0, pairs, label, answers)
    assert spread(turned) > 1.02 * spreads[0]
    for eta in (0.5, 1.0, 2.0):
        theta, raised = _updated(eta, pairs, label, answers)
        torch.testing.assert_close(raised, plain, rtol=0, atol=3e-3)
        spreads.append(spread(theta))
    assert spreads == sorted(spreads, reverse=True)
    assert spreads[-1] < 0.95 * spreads[0]
