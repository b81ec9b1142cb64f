"""Logits of hidden states, as the model's own forward pass takes them from its trunk's output.

With narrow products on a GPU the head multiplies bfloat16 operands and adds in float32: logits are
float32 and are not rounded. bfloat16 has eight bits, so that a rounded operand is off by a factor
of at most 1 + 2^-8, and a logit by at most (2^-7 + 2^-16) sum_k |h_k w_k|; in every pass alike, so
that PPO's ratio is 1 until a weight changes. Logits in bfloat16, as the fused kernels of TRL and
liger-kernel keep them, would be rounded once more, each by up to 2^-8 of itself: by .06 at a logit
of 30, which the ratio of two passes has twice.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from transformers import PreTrainedModel

from trimtab.models.nets.precision import has_narrow_products

_HAS_OUT_DTYPE = "dtype" in torch.ops.aten.mm.overloads()  # from torch 2.8 on


def logits_of(model: PreTrainedModel, hidden: Tensor) -> Tensor:
    """Logits (n, V), nats, float32 at least, of last hidden states (n, H)."""
    head = model.get_output_embeddings()
    if has_narrow_products() and hidden.device.type != "cpu" and type(head) is nn.Linear:
        head.__class__ = Head
    # The module itself is called: under ZeRO 3 its weight is there only then.
    logits: Tensor = head(hidden, is_narrow=True) if isinstance(head, Head) else head(hidden)
    scale, cap = _scale(model), getattr(model.config, "final_logit_softcapping", None)
    if scale != 1:
        logits = logits * scale
    return logits if cap is None else cap * torch.tanh(logits / cap)


def _scale(model: PreTrainedModel) -> float:
    """By what a model multiplies its head's output: Cohere, HyperCLOVA X, Granite."""
    config = model.config
    if config.model_type.startswith("cohere"):
        return float(config.logit_scale)
    scaling = float(getattr(config, "logits_scaling", 1.0))
    return scaling if config.model_type == "hyperclovax" else 1 / scaling


class Head(nn.Linear):
    """A language-model head that multiplies narrow where it is asked to; decoding does not ask."""

    def forward(self, hidden: Tensor, is_narrow: bool = False) -> Tensor:
        """hidden (n, H) -> logits (n, V)."""
        if not is_narrow:
            return super().forward(hidden)
        logits: Tensor = NarrowProduct.apply(hidden, self.weight)
        return logits if self.bias is None else logits + self.bias


class NarrowProduct(torch.autograd.Function):
    """hidden (n, H), weight (V, H) -> hidden weight^T (n, V), float32; and so both gradients."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor) -> Tensor:
        """Both in bfloat16."""
        operands = hidden.bfloat16(), weight.bfloat16()
        ctx.save_for_backward(*operands)
        ctx.dtypes = hidden.dtype, weight.dtype
        return _product(operands[0], operands[1].t())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """Of both, in the data types that they had."""
        hidden, weight = ctx.saved_tensors
        gradient = gradients[0].bfloat16()
        of_hidden, of_weight = None, None
        if ctx.needs_input_grad[0]:
            of_hidden = _product(gradient, weight).to(ctx.dtypes[0])
        if ctx.needs_input_grad[1]:
            of_weight = _product(gradient.t(), hidden).to(ctx.dtypes[1])
        return of_hidden, of_weight


def _product(left: Tensor, right: Tensor) -> Tensor:
    """left (n, k) right (k, m) in bfloat16 -> (n, m), added up and kept in float32."""
    # Before Ampere it is refused.
    if left.is_cuda and _HAS_OUT_DTYPE and torch.cuda.get_device_capability(left.device) >= (8, 0):
        return torch.mm(left, right, out_dtype=torch.float32)
    return left.float() @ right.float()  # also TF32 holds these operands as they are
