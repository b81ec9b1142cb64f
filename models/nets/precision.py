"""Mixed precision of packed trunks: float32 throughout, or float32 weights and bfloat16 products.

With bfloat16 the linear layers of attention and MLP multiply in it, from the norm's output on.
Attention itself does so on a GPU only: a CPU would take three times as long. The residual stream,
norms, heads of scorers, log-probabilities, losses, weights, gradients and the optimiser's state
stay float32. On a GPU other products of float32 matrices are then TF32 (ten bits of mantissa).
The language-model head has rules of its own (`trimtab.models.nets.logits`).

On a GPU the linear layers of frozen models are then stored in bfloat16 (`convert_to_bfloat16`), but
no embeddings, norms or heads. Scores and log-probabilities are to the bit those of float32 weights
under bfloat16 products, so that a policy starts at a divergence of 0 from its reference.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any
from weakref import WeakSet

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trimtab.models.config.training import Precision
from trimtab.models.nets.device import current_device

_FAST = ("amx_bf16", "avx512_bf16")  # instructions without which a CPU imitates such products
_is_narrow = False
_casting: WeakSet[nn.Module] = WeakSet()


def set_product_precision(precision: Precision) -> None:
    """Set the data type of products in this process, once, before any forward pass.

    `auto` is bfloat16 on a CUDA GPU that multiplies it faster than float32: from Ampere on.
    """
    global _is_narrow
    is_auto = precision == "auto"
    _is_narrow = _has_fast_bfloat16() if is_auto else precision == "bfloat16"
    if _device() == "cuda":  # heads and what else stays in float32 then multiplies as TF32
        torch.set_float32_matmul_precision("high" if _is_narrow else "highest")
    if _is_narrow and _device() == "cpu" and not any(map(_has, _FAST)):
        warnings.warn(
            f"precision=bfloat16: this CPU has none of {', '.join(_FAST)}, and takes many times as "
            "long as with float32",
            stacklevel=2,
        )


def has_narrow_products() -> bool:
    """Whether products are narrower than weights."""
    return _is_narrow


def keeps_frozen_in_bfloat16() -> bool:
    """Whether frozen weights are stored in bfloat16: on a GPU with bfloat16 products."""
    return _is_narrow and _device() != "cpu"


def convert_to_bfloat16(*modules: nn.Module) -> None:
    """Convert every `nn.Linear` in these frozen modules; nothing on a CPU or in float32."""
    if not keeps_frozen_in_bfloat16():
        return
    for module in (part for parent in modules for part in parent.modules()):
        if type(module) is nn.Linear:
            module.__class__ = NarrowLinear
            module.weight.data = module.weight.data.to(torch.bfloat16)


@contextmanager
def narrow_copies(*modules: nn.Module) -> Iterator[None]:
    """A context in which the linear layers of these modules use bfloat16 copies of their weights.

    For passes without gradient: autocast would read and cast all float32 weights in every pass.
    """
    converts = keeps_frozen_in_bfloat16()
    parts = (part for module in modules for part in module.modules()) if converts else ()
    kept = [
        (part, part.weight.data)
        for part in parts
        if type(part) is nn.Linear and part.weight.dtype == torch.float32
    ]
    for part, weight in kept:
        part.__class__, part.weight.data = NarrowLinear, weight.to(torch.bfloat16)
    try:
        yield
    finally:
        for part, weight in kept:
            part.__class__, part.weight.data = nn.Linear, weight


class NarrowLinear(nn.Linear):
    """A linear map whose weight is stored in bfloat16; what it hands on is as of a float32 one.

    wide: (out, in) float32, in the host's memory: what is saved in place of `weight`, if anything.
    """

    wide: Tensor | None = None

    def forward(self, hidden: Tensor) -> Tensor:
        """hidden (..., in) -> (..., out), bfloat16 in a trunk's pass, else of its own data type."""
        dtype = self.weight.dtype
        bias = None if self.bias is None else self.bias.to(dtype)
        output = F.linear(hidden.to(dtype), self.weight, bias)
        return output if torch.is_autocast_enabled(hidden.device.type) else output.to(hidden.dtype)

    @torch.no_grad()
    def add(self, change: Tensor) -> None:
        """Add a float32 matrix to the weight: what is saved is their float32 sum."""
        wide = self.weight.float() + change
        self.wide, self.weight.data = wide.cpu(), wide.to(self.weight.dtype)

    def _save_to_state_dict(
        self, destination: dict[str, Any], prefix: str, keep_vars: bool
    ) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if self.wide is not None:
            destination[f"{prefix}weight"] = self.wide


def trunk_precision(trunk: nn.Module) -> AbstractContextManager[object]:
    """A context in which the trunk computes its products as was set.

    Narrow weights are made for each pass: kept, they would outlive an optimiser's step.
    """
    if not _is_narrow:
        return nullcontext()
    for layers in trunk.children():
        if isinstance(layers, nn.ModuleList):
            for layer in layers:
                _cast_inputs_once(layer)
    return torch.autocast(_device(), torch.bfloat16, cache_enabled=False)


def _cast_inputs_once(layer: nn.Module) -> None:
    """Cast the input of attention and MLP once; else autocast keeps a copy for each linear layer.

    For good, as layers are also run again where their activations are recomputed.
    """
    for part in layer.children():
        if part not in _casting and any(isinstance(child, nn.Linear) for child in part.modules()):
            part.register_forward_pre_hook(_with_narrow_input, with_kwargs=True)
            _casting.add(part)


def _with_narrow_input(
    _: nn.Module, positional: tuple[Any, ...], named: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A part's arguments, in which hidden states come first or by name."""
    device = _device()
    if not torch.is_autocast_enabled(device):  # outside of a trunk's pass: sampling
        return positional, named
    dtype = torch.get_autocast_dtype(device)
    if positional:
        return (positional[0].to(dtype), *positional[1:]), named
    if "hidden_states" in named:
        named = {**named, "hidden_states": named["hidden_states"].to(dtype)}
    return positional, named


def own_precision() -> AbstractContextManager[object]:
    """A context in which products keep their operands' data type, though a trunk's are narrow."""
    return torch.autocast(_device(), enabled=False) if _is_narrow else nullcontext()


def attention_dtype(weights: torch.dtype) -> torch.dtype:
    """The data type of attention, given that of the trunk's weights."""
    if not _is_narrow:
        return weights
    return torch.float32 if _device() == "cpu" else torch.bfloat16


def _has_fast_bfloat16() -> bool:
    return _device() == "cuda" and torch.cuda.get_device_capability() >= (8, 0)


def _device() -> str:
    return current_device().type


def _has(instruction: str) -> bool:
    if not hasattr(torch.cpu, "get_capabilities"):  # before torch 2.11 nobody can tell
        return True
    return bool(torch.cpu.get_capabilities().get(instruction, False))
