"""meta_rm: the difference objective."""

import math

import pytest
import torch

from trimtab.models.functional.checks import ShapeError
from trimtab.models.functional.meta_rm import difference_objective

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
