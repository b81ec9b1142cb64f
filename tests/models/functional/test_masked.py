"""masked: means and whitening over counted positions."""

import math

import pytest
import torch
from torch import Tensor

from trimtab.models.functional.checks import ShapeError
from trimtab.models.functional.masked import masked_mean, masked_whiten, weighted_mean

F64 = torch.float64


def random_case(shape: tuple[int, ...] = (3, 5)) -> tuple[Tensor, Tensor]:
    """Random float64 values and a mask with both kinds of position in it."""
    x = torch.randn(shape, dtype=F64)
    mask = torch.rand(shape) < 0.6
    mask[..., 0], mask[..., 1] = True, False
    return x, mask


# masked_mean


def test_masked_mean_by_hand() -> None:
    # Counted: 1, 3 and 8. (1 + 3 + 8) / 3 = 4. By row: (1 + 3) / 2 = 2 and 8 / 1 = 8.
    x = torch.tensor([[1.0, 99.0, 3.0], [8.0, -7.0, 99.0]])
    mask = torch.tensor([[True, False, True], [True, False, False]])
    assert masked_mean(x, mask).item() == 4.0
    assert masked_mean(x, mask, dim=1).tolist() == [2.0, 8.0]
    # By column: (1 + 8) / 2 = 4.5, nothing counted = 0, 3.
    assert masked_mean(x, mask, dim=0).tolist() == [4.5, 0.0, 3.0]


def test_masked_mean_equals_loop() -> None:
    x, mask = random_case()
    kept = [x[i, j].item() for i in range(3) for j in range(5) if mask[i, j]]
    assert masked_mean(x, mask).item() == pytest.approx(sum(kept) / len(kept), abs=1e-12)


def test_masked_mean_mask_equals_drop_even_for_nan() -> None:
    x, mask = random_case()
    dirty = torch.where(mask, x, torch.nan).requires_grad_()
    masked_mean(dirty, mask).backward()
    torch.testing.assert_close(masked_mean(dirty, mask), x[mask].mean(), rtol=1e-12, atol=1e-12)
    assert dirty.grad is not None
    assert dirty.grad[~mask].eq(0).all()
    assert dirty.grad[mask].isfinite().all()


def test_masked_mean_of_nothing_is_zero_without_gradient() -> None:
    x = torch.randn(2, 3, requires_grad=True)
    mean = masked_mean(x, torch.zeros(2, 3, dtype=torch.bool))
    mean.backward()
    assert mean.item() == 0.0
    assert x.grad is not None
    assert x.grad.eq(0).all()


def test_masked_mean_gradient() -> None:
    x, mask = random_case()
    assert torch.autograd.gradcheck(lambda v: masked_mean(v, mask), x.requires_grad_())
    assert torch.autograd.gradcheck(lambda v: masked_mean(v, mask, dim=1), x)


# masked_whiten


def test_masked_whiten_by_hand() -> None:
    # Counted 1 and 5: mean 3, population variance ((-2)^2 + 2^2) / 2 = 4, std 2.
    # (1 - 3) / 2 = -1 and (5 - 3) / 2 = 1; keeping the mean adds 3.
    x = torch.tensor([1.0, 40.0, 5.0], dtype=F64)
    mask = torch.tensor([True, False, True])
    expected = torch.tensor([-1.0, 0.0, 1.0], dtype=F64)
    torch.testing.assert_close(masked_whiten(x, mask), expected, rtol=0, atol=1e-8)
    expected = torch.tensor([2.0, 0.0, 4.0], dtype=F64)
    torch.testing.assert_close(
        masked_whiten(x, mask, shift_mean=False), expected, rtol=0, atol=1e-8
    )


def test_masked_whiten_equals_loop() -> None:
    x, mask = random_case()
    kept = [x[i, j].item() for i in range(3) for j in range(5) if mask[i, j]]
    mean = sum(kept) / len(kept)
    var = sum((v - mean) ** 2 for v in kept) / len(kept)
    slow = torch.zeros(3, 5, dtype=F64)
    for i in range(3):
        for j in range(5):
            if mask[i, j]:
                slow[i, j] = (x[i, j] - mean) / math.sqrt(var + 1e-8)
    torch.testing.assert_close(masked_whiten(x, mask), slow, rtol=1e-12, atol=1e-12)


def test_masked_whiten_invariants() -> None:
    x, mask = random_case((6, 7))
    white = masked_whiten(x, mask)
    assert masked_mean(white, mask).item() == pytest.approx(0.0, abs=1e-12)
    assert masked_mean(white.square(), mask).item() == pytest.approx(1.0, abs=1e-6)
    # Shifting and scaling the input changes nothing.
    torch.testing.assert_close(masked_whiten(3 * x + 2, mask), white, rtol=0, atol=1e-6)
    dirty = torch.where(mask, x, torch.inf).requires_grad_()
    torch.testing.assert_close(masked_whiten(dirty, mask), white, rtol=0, atol=1e-12)
    masked_whiten(dirty, mask).square().sum().backward()
    assert dirty.grad is not None
    assert dirty.grad.isfinite().all()
    constant = torch.full((2, 2), 5.0)
    assert masked_whiten(constant, torch.ones(2, 2, dtype=torch.bool)).eq(0).all()


def test_masked_whiten_gradient() -> None:
    x, mask = random_case()
    assert torch.autograd.gradcheck(lambda v: masked_whiten(v, mask), x.requires_grad_())


# weighted_mean


def test_weighted_mean_by_hand() -> None:
    # (1 * 2 + 3 * 6) / (1 + 3) = 5; unweighted (2 + 6) / 2 = 4.
    x, weight = torch.tensor([2.0, 6.0]), torch.tensor([1.0, 3.0])
    assert weighted_mean(x, weight).item() == 5.0
    assert weighted_mean(x, None).item() == 4.0
    assert weighted_mean(x, torch.zeros(2)).item() == 0.0


def test_weighted_mean_equals_loop_and_ignores_weight_scale() -> None:
    x, weight = torch.randn(8, dtype=F64), torch.rand(8, dtype=F64)
    slow = sum((weight[i] * x[i]).item() for i in range(8)) / sum(weight.tolist())
    assert weighted_mean(x, weight).item() == pytest.approx(slow, abs=1e-12)
    assert weighted_mean(x, 7 * weight).item() == pytest.approx(slow, abs=1e-12)
    weight[3] = 0
    keep = torch.arange(8) != 3
    torch.testing.assert_close(weighted_mean(x, weight), weighted_mean(x[keep], weight[keep]))


def test_weighted_mean_gradient() -> None:
    x = torch.randn(4, dtype=F64, requires_grad=True)
    weight = torch.rand(4, dtype=F64, requires_grad=True)
    assert torch.autograd.gradcheck(weighted_mean, (x, weight))


# errors


def test_wrong_shapes_and_types_are_refused() -> None:
    x = torch.zeros(2, 3)
    with pytest.raises(ShapeError, match=r"shared shape.*\(2, 3\).*\(3,\)"):
        masked_mean(x, torch.ones(3, dtype=torch.bool))
    with pytest.raises(ShapeError, match=r"torch\.bool.*torch\.int64"):
        masked_whiten(x, torch.ones(2, 3, dtype=torch.long))
    with pytest.raises(ShapeError, match="at least one element"):
        masked_mean(torch.zeros(0), torch.zeros(0, dtype=torch.bool))
    with pytest.raises(ShapeError, match="1 axes"):
        weighted_mean(x, None)
    with pytest.raises(ShapeError, match="floating point"):
        weighted_mean(torch.zeros(2), torch.ones(2, dtype=torch.long))
