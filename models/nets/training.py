"""Making a model ready to be trained: which layers learn, and what is kept for their gradient."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from models.config_parts import TrainerConfig
from models.nets.adapters import add_adapters
from models.nets.attention import packed_attention
from models.nets.freezing import (
    freeze_lower_layers,
    layers_of,
    num_frozen_layers,
    trained_parameters,
)


def prepare_training(model: PreTrainedModel, config: TrainerConfig, seed: int) -> None:
    """Freeze what is not trained; keep the activations of what is, or of layers only their input.

    `seed` draws adapters, if there are any. Raises ValueError where the configuration asks for
    layers that the model does not have.
    """
    freeze_lower_layers(model, config.trainable_layers)
    if config.lora is not None:
        add_adapters(model, config.lora, num_frozen_layers(model, config.trainable_layers), seed)
    if config.gradient_checkpointing:
        for layer in layers_of(model):
            if trained_parameters(layer):
                _recompute(layer)


def _recompute(layer: nn.Module) -> None:
    """Let a layer keep its input only, and run again in the backward pass.

    transformers' own switch does so in training mode only, in which PPO's models are not.
    """
    plain = layer.forward

    def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        return nullcontext(), packed_attention(layer)  # of the first pass, and of the second

    def forward(*positional: Any, **named: Any) -> Any:
        if not torch.is_grad_enabled():
            return plain(*positional, **named)
        again = partial(plain, **named)
        return checkpoint(again, *positional, use_reentrant=False, context_fn=contexts)

    layer.forward = forward
