"""contrastive: SimCSE and SwAV on two views."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from trimtab.models.functional.checks import ShapeError
from trimtab.models.functional.contrastive import (
    preference_differences,
    prototype_scores,
    simcse_loss,
    sinkhorn_assignments,
    swav_loss,
)

F64 = torch.float64
SWAV: dict[str, Any] = {"temperature": 0.1, "epsilon": 0.05, "num_iterations": 3}


def _cosine(one: list[float], other: list[float]) -> float:
    lengths = math.hypot(*one) * math.hypot(*other)
    return sum(a * b for a, b in zip(one, other, strict=True)) / lengths


def slow_simcse(first: list[list[float]], second: list[list[float]], temperature: float) -> float:
    """Eq. 9 as a loop over samples and their negatives."""
    total = 0.0
    for i, view in enumerate(first):
        weights = [math.exp(_cosine(view, other) / temperature) for other in second]
        total -= math.log(weights[i] / sum(weights))
    return total / len(first)


def slow_assignments(
    scores: list[list[float]], epsilon: float, num_iterations: int
) -> list[list[float]]:
    """Sinkhorn-Knopp on the exponentials themselves."""
    rows = [[math.exp(score / epsilon) for score in row] for row in scores]
    for _ in range(num_iterations):
        sums = [sum(column) for column in zip(*rows, strict=True)]
        rows = [[value / total for value, total in zip(row, sums, strict=True)] for row in rows]
        rows = [[value / sum(row) for value in row] for row in rows]
    return rows


def slow_swav(first: list[list[float]], second: list[list[float]], temperature: float) -> float:
    """Eq. 7 and 8 as a loop over samples and prototypes."""
    total = 0.0
    for scores, others in ((first, second), (second, first)):
        assigned = slow_assignments(others, 0.05, 3)
        for row, q in zip(scores, assigned, strict=True):
            normaliser = sum(math.exp(score / temperature) for score in row)
            for score, share in zip(row, q, strict=True):
                total -= share * math.log(math.exp(score / temperature) / normaliser)
    return total / len(first)


def test_simcse_by_hand() -> None:
    # Views (1, 0), (0, 2) against (3, 0), (0, 1): cosines 1 with the own view, 0 with the other.
    # At tau 1 both losses are -log(e / (e + 1)); every own view is the nearest.
    first = torch.tensor([[1.0, 0.0], [0.0, 2.0]], dtype=F64)
    second = torch.tensor([[3.0, 0.0], [0.0, 1.0]], dtype=F64)
    loss, metrics = simcse_loss(first, second, 1.0)
    assert loss.item() == pytest.approx(math.log(1 + math.exp(-1)), abs=1e-12)
    assert metrics["nearest_view_share"].item() == 1.0
    # With the views exchanged the own ones are the far ones: -log(1 / (1 + e)).
    loss, metrics = simcse_loss(first, second.flip(0), 1.0)
    assert loss.item() == pytest.approx(math.log(1 + math.e), abs=1e-12)
    assert metrics["nearest_view_share"].item() == 0.0


def test_simcse_gradient_by_hand() -> None:
    """Two samples on the unit circle, where everything can be written down.

    s_1 = (1, 0), s_2 = (0, 1), t_1 = (1, 0), t_2 = (0, 1), tau 1. Of l_1 the softmax over (t_1,
    t_2) is p = e / (e + 1) and 1 - p, so d l_1 / d cos(s_1, t_1) = p - 1, d l_1 / d cos(s_1, t_2) =
    1 - p. A cosine's derivative by s of length 1 is t less its part along s: t_1 - t_1 = 0 and
    t_2 - 0 = (0, 1). So d l_1 / d s_1 = (1 - p) (0, 1), and half of that in the mean over two.
    By t_1: l_1 gives (p - 1) * 0, l_2 gives (1 - p) * (s_2 less its part along t_1) = (1 - p)
    (0, 1), halved.
    """
    first = torch.eye(2, dtype=F64, requires_grad=True)
    second = torch.eye(2, dtype=F64, requires_grad=True)
    simcse_loss(first, second, 1.0)[0].backward()
    push = 0.5 * (1 - math.e / (math.e + 1))
    expected = torch.tensor([[0.0, push], [push, 0.0]], dtype=F64)
    torch.testing.assert_close(first.grad, expected)
    torch.testing.assert_close(second.grad, expected)


def test_assignments_by_hand() -> None:
    # exp(scores / epsilon) = [[1, 3], [1, 1]]. Columns by their sums 2 and 4: [[1/2, 3/4],
    # [1/2, 1/4]]; rows by theirs 5/4 and 3/4: [[2/5, 3/5], [2/3, 1/3]].
    scores = torch.tensor([[0.0, math.log(3) / 2], [0.0, 0.0]], dtype=F64)
    found = sinkhorn_assignments(scores, 0.5, 1)
    expected = torch.tensor([[2 / 5, 3 / 5], [2 / 3, 1 / 3]], dtype=F64)
    torch.testing.assert_close(found, expected)


def test_swav_by_hand() -> None:
    # One sample: every column's only entry becomes 1, so q is 1/2 and 1/2 whatever the scores.
    # p of the first view (tau 1) is 3/4 and 1/4, of the second 1/2 and 1/2:
    # -(log 3/4 + log 1/4) / 2 + log 2.
    first = torch.tensor([[math.log(3), 0.0]], dtype=F64)
    second = torch.zeros(1, 2, dtype=F64)
    loss, metrics = swav_loss(first, second, temperature=1.0, epsilon=0.5, num_iterations=1)
    expected = -(math.log(3 / 4) + math.log(1 / 4)) / 2 + math.log(2)
    assert loss.item() == pytest.approx(expected, abs=1e-12)
    # Mean p 5/8 and 3/8: exp of its entropy.
    entropy = -(5 / 8 * math.log(5 / 8) + 3 / 8 * math.log(3 / 8))
    assert metrics["prototypes_used"].item() == pytest.approx(math.exp(entropy), abs=1e-12)


def test_swav_gradient_by_hand() -> None:
    # As above: d/d scores of -sum_k q_k log p_k is p - q (tau 1), and q has no gradient.
    first = torch.tensor([[math.log(3), 0.0]], dtype=F64, requires_grad=True)
    second = torch.zeros(1, 2, dtype=F64, requires_grad=True)
    swav_loss(first, second, temperature=1.0, epsilon=0.5, num_iterations=1)[0].backward()
    torch.testing.assert_close(first.grad, torch.tensor([[1 / 4, -1 / 4]], dtype=F64))
    torch.testing.assert_close(second.grad, torch.zeros(1, 2, dtype=F64))


def test_differences_by_hand() -> None:
    chosen, rejected = (
        torch.tensor([[1.0, 5.0], [2.0, 2.0]]),
        torch.tensor([[0.0, 1.0], [3.0, 2.0]]),
    )
    found = preference_differences(chosen, rejected)
    assert found.tolist() == [[1.0, 4.0], [-1.0, 0.0], [-1.0, -4.0], [1.0, 0.0]]


@pytest.mark.parametrize("temperature", [0.05, 0.7])
def test_equals_loop(temperature: float) -> None:
    first, second = torch.randn(2, 7, 5, dtype=F64)
    loss, _ = simcse_loss(first, second, temperature)
    expected = slow_simcse(first.tolist(), second.tolist(), temperature)
    assert loss.item() == pytest.approx(expected, abs=1e-10)
    scores = torch.rand(2, 7, 4, dtype=F64) * 2 - 1
    found = sinkhorn_assignments(scores[0], 0.05, 3)
    assert found.tolist() == pytest.approx(
        [pytest.approx(row, abs=1e-10) for row in slow_assignments(scores[0].tolist(), 0.05, 3)]
    )
    loss, _ = swav_loss(*scores, **SWAV | {"temperature": temperature})
    expected = slow_swav(*scores.tolist(), temperature)
    assert loss.item() == pytest.approx(expected, abs=1e-9)
    prototypes = torch.randn(4, 5, dtype=F64)
    cosines = [[_cosine(f, p) for p in prototypes.tolist()] for f in first.tolist()]
    torch.testing.assert_close(
        prototype_scores(first, prototypes), torch.tensor(cosines, dtype=F64)
    )


def test_order_and_length_of_features_do_not_matter() -> None:
    first, second = torch.randn(2, 6, 5, dtype=F64)
    prototypes = torch.randn(4, 5, dtype=F64)
    shuffle, lengths = torch.randperm(6), torch.rand(6, 1, dtype=F64) + 0.1

    def losses(one: torch.Tensor, other: torch.Tensor, centres: torch.Tensor) -> list[float]:
        scores = prototype_scores(one, centres), prototype_scores(other, centres)
        return [simcse_loss(one, other, 0.1)[0].item(), swav_loss(*scores, **SWAV)[0].item()]

    expected = pytest.approx(losses(first, second, prototypes), abs=1e-12)
    assert losses(first[shuffle], second[shuffle], prototypes) == expected
    assert losses(first * lengths, second, prototypes) == expected
    assert losses(first, second, prototypes.flip(0) * 7) == expected


def test_views_alike_and_apart() -> None:
    # Views that are equal, with all samples orthogonal, leave -log(1 / (1 + (N - 1) e^(-1/tau))).
    views = torch.eye(5, dtype=F64)
    loss, _ = simcse_loss(views, views, 0.05)
    assert loss.item() == pytest.approx(math.log(1 + 4 * math.exp(-20)), rel=1e-9)
    # One sample has no negatives, and nothing to learn.
    assert simcse_loss(views[:1], views[:1], 0.05)[0].item() == 0.0
    # Samples that are all alike cannot be told apart: log N. Nor can prototypes be shared out other
    # than evenly: of K = 3 each view's p and q are 1/3, and the loss twice log 3.
    same = torch.ones(5, 2, dtype=F64)
    assert simcse_loss(same, same, 0.05)[0].item() == pytest.approx(math.log(5), abs=1e-12)
    scores = prototype_scores(same, torch.ones(3, 2, dtype=F64))
    loss, metrics = swav_loss(scores, scores, **SWAV)
    assert loss.item() == pytest.approx(2 * math.log(3), abs=1e-12)
    assert metrics["prototypes_used"].item() == pytest.approx(3.0, abs=1e-12)


def test_assignments_use_all_prototypes_and_carry_no_gradient() -> None:
    scores = torch.rand(12, 4, dtype=F64, requires_grad=True)
    found = sinkhorn_assignments(scores, 0.05, 200)
    assert not found.requires_grad
    torch.testing.assert_close(found.sum(1), torch.ones(12, dtype=F64))
    torch.testing.assert_close(found.sum(0), torch.full((4,), 3.0, dtype=F64), rtol=0, atol=1e-6)
    # What exponentials would overflow on.
    assert sinkhorn_assignments(torch.rand(5, 3) * 2000, 0.5, 3).isfinite().all()


def test_metrics_are_detached() -> None:
    first, second = torch.randn(2, 4, 3, requires_grad=True)
    found = [simcse_loss(first, second, 0.1), swav_loss(first, second, **SWAV)]
    assert all(loss.requires_grad for loss, _ in found)
    assert not any(value.requires_grad for _, metrics in found for value in metrics.values())


@pytest.mark.parametrize(
    "loss",
    [
        lambda a, b, _: simcse_loss(a, b, 0.3)[0],
        lambda a, b, c: simcse_loss(
            preference_differences(a, c[:4]), preference_differences(b, c[:4]), 0.3
        )[0],
        lambda a, _, c: prototype_scores(a, c),
    ],
)
def test_gradient(loss: Callable[..., torch.Tensor]) -> None:
    views = [torch.randn(4, 3, dtype=F64, requires_grad=True) for _ in range(2)]
    prototypes = torch.randn(5, 3, dtype=F64, requires_grad=True)
    assert torch.autograd.gradcheck(loss, [*views, prototypes])


def test_swav_gradient_is_that_of_its_predictions_with_assignments_held() -> None:
    """A difference quotient would move the assignments too, which the gradient must not."""
    first, second = torch.randn(2, 4, 3, dtype=F64)
    q_first, q_second = (sinkhorn_assignments(scores, 0.05, 3) for scores in (first, second))
    one, two = first.clone().requires_grad_(), second.clone().requires_grad_()
    swav_loss(one, two, **SWAV)[0].backward()
    # d/d scores of -sum_k q_k log softmax(scores / tau)_k is (p - q) / tau, over N samples.
    torch.testing.assert_close(one.grad, ((first / 0.1).softmax(1) - q_second) / 0.1 / 4)
    torch.testing.assert_close(two.grad, ((second / 0.1).softmax(1) - q_first) / 0.1 / 4)


def test_wrong_shapes_and_options_are_refused() -> None:
    x = torch.zeros(3, 2)
    with pytest.raises(ShapeError, match=r"second \(2, 2\)"):
        simcse_loss(x, x[:2], 0.1)
    with pytest.raises(ShapeError, match=r"rejected \(3, 1\)"):
        preference_differences(x, x[:, :1])
    with pytest.raises(ShapeError, match=r"prototypes \(4, 3\)"):
        prototype_scores(x, torch.zeros(4, 3))
    with pytest.raises(ShapeError, match="2 axes"):
        sinkhorn_assignments(x[0], 0.05, 3)
    with pytest.raises(ShapeError, match="floating point"):
        swav_loss(x.long(), x.long(), **SWAV)
    with pytest.raises(ValueError, match=r"temperature must be above 0 and finite, found 0"):
        simcse_loss(x, x, 0)
    with pytest.raises(ValueError, match=r"epsilon must be above 0 and finite, found -1"):
        swav_loss(x, x, **SWAV | {"epsilon": -1})
    with pytest.raises(ValueError, match=r"num_iterations must be above 0 and finite, found 0"):
        sinkhorn_assignments(x, 0.05, 0)
