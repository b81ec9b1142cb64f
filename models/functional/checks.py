"""Shape and type checks shared by the formulas; every failure is a `ShapeError`, of a choice a
ValueError.

The checks read shapes and dtypes only, never values, so they cost no device synchronisation.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Literal, ParamSpec, TypeVar, get_args, get_origin, get_type_hints

import torch
from torch import Tensor

P = ParamSpec("P")
T = TypeVar("T")


class ShapeError(ValueError):
    """A tensor's shape or dtype is not what a formula is defined on."""


def require_shape(where: str, ndim: int | None, **tensors: Tensor | None) -> None:
    """Require all tensors that are not None to share one non-empty shape of `ndim` axes.

    where: the formula's name, for the message. ndim: number of axes, None for any number.
    tensors: by argument name; the first that is not None sets the shape.
    Raises ShapeError with the names and the shapes found.
    """
    present = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    shapes = ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in present.items())
    first = next(iter(present.values()))
    if ndim is not None and first.ndim != ndim:
        raise ShapeError(f"{where}: expected {ndim} axes, found {shapes}; reshape before the call")
    if any(tensor.shape != first.shape for tensor in present.values()):
        raise ShapeError(
            f"{where}: expected one shared shape, found {shapes}; no broadcasting is done here"
        )
    if first.numel() == 0:
        raise ShapeError(f"{where}: expected at least one element, found {shapes}; skip the call")


def require_mask(where: str, mask: Tensor, name: str = "mask") -> None:
    """Require a bool mask (True = counted). Raises ShapeError with the dtype found."""
    if mask.dtype != torch.bool:
        raise ShapeError(
            f"{where}: {name} must be torch.bool (True = counted), found {mask.dtype}; "
            f"pass {name}.bool()"
        )


def require_floating(where: str, **tensors: Tensor | None) -> None:
    """Require floating-point tensors. Raises ShapeError with the dtype found."""
    for name, tensor in tensors.items():
        if tensor is not None and not tensor.is_floating_point():
            raise ShapeError(
                f"{where}: {name} must be floating point, found {tensor.dtype}; pass {name}.float()"
            )


def refuse_other_choices(formula: Callable[P, T]) -> Callable[P, T]:
    """The formula, which raises ValueError where an argument is none of its parameter's Literal."""
    hints = get_type_hints(formula)
    choices = {
        name: tuple(choice for kind in (hint, *get_args(hint)) for choice in _choices(kind))
        for name, hint in hints.items()
    }
    signature = inspect.signature(formula)

    @functools.wraps(formula)
    def checked(*args: P.args, **kwargs: P.kwargs) -> T:
        given = signature.bind(*args, **kwargs).arguments
        for name, allowed in choices.items():
            if allowed and given.get(name) is not None and given[name] not in allowed:
                raise ValueError(
                    f"{formula.__name__}: {name} must be one of {', '.join(allowed)}, found "
                    f"{given[name]!r}"
                )
        return formula(*args, **kwargs)

    return checked


def _choices(hint: object) -> tuple[str, ...]:
    return get_args(hint) if get_origin(hint) is Literal else ()
