"""Making a model ready to be trained: which layers learn, what is kept for their gradient, dropout.

[RM] Secrets of RLHF Part II, arXiv 2401.06080, trains reward models with dropout 0.05.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from trimtab.models.config.training import TrainerConfig
from trimtab.models.nets.attention import packed_attention
from trimtab.models.nets.freezing import (
    freeze_lower_layers,
    layers_of,
    num_frozen_layers,
    trained_parameters,
)
from trimtab.models.nets.lora import add_adapters


def prepare_training(
    model: PreTrainedModel, config: TrainerConfig, seed: int, dropout: float = 0.0
) -> None:
    """Freeze what is not trained; keep the activations of what is, or of layers only their input.

    `seed` draws adapters, if there are any; `dropout` is of the layers that are trained. Raises
    ValueError where the configuration asks for layers that the model does not have.
    """
    freeze_lower_layers(model, config.trainable_layers)
    num_frozen = num_frozen_layers(model, config.trainable_layers)
    if config.lora is not None:
        add_adapters(model, config.lora, num_frozen, seed)
    if dropout > 0:
        for layer in layers_of(model)[num_frozen:]:
            _drop(layer, dropout)
    if config.gradient_checkpointing:
        for layer in layers_of(model):
            if trained_parameters(layer):
                _recompute(layer)


def _drop(layer: nn.Module, share: float) -> None:
    """Drop a share of what attention and feed-forward add to a layer's input, in training mode.

    Those two are the layer's own children that have weight matrices. Raises ValueError where there
    are none.
    """

    def hook(part: nn.Module, _: Any, output: Any) -> Any:
        if not part.training:
            return output
        if isinstance(output, tuple):  # attention, with its weights behind
            return _dropped(output[0], share), *output[1:]
        return _dropped(output, share)

    parts = [part for part in layer.children() if any(p.ndim > 1 for p in part.parameters())]
    if not parts:
        raise ValueError(
            f"{type(layer).__name__} has no parts with weight matrices: dropout cannot be used"
        )
    for part in parts:
        part.register_forward_hook(hook)


def _dropped(output: Tensor, share: float) -> Tensor:
    """`F.dropout`, with a mask that the CPU draws: from one seed a GPU would draw another."""
    ones = torch.ones(output.shape, dtype=output.dtype, device="cpu")
    return output * F.dropout(ones, share).to(output.device)


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
