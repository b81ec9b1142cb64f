"""Logits are those of the model's own forward pass; narrow products do not round them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, LlamaForCausalLM, PreTrainedModel

from tests.models.nets.test_attention import SIZES
from trimtab.models.functional.masked import entropy_of, logprobs_of
from trimtab.models.nets import logits as module
from trimtab.models.nets.logits import logits_of, token_logprobs
from trimtab.models.nets.packing import Candidates, pack
from trimtab.models.nets.scoring import response_logprobs
from trimtab.models.nets.trunk import hidden_states


def _model(kind: str, **changes: Any) -> PreTrainedModel:
    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, **{**SIZES, **changes})
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config).eval()
    return model


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("llama", {}),
        ("phi", {"num_key_value_heads": 4}),  # a head with a bias
        ("gemma2", {"final_logit_softcapping": 0.1}),
        ("cohere", {"logit_scale": 0.25}),
        ("granite", {"logits_scaling": 4.0}),
        ("hyperclovax", {"logits_scaling": 4.0}),
    ],
)
def test_logprobs_are_those_of_the_models_own_logits(kind: str, changes: dict[str, Any]) -> None:
    model = _model(kind, **changes)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    prompt, responses = [5, 6, 7], ([8, 9, 1], [10, 1])
    found, _, mask = response_logprobs(model, pack([Candidates(prompt, responses)]), 0.7)
    for response, row, own in zip(responses, found, mask, strict=True):
        logits = model(torch.tensor([prompt + response])).logits[0, len(prompt) - 1 : -1]
        expected = logprobs_of(logits / 0.7, torch.tensor(response))
        torch.testing.assert_close(row[own], expected, rtol=1e-5, atol=1e-5)


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> LlamaForCausalLM:
    """A model whose head multiplies as on a GPU."""
    model = _model("llama", hidden_size=64, vocab_size=500)
    model.get_output_embeddings().__class__ = module.Head
    return model


def _rounded(tensor: Tensor) -> Tensor:
    return tensor.bfloat16().to(tensor.dtype)


def test_a_narrow_products_logits_are_not_rounded(narrow: LlamaForCausalLM) -> None:
    """Of operands that bfloat16 holds only float32's sum is off: k 2^-24 sum |h w| for k terms."""
    head, generator = narrow.get_output_embeddings(), torch.Generator().manual_seed(0)
    hidden = _rounded(torch.randn(9, 64, generator=generator))
    head.weight.data = _rounded(3 * torch.randn(500, 64, generator=generator))
    exact = hidden.double() @ head.weight.double().t()
    bound = 64 * 2**-24 * (hidden.abs().double() @ head.weight.abs().double().t())
    error = (logits_of(narrow, hidden).double() - exact).abs()
    assert (error <= bound).all()
    assert not ((_rounded(exact) - exact).abs() <= bound).all()  # what is refused


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_what_a_narrow_product_does_to_logprobs_is_bounded(
    narrow: LlamaForCausalLM, temperature: float
) -> None:
    """A logit is off by at most d = (2^-7 + 2^-16) max sum |h w| and float32's sum.

    So log softmax by 2 d / T. p changes by at most e^(2 d / T) - 1 of itself, and H by
    sum |dp log p| + 2 d / T.
    """
    head, generator = narrow.get_output_embeddings(), torch.Generator().manual_seed(0)
    hidden = torch.randn(9, 64, generator=generator)
    head.weight.data = torch.randn(500, 64, generator=generator)
    tokens = torch.randint(500, (9,), generator=generator)
    logits = hidden.double() @ head.weight.double().t() / temperature
    spread = (hidden.abs().double() @ head.weight.abs().double().t()).amax(1)
    off = 2 * (2**-7 + 2**-16 + 65 * 2**-24) * spread / temperature
    logprobs, entropies = token_logprobs(logits_of(narrow, hidden), tokens, temperature)
    assert ((logprobs - logprobs_of(logits, tokens)).abs() <= off).all()
    entropy = entropy_of(logits)
    assert ((entropies - entropy).abs() <= off.expm1() * entropy + off).all()


def test_gradients_of_a_narrow_product_are_rounded_operands_products(
    narrow: LlamaForCausalLM,
) -> None:
    """Each is a sum of products of two rounded numbers: off by at most (2^-7 + 2^-16) sum |g x|."""
    head, generator = narrow.get_output_embeddings(), torch.Generator().manual_seed(0)
    hidden = torch.randn(9, 64, generator=generator, requires_grad=True)
    weight = torch.randn(9, 500, generator=generator)
    (logits_of(narrow, hidden) * weight).sum().backward()
    wide, own, of_head = weight.double(), hidden.detach().double(), head.weight.detach().double()
    pairs = ((hidden, wide, of_head), (head.weight, wide.t(), own))
    for of, left, right in pairs:
        assert of.grad is not None and of.grad.dtype == torch.float32
        bound = (2**-7 + 2**-16 + 500 * 2**-24) * (left.abs() @ right.abs())
        error = (of.grad.double() - left @ right).abs()
        assert (error <= bound).all() and error.any()
    head.weight.requires_grad_(False)
    hidden.grad = head.weight.grad = None
    logits_of(narrow, hidden).sum().backward()
    assert hidden.grad is not None and head.weight.grad is None


def test_the_ratio_of_two_passes_is_one(narrow: LlamaForCausalLM) -> None:
    """Alone or with gradient, of all responses or in parts."""
    batch = pack([Candidates([5, 6, 7], ([8, 9, 1], [10, 1])), Candidates([7], ([1], [9, 1]))])
    with torch.no_grad():
        before = response_logprobs(narrow, batch)[0]
    assert torch.equal(response_logprobs(narrow, batch)[0].detach(), before)


def test_a_head_that_decodes_multiplies_as_before(narrow: LlamaForCausalLM) -> None:
    head, hidden = narrow.get_output_embeddings(), torch.randn(3, 64)
    assert torch.equal(head(hidden), torch.nn.functional.linear(hidden, head.weight))
    assert not torch.equal(head(hidden), logits_of(narrow, hidden))


def test_heads_on_a_cpu_stay_wide(narrow_products: None) -> None:
    model = _model("llama")
    hidden = hidden_states(model, pack([Candidates([5, 6], ([8, 1],))]))
    assert torch.equal(logits_of(model, hidden), model.lm_head(hidden))
    assert type(model.lm_head) is torch.nn.Linear
