"""Layers with gradients by hand equal transformers' own, in numbers and in gradients."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from tests.models.nets.test_precision import SIZES
from trimtab.models.nets.fused import rms_norm, swiglu, with_fused_layers
from trimtab.models.nets.packing import Candidates, PackedBatch, pack
from trimtab.models.nets.trunk import hidden_states


@pytest.fixture
def model() -> PreTrainedModel:
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**SIZES)).train()
    for name, value in model.named_parameters():
        if "norm" in name:
            value.data.uniform_(0.5, 2.0)
    return model


@pytest.fixture
def batch() -> PackedBatch:
    return pack([Candidates([1, 2, 3], ([4, 5], [6, 7, 8])), Candidates([9], ([8, 9],))])


def _pass(model: PreTrainedModel, batch: PackedBatch) -> tuple[Tensor, dict[str, Tensor]]:
    model.zero_grad()
    hidden = hidden_states(model, batch)
    (hidden * torch.arange(1.0, 1.0 + hidden.numel()).view_as(hidden).sin()).sum().backward()
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return hidden.detach(), gradients


def test_a_pass_and_all_gradients_are_those_of_transformers(
    model: PreTrainedModel, batch: PackedBatch
) -> None:
    lean = with_fused_layers(copy.deepcopy(model))
    (hidden, gradients), (same, others) = _pass(model, batch), _pass(lean, batch)
    torch.testing.assert_close(same, hidden, rtol=1e-5, atol=1e-6)
    assert gradients.keys() == others.keys() and len(gradients) > 20
    for name, gradient in gradients.items():
        error = (others[name] - gradient).abs().max() / gradient.abs().max()
        assert error < 2e-6, (name, error)


def test_gradients_are_those_of_finite_differences() -> None:
    drawn = torch.Generator().manual_seed(1)
    hidden = torch.randn(2, 3, 8, dtype=torch.float64, generator=drawn).requires_grad_()
    weight = torch.rand(8, dtype=torch.float64, generator=drawn).requires_grad_()
    assert torch.autograd.gradcheck(rms_norm, (hidden, weight, 1e-3))
    up = torch.randn(2, 3, 8, dtype=torch.float64, generator=drawn).requires_grad_()
    assert torch.autograd.gradcheck(swiglu, (hidden, up))


def test_a_frozen_weight_has_no_gradient_and_a_copy_norms_with_its_own(
    model: PreTrainedModel, batch: PackedBatch
) -> None:
    lean = with_fused_layers(model)
    lean.base_model.norm.weight.requires_grad_(False)
    _, gradients = _pass(lean, batch)
    assert "model.norm.weight" not in gradients and "model.layers.0.mlp.up_proj.weight" in gradients
    other = copy.deepcopy(lean)
    other.base_model.norm.weight.data.zero_()
    assert not hidden_states(other, batch).any() and hidden_states(lean, batch).any()


def test_narrow_gated_products_and_their_gradients_round_as_the_models_own() -> None:
    drawn = torch.Generator().manual_seed(1)
    pair = tuple(torch.randn(9, 8, generator=drawn).bfloat16().requires_grad_() for _ in range(2))
    products = F.silu(pair[0]) * pair[1], swiglu(*pair)
    assert torch.equal(*products)
    both = (torch.autograd.grad(product.sin().sum(), pair) for product in products)
    assert all(torch.equal(*gradients) for gradients in zip(*both, strict=True))


def test_another_activation_is_left_to_the_model(batch: PackedBatch) -> None:
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**SIZES, hidden_act="gelu"))
    expected = hidden_states(model, batch)
    torch.testing.assert_close(hidden_states(with_fused_layers(model), batch), expected)


def test_numbers_that_are_not_float32_are_left_to_the_model(model: PreTrainedModel) -> None:
    narrow = torch.randn(2, 32).bfloat16()
    norm = model.base_model.norm.bfloat16()
    expected = norm(narrow)
    with_fused_layers(model)
    assert torch.equal(norm(narrow), expected) and expected.dtype == torch.bfloat16
