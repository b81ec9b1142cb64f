"""Making a model ready to be trained: which layers learn, what is kept for their gradient, dropout.

[RM] Secrets of RLHF Part II, arXiv 2401.06080, trains reward models with dropout 0.05.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from trimtab.models.config.training import TrainerConfig
from trimtab.models.nets.attention import packed_attention
from trimtab.models.nets.dropout import count_passes, current_pass, drop_outputs, same_pass
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
        # ZeRO has data types of its own.
        add_adapters(model, config.lora, num_frozen, seed, is_narrow=config.zero is None)
    if dropout > 0:
        count_passes(model.base_model)
        for number, layer in enumerate(layers_of(model)[num_frozen:], start=num_frozen):
            drop_outputs(layer, number, dropout)
    if config.gradient_checkpointing:
        for layer in layers_of(model):
            if trained_parameters(layer):
                _recompute(layer)


def _recompute(layer: nn.Module) -> None:
    """Let a layer keep its input only, and run again in the backward pass.

    transformers' own switch does so in training mode only, in which PPO's models are not. What is
    drawn is drawn again: from the states of torch's generators on a CPU, by the number of the
    pass elsewhere, where copies of states would cost the host time in each layer.
    """
    plain = layer.forward

    def forward(*positional: Any, **named: Any) -> Any:
        if not torch.is_grad_enabled():
            return plain(*positional, **named)
        hidden = positional[0] if positional else named["hidden_states"]
        number = current_pass()

        def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
            return nullcontext(), _again(layer, number)  # of the first run, and of the second

        return checkpoint(
            partial(plain, **named),
            *positional,
            use_reentrant=False,
            context_fn=contexts,
            preserve_rng_state=hidden.device.type == "cpu",
        )

    layer.forward = forward


@contextmanager
def _again(layer: nn.Module, number: int) -> Iterator[None]:
    with packed_attention(layer), same_pass(number):
        yield
