"""AdamW and the schedule all trainers share: linear warm-up, cosine to a fraction of the peak."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from models.config_parts import TrainConfig
from models.nets.freezing import trained_parameters


def adamw(model: nn.Module, weight_decay: float) -> torch.optim.AdamW:
    """Fused AdamW over what is not frozen, with the betas of [PPO] (0.9, 0.95).

    Its rate is to be set before every step.
    """
    return torch.optim.AdamW(
        trained_parameters(model),
        betas=(0.9, 0.95),
        weight_decay=weight_decay,
        fused=True,
    )


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
