"""masked: means, whitening and log-probabilities over counted positions."""

import math

import pytest
import torch
from torch import Tensor

from models.functional.checks import ShapeError
from models.functional.masked import (
    entropy_of,
    logprobs_of,
    masked_mean,
    masked_whiten,
    weighted_mean,
)

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


# logprobs_of


def test_logprobs_by_hand() -> None:
    # Logits log 1, log 2, log 5 are probabilities 1/8, 2/8, 5/8.
    logits = torch.tensor([[1.0, 2.0, 5.0]], dtype=F64).log().expand(3, 3)
    expected = torch.tensor([1 / 8, 2 / 8, 5 / 8], dtype=F64).log()
    got = logprobs_of(logits, torch.tensor([0, 1, 2]))
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-12)


def test_logprobs_equal_loop() -> None:
    logits, labels = torch.randn(2, 3, 5, dtype=F64), torch.randint(5, (2, 3))
    got = logprobs_of(logits, labels)
    for i in range(2):
        for t in range(3):
            row = logits[i, t].tolist()
            slow = row[labels[i, t]] - math.log(sum(math.exp(v) for v in row))
            assert got[i, t].item() == pytest.approx(slow, abs=1e-12)


def test_logprobs_invariants() -> None:
    logits = torch.randn(4, 6, dtype=F64)
    every = torch.stack([logprobs_of(logits, torch.full((4,), v)) for v in range(6)], dim=1)
    torch.testing.assert_close(every.exp().sum(1), torch.ones(4, dtype=F64))
    labels = torch.randint(6, (4,))
    torch.testing.assert_close(logprobs_of(logits + 1000, labels), logprobs_of(logits, labels))
    # Forbidding every token but one makes it certain.
    logits = torch.full((1, 3), -torch.inf)
    logits[0, 1] = 4.0
    assert logprobs_of(logits, torch.tensor([1])).item() == 0.0
    assert logprobs_of(logits, torch.tensor([0])).item() == -math.inf


def test_half_precision_logits_are_raised_to_float32() -> None:
    logits = torch.randn(3, 1000).bfloat16()
    labels = torch.randint(1000, (3,))
    got = logprobs_of(logits, labels)
    assert got.dtype == torch.float32
    exact = logprobs_of(logits.double(), labels).float()
    torch.testing.assert_close(got, exact, rtol=1e-5, atol=1e-5)
    assert entropy_of(logits).dtype == torch.float32


def test_logprobs_gradient() -> None:
    logits = torch.randn(2, 3, 4, dtype=F64, requires_grad=True)
    labels = torch.randint(4, (2, 3))
    assert torch.autograd.gradcheck(lambda v: logprobs_of(v, labels), logits)


# entropy_of


def test_entropy_by_hand() -> None:
    # Probabilities 1/2, 1/4, 1/4: 1/2 log 2 + 2 * 1/4 log 4 = 1.5 log 2.
    logits = torch.tensor([2.0, 1.0, 1.0], dtype=F64).log() + 3
    assert entropy_of(logits).item() == pytest.approx(1.5 * math.log(2), abs=1e-12)


def test_entropy_equals_loop() -> None:
    logits = torch.randn(3, 5, dtype=F64)
    got = entropy_of(logits)
    for i in range(3):
        total = sum(math.exp(v) for v in logits[i].tolist())
        p = [math.exp(v) / total for v in logits[i].tolist()]
        assert got[i].item() == pytest.approx(-sum(q * math.log(q) for q in p), abs=1e-12)


def test_entropy_bounds_and_forbidden_tokens() -> None:
    assert entropy_of(torch.zeros(7)).item() == pytest.approx(math.log(7), abs=1e-6)
    logits = torch.randn(4, 6, dtype=F64)
    forbidden = torch.cat([logits, torch.full((4, 2), -torch.inf, dtype=F64)], dim=1)
    forbidden.requires_grad_()
    torch.testing.assert_close(entropy_of(forbidden), entropy_of(logits))
    entropy_of(forbidden).sum().backward()
    assert forbidden.grad is not None
    assert forbidden.grad.isfinite().all()
    certain = torch.tensor([0.0, -torch.inf, -torch.inf])
    assert entropy_of(certain).item() == 0.0


def test_entropy_gradient() -> None:
    logits = torch.randn(2, 5, dtype=F64, requires_grad=True)
    assert torch.autograd.gradcheck(entropy_of, logits)


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
    with pytest.raises(ShapeError, match="without the last axis"):
        logprobs_of(x, torch.zeros(3, dtype=torch.long))
    with pytest.raises(ShapeError, match=r"torch\.long"):
        logprobs_of(x, torch.zeros(2))
    with pytest.raises(ShapeError, match="logits"):
        entropy_of(torch.tensor(1.0))
