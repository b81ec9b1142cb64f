"""Layers with gradients by hand equal transformers' own, in numbers and in gradients."""

from __future__ import annotations

import copy
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from tests.models.nets.test_precision import SIZES
from trimtab.models.gpu_check.speed import compile_layers
from trimtab.models.nets import fused
from trimtab.models.nets.fused import (
    compiles_kernels,
    fuse_layers,
    rms_norm,
    swiglu,
    use_exact_rotary_angles,
)
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
    lean = copy.deepcopy(model)
    fuse_layers(lean)
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
    fuse_layers(model)
    model.base_model.norm.weight.requires_grad_(False)
    _, gradients = _pass(model, batch)
    assert "model.norm.weight" not in gradients and "model.layers.0.mlp.up_proj.weight" in gradients
    other = copy.deepcopy(model)
    other.base_model.norm.weight.data.zero_()
    assert not hidden_states(other, batch).any() and hidden_states(model, batch).any()


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
    fuse_layers(model)
    torch.testing.assert_close(hidden_states(model, batch), expected)


def test_numbers_that_are_not_float32_are_left_to_the_model(model: PreTrainedModel) -> None:
    narrow = torch.randn(2, 32).bfloat16()
    norm = model.base_model.norm.bfloat16()
    expected = norm(narrow)
    fuse_layers(model)
    assert torch.equal(norm(narrow), expected) and expected.dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("device", "is_installed", "has_compiler", "expected"),
    [
        ("cuda", True, True, "liger"),
        ("cuda", True, False, "own"),
        ("cuda", False, True, "own"),
        ("cpu", True, True, "own"),
        ("meta", True, True, "own"),
    ],
)
def test_the_kernels_of_liger_are_for_cuda(
    monkeypatch: pytest.MonkeyPatch,
    device: str,
    is_installed: bool,
    has_compiler: bool,
    expected: str,
) -> None:
    model = LlamaForCausalLM(LlamaConfig(**SIZES))
    taken: list[str] = []
    for name in ("liger", "own"):
        monkeypatch.setattr(fused, f"fuse_with_{name}", lambda _, name=name: taken.append(name))
    monkeypatch.setattr(fused, "is_liger_kernel_available", lambda: is_installed)
    monkeypatch.setattr(fused, "has_triton", lambda: True)
    monkeypatch.setenv("CC", sys.executable if has_compiler else "no-compiler")
    monkeypatch.setattr(LlamaForCausalLM, "device", torch.device(device))
    fuse_layers(model)
    assert taken == [expected]


def test_nothing_is_compiled_without_pythons_headers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(fused, "has_triton", lambda: True)
    monkeypatch.setenv("CC", sys.executable)
    assert compiles_kernels(torch.device("cuda"))
    monkeypatch.setattr("sysconfig.get_paths", lambda scheme: {"include": str(tmp_path)})
    assert not compiles_kernels(torch.device("cuda"))


def test_angles_are_exact_where_other_products_are_tf32(
    monkeypatch: pytest.MonkeyPatch, model: PreTrainedModel, batch: PackedBatch
) -> None:
    expected, _ = _pass(model, batch)
    found, forward = [], LlamaRotaryEmbedding.forward

    def noted(self: LlamaRotaryEmbedding, *positional: Tensor, **named: Tensor) -> object:
        found.append(torch.get_float32_matmul_precision())
        return forward(self, *positional, **named)

    monkeypatch.setattr(LlamaRotaryEmbedding, "forward", noted)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        for _ in range(2):
            use_exact_rotary_angles(model)
        states, _ = _pass(model, batch)
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision(before)
    assert found == ["highest"]
    torch.testing.assert_close(states, expected)


@pytest.mark.slow
def test_liger_kernels_layers_are_the_models_own() -> None:
    """By Triton's interpreter: see the script, which says what is compared and how closely."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.models.nets.liger_interpreted"],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "logprobs: " in done.stdout and "bfloat16: " in done.stdout
    assert "rotation: 1 row" in done.stdout
    assert re.findall(r"^(\w+): \S+ of the largest$", done.stdout, re.MULTILINE) == [
        "qwen3",
        "phi3",
        "gemma2",
    ]
    assert done.stderr.count("layers of liger-kernel in qwen3: LigerRMSNorm, LigerSwiGLUMLP") == 1


@pytest.mark.slow
def test_compiled_layers_are_the_models_own(model: PreTrainedModel, batch: PackedBatch) -> None:
    """Traced, with attention apart, for two numbers of tokens; what is generated is torch's."""
    compiled = copy.deepcopy(model)
    compile_layers(compiled, "aot_eager")
    other = pack([Candidates([1, 2], ([4, 5, 6],))])
    for each in (batch, other):
        (hidden, gradients), (same, others) = _pass(model, each), _pass(compiled, each)
        torch.testing.assert_close(same, hidden, rtol=1e-5, atol=1e-6)
        for name, gradient in gradients.items():
            other_name = name.replace("._orig_mod", "")
            torch.testing.assert_close(others[other_name], gradient, rtol=1e-5, atol=1e-5)
