"""Norms and gated products of Llamas and the like, with gradients by hand: fewer passes, less kept.

RMSNorm [Zhang and Sennrich 2019]: with n = x r, r = 1 / sqrt(mean(x^2) + eps) and y = w n, the
gradient of x is r (w dy - n mean(n w dy)). In transformers' elementary operations autograd keeps n
beside x and passes over both many times. SwiGLU [Shazeer 2020]: silu(gate) up, of which autograd
keeps silu(gate) beside both; here it is computed again.

On CUDA the kernels of liger-kernel [Hsu et al., arXiv 2410.10989] take their place, if it is
installed (extra `liger`), and those of rotary embeddings and other gated products beside them, for
all architectures that it knows.
"""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import MethodType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils._triton import has_triton
from transformers import PreTrainedModel
from transformers.utils import is_liger_kernel_available

# Those of transformers whose passes are the ones above.
_FAMILIES = ("Llama", "Mistral", "Qwen2", "Qwen3")
_NORMS = {f"{family}RMSNorm" for family in _FAMILIES}
_FEED_FORWARDS = {f"{family}MLP" for family in _FAMILIES}
_ROTATION = "apply_rotary_pos_emb"  # of transformers' modules


def fuse_layers(model: PreTrainedModel) -> None:
    """Change the model's norms, gated products and, on CUDA, rotary embeddings in place.

    A layer's class is replaced, not its `forward` attribute: a bound method there would be a
    reference cycle and delay the freeing of weights. Layers that are unknown stay.
    """
    if model.device.type == "cuda":
        use_exact_rotary_angles(model)
    if compiles_kernels(model.device) and is_liger_kernel_available():
        fuse_with_liger(model)
    else:
        fuse_with_own(model)


def compiles_kernels(device: torch.device) -> bool:
    """Whether kernels in Triton run there: on CUDA, where their calls can be compiled.

    That takes a C compiler and Python's headers, which Debian and Ubuntu have in packages apart.
    """
    return device.type == "cuda" and has_triton() and _can_compile()


def _can_compile() -> bool:
    """By the compiler and the folder of headers that Triton takes."""
    compilers = [os.environ["CC"]] if "CC" in os.environ else ["gcc", "clang"]
    scheme = sysconfig.get_default_scheme()
    scheme = "posix_prefix" if scheme == "posix_local" else scheme
    headers = Path(sysconfig.get_paths(scheme=scheme)["include"], "Python.h")
    return any(map(shutil.which, compilers)) and headers.exists()


def use_exact_rotary_angles(model: PreTrainedModel) -> None:
    """Compute rotary angles in float32 even where other products are TF32.

    transformers multiplies frequencies and positions as matrices. In TF32 whole numbers above 2048
    are rounded, and frequencies to 2^-11 of themselves; whether a GPU takes it depends on the rows,
    so that sampling and training would differ (huggingface/transformers#48428).
    """
    for module in model.modules():
        kind: Any = type(module)
        if kind.__name__.endswith("RotaryEmbedding") and kind.forward is not _exact_angles:
            module.__class__ = with_forward(kind, _exact_angles)


def _exact_angles(self: Any, *positional: Any, **named: Any) -> Any:
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        return super(type(self), self).forward(*positional, **named)
    finally:
        torch.set_float32_matmul_precision(precision)


def fuse_with_own(model: PreTrainedModel) -> None:
    """Change the model's norms and gated products in place: their gradient is taken by hand."""
    for module in model.modules():
        kind: Any = type(module)
        if kind.forward in (_norm, _feed_forward):
            continue
        if kind.__name__ in _NORMS:
            module.__class__ = with_forward(kind, _norm)
        elif kind.__name__ in _FEED_FORWARDS and module.config.hidden_act in ("silu", "swish"):
            module.__class__ = with_forward(kind, _feed_forward)


