"""masked: log-probabilities and entropies of tokens."""

import math

import pytest
import torch

from trimtab.models.functional.checks import ShapeError
from trimtab.models.functional.masked import entropy_of, logprobs_of

F64 = torch.float64

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
    with pytest.raises(ShapeError, match="without the last axis"):
        logprobs_of(x, torch.zeros(3, dtype=torch.long))
    with pytest.raises(ShapeError, match=r"torch\.long"):
        logprobs_of(x, torch.zeros(2))
    with pytest.raises(ShapeError, match="logits"):
        entropy_of(torch.tensor(1.0))
