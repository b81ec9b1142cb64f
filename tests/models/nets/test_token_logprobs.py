"""The quick way to a token's log-probability equals the obvious one, and so does its gradient."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor

from trimtab.models.functional.masked import entropy_of, logprobs_of
from trimtab.models.nets import logits as module
from trimtab.models.nets.logits import token_logprobs


@pytest.fixture(params=[1, 100, 2**17], ids=lambda numbers: f"{numbers} at once")
def _numbers_at_once(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "NUMBERS_AT_ONCE", request.param)


def _logits(dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    logits = 10 * torch.randn(7, 33, generator=generator, dtype=torch.float64)
    logits[2] += 1e4  # a constant changes nothing
    logits[3, 5] = 200.0  # all but certain
    return logits.to(dtype)


TOKENS = torch.tensor([0, 32, 7, 5, 5, 31, 1])


@pytest.mark.usefixtures("_numbers_at_once")
@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [
        (torch.float64, {}),
        (torch.float32, {"rtol": 1e-5, "atol": 1e-5}),
        # A gradient is rounded to bfloat16 twice at most: a unit in the last place, 2^-7 of it.
        (torch.bfloat16, {"rtol": 2**-7, "atol": 1e-5}),
    ],
)
@pytest.mark.parametrize(
    "of", [slice(1), slice(1, 2), slice(2)], ids=["logprobs", "entropies", "both"]
)
def test_values_and_gradients_are_those_of_the_obvious_way(
    dtype: torch.dtype, tolerance: dict[str, float], temperature: float, of: slice
) -> None:
    weights = (torch.linspace(-2, 3, 7), torch.linspace(1, -2, 7))

    def loss(*values: Tensor) -> Tensor:
        parts = [(value * weight).sum() for value, weight in zip(values, weights, strict=True)]
        return torch.stack(parts[of]).sum()

    ours = _logits(dtype).requires_grad_()
    logprobs, entropies = token_logprobs(ours * 1, TOKENS, temperature)
    loss(logprobs, entropies).backward()
    theirs = _logits(dtype).double().requires_grad_()
    expected = logprobs_of(theirs / temperature, TOKENS)
    expected_entropies = entropy_of(theirs / temperature)
    loss(expected, expected_entropies).backward()
    close = partial(torch.testing.assert_close, check_dtype=False)
    if dtype == torch.bfloat16:
        assert logprobs.dtype == entropies.dtype == torch.float32
    close(logprobs, expected, **tolerance)
    close(entropies, expected_entropies, **tolerance)
    assert theirs.grad is not None
    torch.testing.assert_close(ours.grad, theirs.grad.to(dtype), **tolerance)


def test_a_second_gradient_is_refused_as_the_first_took_the_place_of_what_it_needs() -> None:
    logprobs, _ = token_logprobs(_logits(torch.float64).requires_grad_() * 1, TOKENS, 1.0)
    logprobs.sum().backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        logprobs.sum().backward()
