"""Making a model ready to be trained: which layers learn, what is kept for their gradient, dropout.

[RM] Secrets of RLHF Part II, arXiv 2401.06080, trains reward models with dropout 0.05: here of what
attention and feed-forward parts add to the residual stream.

On a CPU masks are drawn by torch's global generator, one after another. On any other device each
mask is drawn there, by a generator that is seeded for it from (seed, step, rank, pass, layer,
part); a pass is one forward pass of a trunk in the step. So a layer that is recomputed draws its
mask again whatever was drawn in between, a resumed step repeats its masks, and no generator's state
has to be kept. Seeding a generator is done by the host alone.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from trimtab.models.config.training import TrainerConfig
from trimtab.models.nets.attention import packed_attention
from trimtab.models.nets.feed_forward import current_places, feed_forward_at
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
            # Of the first run, and of the second.
            return nullcontext(), _again(layer, number, current_places(layer))

        return checkpoint(
            partial(plain, **named),
            *positional,
            use_reentrant=False,
            context_fn=contexts,
            preserve_rng_state=hidden.device.type == "cpu",
        )

    layer.forward = forward


@contextmanager
def _again(layer: nn.Module, number: int, places: Tensor | None) -> Iterator[None]:
    with packed_attention(layer), same_pass(number), feed_forward_at(layer, places):
        yield


@dataclass
class _State:
    """seed: of the step on this rank. number: of passes of trunks in the step so far, or of the
    pass that is recomputed."""

    seed: int = 0
    number: int = 0


# Of the process, not of a thread: autograd recomputes layers in threads of its own.
_state = _State()


def seed_dropout(seed: int, step: int, rank: int) -> None:
    """Begin a step, whose masks depend on these numbers only."""
    _state.seed = random.Random(f"dropout/{seed}/{step}/{rank}").getrandbits(63)
    _state.number = 0
    torch.manual_seed(_state.seed)


def count_passes(trunk: nn.Module) -> None:
    """Give every forward pass of the trunk masks of its own."""

    def hook(*_: Any) -> None:
        _state.number += 1

    trunk.register_forward_pre_hook(hook)


def current_pass() -> int:
    """The number of the pass under way, for `same_pass`."""
    return _state.number


@contextmanager
def same_pass(number: int) -> Iterator[None]:
    """Inside, masks are those of an earlier pass of the step."""
    before, _state.number = _state.number, number
    try:
        yield
    finally:
        _state.number = before


def drop_outputs(layer: nn.Module, number: int, share: float) -> None:
    """Drop a share of what attention and feed-forward add to a layer's input, in training mode.

    Those two are the layer's own children that have weight matrices. number: of the layer, from 0.
    Raises ValueError where there are none.
    """
    parts = [part for part in layer.children() if any(p.ndim > 1 for p in part.parameters())]
    if not parts:
        raise ValueError(
            f"{type(layer).__name__} has no parts with weight matrices: dropout cannot be used"
        )
    for place, part in enumerate(parts):
        _drop_output(part, f"{number}/{place}", share)


def _drop_output(part: nn.Module, name: str, share: float) -> None:
    def hook(part: nn.Module, _: Any, output: Any) -> Any:
        if not part.training:
            return output
        if isinstance(output, tuple):  # attention, with its weights behind
            return dropped(output[0], share, name), *output[1:]
        return dropped(output, share, name)

    part.register_forward_hook(hook)


def dropped(output: Tensor, share: float, name: str) -> Tensor:
    """`output`, of which a share is 0 and the rest divided by 1 - share.

    name: of the layer's part, whose masks differ from those of others. Numbers are drawn where
    `output` lies.
    """
    if output.device.type == "cpu":
        return output * F.dropout(torch.ones_like(output), share)
    words = f"{_state.seed}/{_state.number}/{name}".encode()
    generator = _generator(output.device)
    generator.manual_seed(int.from_bytes(hashlib.blake2b(words, digest_size=8).digest()) >> 1)
    masked: Tensor = _Masked.apply(output, share, generator)
    return masked


@cache
def _generator(device: torch.device) -> torch.Generator:
    return torch.Generator(device)


class _Masked(torch.autograd.Function):
    """Two kernels, and one in the backward pass; a mask takes one byte a number."""

    @staticmethod
    def forward(ctx: Any, output: Tensor, share: float, generator: torch.Generator) -> Tensor:
        mask = torch.empty_like(output, dtype=torch.bool).bernoulli_(1 - share, generator=generator)
        ctx.save_for_backward(mask)
        ctx.scale = 1 / (1 - share)
        masked: Tensor = torch.ops.aten.native_dropout_backward(output, mask, ctx.scale)
        return masked

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (mask,) = ctx.saved_tensors
        (gradient,) = gradients
        return torch.ops.aten.native_dropout_backward(gradient, mask, ctx.scale), None, None
