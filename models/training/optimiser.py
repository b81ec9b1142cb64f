"""AdamW and the schedule all trainers share: linear warm-up, cosine to a fraction of the peak."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from trimtab.models.config.training import Optimiser, TrainConfig
from trimtab.models.nets.freezing import trained_parameters


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
