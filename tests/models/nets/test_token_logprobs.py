"""The quick way to a token's log-probability equals the obvious one, and so does its gradient."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor

from models.functional.masked import entropy_of, logprobs_of
from models.nets import token_logprobs as module
from models.nets.token_logprobs import token_logprobs


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
@pytest.mark.parametrize("learned", [(1.0, 0.0), (0.0, 1.0), (0.3, -2.0)])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [
        (torch.float64, {}),
        (torch.float32, {"rtol": 1e-5, "atol": 1e-5}),
        (torch.bfloat16, {"rtol": 1e-2, "atol": 1e-5}),
    ],
)
def test_values_and_gradients_are_those_of_the_obvious_way(
    dtype: torch.dtype,
    tolerance: dict[str, float],
    temperature: float,
    learned: tuple[float, float],
) -> None:
    """Also where only the log-probabilities, or only the entropies, are learned from."""
    weight = torch.linspace(-2, 3, 7)

    def learn(logprobs: Tensor, entropies: Tensor) -> None:
        terms = zip(learned, (logprobs, entropies), strict=True)
        sum((part * value * weight).sum() for part, value in terms if part).backward()

    ours = _logits(dtype).requires_grad_()
    logprobs, entropies = token_logprobs(ours * 1, TOKENS, temperature)
    learn(logprobs, entropies)
    theirs = _logits(dtype).double().requires_grad_()
    expected = logprobs_of(theirs / temperature, TOKENS)
    learn(expected, entropy_of(theirs / temperature))
    close = partial(torch.testing.assert_close, check_dtype=False)
    if dtype == torch.bfloat16:
        assert logprobs.dtype == entropies.dtype == torch.float32
    close(logprobs, expected, **tolerance)
    close(entropies, entropy_of(theirs / temperature).detach(), **tolerance)
    assert theirs.grad is not None
    torch.testing.assert_close(ours.grad, theirs.grad.to(dtype), **tolerance)


def test_a_second_gradient_is_refused_as_the_first_took_the_place_of_what_it_needs() -> None:
    logprobs, _ = token_logprobs(_logits(torch.float64).requires_grad_() * 1, TOKENS, 1.0)
    logprobs.sum().backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        logprobs.sum().backward()