def fuse_with_liger(model: PreTrainedModel) -> None:
    """Change the model's norms, gated products and rotary embeddings in place to liger-kernel's.

    For CUDA. Rotary embeddings change for all models of the architecture in this process.
    """
    from liger_kernel.transformers.rope import liger_rotary_pos_emb
    from transformers.integrations.liger import apply_liger_kernel  # loads transformers' trainer

    architecture = sys.modules[type(model).__module__]
    kinds = {name: kind for name, kind in vars(architecture).items() if isinstance(kind, type)}
    losses = {"cross_entropy": False, "fused_linear_cross_entropy": False}
    apply_liger_kernel(model.base_model, losses)
    vars(architecture).update(kinds)  # models that are made later are as before
    if vars(architecture).get(_ROTATION) is liger_rotary_pos_emb:
        vars(architecture)[_ROTATION] = _rotated
    used = set()
    for module in model.modules():
        forward = vars(module).get("forward")
        if isinstance(forward, MethodType) and forward.__module__.startswith("liger_kernel."):
            for name in ("forward", "extra_repr", "_get_name"):
                vars(module).pop(name, None)
            kind: Any = type(module)
            module.__class__ = with_forward(kind, forward.__func__)
            used.add(forward.__qualname__.partition(".")[0])
    _say(
        f"layers of liger-kernel in {model.config.model_type}: {', '.join(sorted(used)) or 'none'}"
    )
    if not used:
        fuse_with_own(model)


def _rotated(
    query: Tensor, key: Tensor, cosine: Tensor, sine: Tensor, unsqueeze_dim: int = 1
) -> tuple[Tensor, Tensor]:
    """liger-kernel's rotary embedding of queries and keys (B, heads, t, d), as of one row.

    Its kernel is compiled for each number of rows, of which decoding has many.
    """
    from liger_kernel.transformers.rope import liger_rotary_pos_emb

    rows, _, length, _ = query.shape
    if rows > 1 and cosine.ndim == 3 and unsqueeze_dim == 1:
        cosine, sine = (
            part.expand(rows, length, -1).reshape(1, rows * length, -1) for part in (cosine, sine)
        )
        both = (
            states.transpose(1, 2).flatten(0, 1)[None].transpose(1, 2) for states in (query, key)
        )
        rotated_rows = liger_rotary_pos_emb(*both, cosine, sine)
        query, key = (
            states[0].unflatten(1, (rows, length)).transpose(0, 1) for states in rotated_rows
        )
        return query, key
    rotated: tuple[Tensor, Tensor] = liger_rotary_pos_emb(
        query, key, cosine, sine, unsqueeze_dim=unsqueeze_dim
    )
    return rotated


@cache
def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@cache
def with_forward(kind: Any, forward: Callable[..., Any]) -> type[nn.Module]:
    """A subclass with another forward pass."""
    changed: type[nn.Module] = type(kind.__name__, (kind,), {"forward": forward})
    return changed


def rms_norm(hidden: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """hidden (..., H), scaled to a mean square of one and by the weight (H,)."""
    normed: Tensor = _RMSNorm.apply(hidden, weight, epsilon)
    return normed


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) up, all of one shape."""
    product: Tensor = _SwiGLU.apply(gate, up)
    return product


def _norm(self: Any, hidden: Tensor) -> Tensor:
    if hidden.dtype != torch.float32:  # what rounds in between is left to the class
        normed: Tensor = super(type(self), self).forward(hidden)
        return normed
    return rms_norm(hidden, self.weight, self.variance_epsilon)


def _feed_forward(self: Any, hidden: Tensor) -> Tensor:
    output: Tensor = self.down_proj(swiglu(self.gate_proj(hidden), self.up_proj(hidden)))
    return output


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        scale = hidden.square().mean(-1, keepdim=True).add_(epsilon).rsqrt_()
        ctx.save_for_backward(hidden, weight, scale)
        return (hidden * scale).mul_(weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor | None, None]:
        """Gradients of `hidden` and of `weight`, which may be frozen."""
        hidden, weight, scale = ctx.saved_tensors
        (gradient,) = gradients
        normed = hidden * scale
        of_weight = None
        if ctx.needs_input_grad[1]:
            of_weight = (gradient * normed).flatten(0, -2).sum(0)
        of_hidden = gradient * weight
        shared = torch.linalg.vecdot(of_hidden, normed)[..., None].div_(-hidden.shape[-1])
        return of_hidden.addcmul_(normed, shared).mul_(scale), of_weight, None


class _SwiGLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        ctx.save_for_backward(gate, up)
        return F.silu(gate).mul_(up)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        gate, up = ctx.saved_tensors
        (gradient,) = gradients
        of_gate = torch.ops.aten.silu_backward(gradient * up, gate)
        return of_gate, F.silu(gate).mul_(gradient)
