"""Kernels of liger-kernel and TRL on a CPU, by Triton's interpreter, against what they replace.

    TRITON_INTERPRET=1 python -m tests.models.nets.liger_interpreted

Raises AssertionError where they differ; prints what was compared. A process of its own, as Triton
decides at its import whether it interprets.
"""

from __future__ import annotations

import copy
import os
import sys
import weakref
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from tests.models.nets.test_attention import MODELS, ROWS, SIZES
from trimtab.models.config.training import LoraConfig, TrainConfig
from trimtab.models.nets.fused import (
    fuse_with_liger,
    fuse_with_own,
    rms_norm,
    swiglu,
)
from trimtab.models.nets.logits import one_launch, token_logprobs
from trimtab.models.nets.packing import pack
from trimtab.models.nets.precision import set_product_precision
from trimtab.models.nets.training import prepare_training
from trimtab.models.nets.trunk import hidden_states

KINDS = ("qwen3", "phi3", "gemma2")


def teach_interpreter() -> None:
    """Let it do as a compiled kernel: floats are float32, bfloat16 is not multiplied as integers,
    and libdevice's functions are there."""
    import liger_kernel.transformers  # noqa: F401
    import numpy as np
    import triton.language as tl
    from triton.language.extra import libdevice
    from triton.runtime import interpreter

    convert = interpreter._implicit_cvt

    def with_floats(argument: Any) -> Any:
        if not isinstance(argument, float):
            return convert(argument)
        handle = interpreter.TensorHandle(np.array([argument], np.float32), tl.float32)
        return tl.tensor(handle, tl.float32)

    builder = interpreter.InterpreterBuilder
    compute = builder.binary_op

    def in_float32(self: Any, left: Any, right: Any, op: Any) -> Any:
        if left.dtype != tl.bfloat16 or right.dtype != tl.bfloat16:
            return compute(self, left, right, op)
        wide = (self.create_fp_ext(each, tl.float32) for each in (left, right))
        return self.create_fp_trunc(compute(self, *wide, op), tl.bfloat16)

    builder.binary_op = in_float32
    interpreter._implicit_cvt = with_floats
    functions = {"rsqrt": lambda x: tl.math.rsqrt(x), "tanh": lambda x: 2 * tl.sigmoid(2 * x) - 1}
    for name, module in list(sys.modules.items()):
        for function, own in functions.items():
            if name.startswith("liger_kernel") and (
                getattr(module, function, None) is getattr(libdevice, function)
            ):
                setattr(module, function, own)


def model_of(kind: str, std: float = 0.3) -> PreTrainedModel:
    torch.manual_seed(0)
    name, changes = MODELS[kind]
    config = AutoConfig.for_model(name, **{**SIZES, **changes})
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config).train()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=std)
    return model


def passed(model: PreTrainedModel) -> dict[str, Tensor]:
    """The states of packed rows, and the gradient of each parameter that has one."""
    model.zero_grad()
    states = hidden_states(model, pack(ROWS))
    (states * torch.arange(1.0, 1.0 + states.numel()).view_as(states).sin()).sum().backward()
    found = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return {"states": states.detach(), **found}


def differences(found: dict[str, Tensor], expected: dict[str, Tensor]) -> dict[str, float]:
    """Of each tensor the largest difference, over the largest number."""
    assert found.keys() == expected.keys() and len(found) > 10
    return {
        name: float((found[name] - value).abs().max() / value.abs().max())
        for name, value in expected.items()
    }


def check_functions() -> None:
    """Against `fused`: a mean of 40 squares and six more operations, each off by 2^-24 at most.

    A gradient of the norm is two sums of 40 products more, and of its weight one over 30 rows.
    """
    from liger_kernel.transformers.functional import liger_rms_norm, liger_swiglu

    generator = torch.Generator().manual_seed(0)
    hidden, gate, up = (torch.randn(30, 40, generator=generator).requires_grad_() for _ in range(3))
    gradient = torch.rand(30, 40, generator=generator)
    weight = torch.rand(40, generator=generator).requires_grad_()
    for ours, liger, inputs in (
        (rms_norm(hidden, weight, 1e-5), liger_rms_norm(hidden, weight, 1e-5), (hidden, weight)),
        (swiglu(gate, up), liger_swiglu(gate, up), (gate, up)),
    ):
        torch.testing.assert_close(liger, ours, rtol=50 * 2**-24, atol=50 * 2**-24)
        # liger-kernel writes over the gradient that it is given.
        pairs = (torch.autograd.grad(each, inputs, gradient.clone()) for each in (ours, liger))
        for expected, found in zip(*pairs, strict=True):
            bound = 2 * (50 + 80 + 30) * 2**-24 * float(expected.abs().max())
            torch.testing.assert_close(found, expected, rtol=0, atol=bound)


