"""What moves parameters: AdamW by a schedule, and an ascent from which they go back bit for bit.

The schedule is a linear warm-up, then a cosine to a fraction of the peak. Parameters that ZeRO
partitions ascend by `trimtab.models.training.zero.PartedAscent`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from trimtab.models.config.training import Optimiser, TrainConfig
from trimtab.models.nets.freezing import trained_parameters
from trimtab.models.nets.packing import PackedBatch
from trimtab.models.training import distributed

Metrics = dict[str, Tensor]
# Further arguments of a loss besides the packed batch: indices of its rows, or their advantages.
T = TypeVar("T", contravariant=True)
LossFunction = Callable[[PackedBatch, Any], tuple[Tensor, Metrics]]


def adamw(
    model: nn.Module, weight_decay: float, kind: Optimiser = "adamw"
) -> torch.optim.Optimizer:
    """AdamW over what is not frozen, with the betas of [PPO] (0.9, 0.95): fused, or of 8 bits.

    That keeps its moments in blocks of 256 numbers, each with a scale [Dettmers et al. 2022]; those
    of parameters of fewer than 4,096 stay in float32. The rate is to be set before every step.
    """
    parameters, betas = trained_parameters(model), (0.9, 0.95)
    if kind == "adamw":
        return torch.optim.AdamW(parameters, betas=betas, weight_decay=weight_decay, fused=True)
    try:
        from bitsandbytes.optim import AdamW8bit
    except ImportError as error:
        raise ModuleNotFoundError(
            "optimiser=adamw_8bit needs bitsandbytes: pip install 'trimtab[eight-bit]'"
        ) from error
    return AdamW8bit(parameters, betas=betas, weight_decay=weight_decay)


def scheduled_rate(config: TrainConfig, step: int, total: int) -> float:
    """Learning rate at 0-based `step` of `total` [AM section 4.2]."""
    warmup = max(1, round(config.warmup_fraction * total))
    if step < warmup:
        return config.learning_rate * (step + 1) / warmup
    progress = (step - warmup) / max(1, total - warmup)
    cosine = 0.5 * (1 + math.cos(math.pi * progress))
    return config.learning_rate * (config.final_fraction + (1 - config.final_fraction) * cosine)


def set_rate(optimiser: torch.optim.Optimizer, learning_rate: float) -> None:
    """Set the learning rate of every parameter group."""
    for group in optimiser.param_groups:
        group["lr"] = learning_rate


def clip_gradients(parameters: Iterable[Tensor], max_norm: float) -> Tensor:
    """Clip the global gradient norm in place; returns the norm before clipping."""
    return nn.utils.clip_grad_norm_(parameters, max_norm, foreach=True)


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
