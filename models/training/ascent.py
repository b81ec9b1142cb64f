"""An ascent from which the parameters go back bit for bit; by itself for whole parameters.

Parameters that ZeRO partitions move by `trimtab.models.training.zero.PartedAscent`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor
from transformers import PreTrainedModel

from trimtab.models.nets.freezing import trained_parameters
from trimtab.models.nets.packing import PackedBatch
from trimtab.models.training import distributed

Metrics = dict[str, Tensor]
# Further arguments of a loss besides the packed batch: indices of its rows, or their advantages.
T = TypeVar("T", contravariant=True)
LossFunction = Callable[[PackedBatch, Any], tuple[Tensor, Metrics]]


class Accumulator(Protocol[T]):
    """What adds up gradients. All ranks call everything, in the same order.

    needs_equal_parts: whether ranks must run the same number of forward passes in a step.
    """

    needs_equal_parts: bool

    def loss(self, batch: PackedBatch, arguments: T) -> tuple[Tensor, Metrics]:
        """Mean loss and metrics of a packed batch; `arguments`: the loss's further arguments."""

    def backward(self, loss: Tensor, is_last: bool) -> None:
        """Add a micro batch's gradient; the losses of all micro batches sum to the step's."""


class Ascent(Accumulator[Any], Protocol):
    """Adds up gradients of an objective, then moves the parameters along them, and back."""

    def direction(self) -> tuple[Tensor, int]:
        """Add up over ranks; the norm of what was added up (scalar), and of how many numbers."""

    def move(self, rate: float) -> None:
        """Move the parameters up by `rate` times the gradient."""

    def undo(self) -> None:
        """Move the parameters back, bit for bit."""


class WholeAscent:
    """With whole parameters on every rank: takes as much memory as they, once more.

    Gradients are added one by one: never two full sets in memory. After `move`, what the parameters
    were before is in their place.
    """

    needs_equal_parts = False

    def __init__(self, model: PreTrainedModel, objective: LossFunction) -> None:
        self.loss, self.parameters = objective, trained_parameters(model)
        self.sums: list[Tensor | None] = [None] * len(self.parameters)

    def backward(self, loss: Tensor, is_last: bool) -> None:
        """As a learner's."""
        hooks = [
            parameter.register_hook(partial(self._add_one, place))
            for place, parameter in enumerate(self.parameters)
        ]
        # Not `backward`: the descent's gradients are in `grad`.
        torch.autograd.grad(loss, self.parameters, allow_unused=True)
        for hook in hooks:
            hook.remove()

    def _add_one(self, place: int, gradient: Tensor) -> Tensor:
        """The first is taken as it is. Returns a zero of that shape, as autograd keeps it."""
        total = self.sums[place]
        if total is None:
            self.sums[place] = gradient
        else:
            total += gradient
        return gradient.new_zeros(()).expand_as(gradient)

    def direction(self) -> tuple[Tensor, int]:
        """As in `Ascent`; parameters that the objective does not reach do not count."""
        moved = [total for total in self.sums if total is not None]
        distributed.all_reduce_sum(moved)
        norm = torch.stack([total.norm() for total in moved]).norm()
        return norm, sum(map(torch.numel, moved))

    @torch.no_grad()
    def move(self, rate: float) -> None:
        """As in `Ascent`."""
        for parameter, total in zip(self.parameters, self.sums, strict=True):
            if total is not None:
                before = parameter.clone()
                parameter.add_(total, alpha=rate)
                total.copy_(before)

    @torch.no_grad()
    def undo(self) -> None:
        """As in `Ascent`."""
        for parameter, before in zip(self.parameters, self.sums, strict=True):
            if before is not None:
                parameter.copy_(before)
