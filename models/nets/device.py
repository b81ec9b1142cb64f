"""The device of this rank, and tensors of the host on their way to it.

`torch.set_default_device` would run Python before every call of torch, which takes 1.5 to 3 times
as long then. So tensors are made on the host unless they name a device: data, and what is counted
of them, stay there; a model's inputs are built there, and `move_to_device` takes them over in one
copy.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")

_ALIGNMENT = 64  # bytes; kernels read up to 16 at a time
_device = torch.device("cpu")


def current_device() -> torch.device:
    """Where this process's models lie and compute: the CPU, or what `set_device` named."""
    return _device


def set_device(device: torch.device) -> None:
    """Set `current_device`, before any model is loaded."""
    global _device
    _device = device


def move_to_device(tree: T) -> T:
    """Dataclasses and tuples whose tensors of the host have been copied to `current_device`.

    All of them go in one buffer, which is pinned for CUDA, by one copy that the host does not wait
    for; the result's are views of it. A tensor that lies on the device already is kept as it is. On
    a CPU the argument is the result.
    """
    is_cpu = _device.type == "cpu"
    host = [] if is_cpu else [tensor for tensor in _tensors(tree) if tensor.device.type == "cpu"]
    if not host:
        return tree
    sizes = [-(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT for tensor in host]
    buffer = torch.empty(sum(sizes), dtype=torch.uint8, pin_memory=_device.type == "cuda")
    for part, tensor in zip(buffer.split(sizes), host, strict=True):
        _as(part, tensor).copy_(tensor)
    parts = buffer.to(_device, non_blocking=True).split(sizes)
    moved = {id(tensor): _as(part, tensor) for part, tensor in zip(parts, host, strict=True)}
    copied: T = _replaced(tree, moved)
    return copied


def _as(part: Tensor, like: Tensor) -> Tensor:
    """The first bytes of a part of the buffer, in a tensor's data type and shape."""
    return part[: like.nbytes].view(like.dtype).view(like.shape)


def _tensors(tree: Any) -> Iterator[Tensor]:
    if isinstance(tree, Tensor):
        yield tree
    for part in _parts(tree):
        yield from _tensors(part)


def _replaced(tree: Any, moved: dict[int, Tensor]) -> Any:
    """The tree with other tensors in place of those that `moved` names."""
    if isinstance(tree, Tensor):
        return moved.get(id(tree), tree)
    parts = [_replaced(part, moved) for part in _parts(tree)]
    if not parts:
        return tree
    if isinstance(tree, tuple) and not hasattr(tree, "_fields"):
        return tuple(parts)
    return type(tree)(*parts)


def _parts(tree: Any) -> Sequence[Any]:
    """What a tuple or a dataclass holds; nothing where that is numbers, or for anything else."""
    if isinstance(tree, tuple):
        return () if isinstance(next(iter(tree), None), int) else tree
    if is_dataclass(tree) and not isinstance(tree, type):
        return [getattr(tree, field.name) for field in fields(tree)]
    return ()
