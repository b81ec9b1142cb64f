"""clamped_preference: who wins stays, how surely does not."""

import math

import pytest
import torch

from trimtab.models.functional.verdicts import alignment, clamped_preference

F64 = torch.float64


def _probabilities(count: int) -> torch.Tensor:
    return torch.rand(count, dtype=F64)


def test_bounds_by_hand() -> None:
    preference = torch.tensor([0.0, 0.39, 0.45, 0.6, 0.99], dtype=F64)
    expected = torch.tensor([0.4, 0.4, 0.45, 0.6, 0.6], dtype=F64)
    assert clamped_preference(preference, 0.4, 0.6).equal(expected)


def test_bounds_equal_loop() -> None:
    preference = _probabilities(40)
    found = clamped_preference(preference, 0.3, 0.55)
    for value, got in zip(preference.tolist(), found.tolist(), strict=True):
        assert got == (0.3 if value < 0.3 else 0.55 if value > 0.55 else value)


def test_bounds_invariants() -> None:
    preference = _probabilities(40)
    found = clamped_preference(preference, 0.4, 0.6)
    # Who wins stays; the other response's preference is the rest; twice is once.
    assert alignment(found).equal(alignment(preference))
    torch.testing.assert_close(clamped_preference(1 - preference, 0.4, 0.6), 1 - found)
    assert clamped_preference(found, 0.4, 0.6).equal(found)
    assert clamped_preference(preference, 0, 1).equal(preference)


def test_bounds_gradient_is_none_outside() -> None:
    inside = (0.45 + 0.1 * _probabilities(5)).requires_grad_()
    assert torch.autograd.gradcheck(lambda p: clamped_preference(p, 0.4, 0.6), (inside,))
    outside = torch.tensor([0.1, 0.9], dtype=F64, requires_grad=True)
    clamped_preference(outside, 0.4, 0.6).sum().backward()
    assert outside.grad is not None and not outside.grad.any()


@pytest.mark.parametrize(("low", "high"), [(0.6, 0.4), (-0.1, 0.5), (0.5, 1.1), (math.nan, 0.6)])
def test_bounds_that_are_none(low: float, high: float) -> None:
    with pytest.raises(ValueError, match="0 <= low <= high <= 1"):
        clamped_preference(torch.full((3,), 0.5), low, high)