def check_logprobs() -> None:
    """Logits up to 50 are held to 2^-19, and a sum of 3,000 exponentials, in blocks, to less."""
    generator = torch.Generator().manual_seed(0)
    logits = (12 * torch.randn(7, 3000, generator=generator)).clamp(-50, 50)
    logits[3, 5] = 50.0  # almost certain
    tokens = torch.tensor([0, 2999, 7, 5, 5, 1024, 1])
    weights = torch.randn(2, 7, generator=generator)
    kernel = one_launch()
    assert kernel is not None
    for temperature in (1.0, 0.7):
        found = []
        for logprobs_of in (kernel, token_logprobs):
            given = logits.clone().requires_grad_()
            values = torch.stack(logprobs_of(given * 1, tokens, temperature))
            (values * weights).sum().backward()
            found.append((values.detach(), given.grad))
        for one, other in zip(*found, strict=True):
            bound = 8 * 2**-19 / temperature**2
            torch.testing.assert_close(one, other, rtol=0, atol=bound)
    print("logprobs: forward and backward")


def check_rotation() -> None:
    """However many rows there are, the kernel gets one, for whose number it is compiled."""
    from liger_kernel.ops import rope
    from transformers.models.llama import modeling_llama

    own, rows = modeling_llama.apply_rotary_pos_emb, []
    fuse_with_liger(model_of("llama"))
    rotated = modeling_llama.apply_rotary_pos_emb
    forward = rope.rope_forward

    def noted(query: Tensor, *others: Any) -> Any:
        rows.append(len(query))
        return forward(query, *others)

    rope.rope_forward = noted
    generator = torch.Generator().manual_seed(0)
    for num_rows, length in ((1, 5), (3, 1), (3, 5)):
        # As a projection's output is: heads behind tokens.
        query, key = (
            torch.randn(num_rows, length, heads, 8, generator=generator) for heads in (4, 2)
        )
        angles = torch.rand(num_rows, length, 4, generator=generator).repeat(1, 1, 2)
        found = []
        for rotate in (own, rotated):
            given = [each.clone().requires_grad_() for each in (query, key)]
            turned = rotate(*((2 * g).transpose(1, 2) for g in given), angles.cos(), angles.sin())
            sum((each * each.sin()).sum() for each in turned).backward()
            found.append([*turned, *(g.grad for g in given)])
        for mine, theirs in zip(*found, strict=True):
            torch.testing.assert_close(theirs, mine, rtol=1e-5, atol=1e-5)
    rope.rope_forward, modeling_llama.apply_rotary_pos_emb = forward, own
    print("rotation:", *sorted(set(rows)), "row")


def check_training() -> None:
    """With adapters, recomputed layers and bfloat16 products: as far from float32 as without."""
    config = TrainConfig(lora=LoraConfig(rank=2), gradient_checkpointing=True)
    models = [model_of("llama", std=0.1) for _ in range(3)]
    for model, fuse in zip(models, (fuse_with_own, fuse_with_own, fuse_with_liger), strict=True):
        fuse(model)
        prepare_training(model, config, 0)
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.data.copy_(
                    torch.linspace(-0.1, 0.1, parameter.numel()).view_as(parameter)
                )
    wide = passed(models[0])
    set_product_precision("bfloat16")
    own, liger = (differences(passed(model), wide) for model in models[1:])
    set_product_precision("float32")
    print(f"bfloat16: own {max(own.values()):.1e}, liger-kernel's {max(liger.values()):.1e}")
    assert max(own.values()) > 2**-10 and max(liger.values()) < 2 * max(own.values())


def check_models() -> None:
    """Layers that are float32 throughout, in two layers: some 100 operations follow one another."""
    for kind in KINDS:
        model = model_of(kind)
        expected = passed(model)  # before its rotary embeddings change, too
        liger = copy.deepcopy(model)
        fuse_with_liger(liger)
        kinds = {type(part).forward.__module__.split(".")[0] for part in liger.modules()}
        assert "liger_kernel" in kinds, kinds
        assert not any("forward" in vars(part) for part in liger.modules())
        later = {type(part).__name__ for part in model_of(kind).modules()}
        assert not any(name.startswith("Liger") for name in later), later
        found = differences(passed(liger), expected)
        assert max(found.values()) < 100 * 2**-24, (kind, found)
        print(f"{kind}: {max(found.values()):.1e} of the largest")
        gone = weakref.ref(next(part for part in liger.modules() if "MLP" in type(part).__name__))
        del liger
        assert gone() is None


if __name__ == "__main__":
    assert os.environ["TRITON_INTERPRET"] == "1"
    torch.set_num_threads(1)
    teach_interpreter()
    check_functions()
    check_logprobs()
    check_rotation()
    check_training()
    check_models()
