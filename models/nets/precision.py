"""In which precision packed trunks multiply: float32, or bfloat16 on weights kept in float32.

With bfloat16 the products of the layers, and what they hand to one another inside a layer, are
narrow; on a GPU attention is, too, which takes a CPU three times as long then. The residual stream,
norms, heads, log-probabilities, losses, weights, their gradient and the optimiser's state stay in
float32.
"""

from __future__ import annotations

import warnings
from contextlib import AbstractContextManager, nullcontext

import torch

from models.config_parts import Precision

_FAST = ("amx_bf16", "avx512_bf16")  # instructions without which a CPU imitates such products
_is_narrow = False


def multiply_in(precision: Precision) -> None:
    """From now on in this process; like the number of threads it is set once, before any pass."""
    global _is_narrow
    _is_narrow = precision == "bfloat16"
    if _is_narrow and _device() == "cpu" and not any(map(_has, _FAST)):
        warnings.warn(
            f"precision=bfloat16: this CPU has none of {', '.join(_FAST)}, and takes many times as "
            "long as with float32",
            stacklevel=2,
        )


def is_narrow() -> bool:
    """Whether products are narrower than weights."""
    return _is_narrow


def trunk_precision() -> AbstractContextManager[object]:
    """Inside, a trunk passes as was said.

    Narrow weights are made for each pass: kept, they would outlive an optimiser's step.
    """
    if not _is_narrow:
        return nullcontext()
    return torch.autocast(_device(), torch.bfloat16, cache_enabled=False)


def own_precision() -> AbstractContextManager[object]:
    """Inside, products are in the precision of what they are of, though a trunk's are narrow."""
    return torch.autocast(_device(), enabled=False) if _is_narrow else nullcontext()


def attention_dtype(weights: torch.dtype) -> torch.dtype:
    """What a trunk of such weights attends in."""
    if not _is_narrow:
        return weights
    return torch.float32 if _device() == "cpu" else torch.bfloat16


def _device() -> str:
    return torch.get_default_device().type


def _has(instruction: str) -> bool:
    return bool(torch.cpu.get_capabilities().get(instruction, False))
