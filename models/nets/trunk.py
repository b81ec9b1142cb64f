"""Frozen lower layers run once: their output serves every model that has the same lower layers.

Reward models, Advantage Models, critics and policies that train only their upper layers all keep
the base model's lower ones. What those make of a row is then the same for all of them, and is
computed once and given to each as the input of its first layer above.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from trimtab.models.nets.attention import further_mask, packed_attention
from trimtab.models.nets.feed_forward import feed_forward_at
from trimtab.models.nets.freezing import embeddings_of, find_layers, layers_of, place_of_layers
from trimtab.models.nets.packing import PackedBatch
from trimtab.models.nets.precision import attention_dtype, trunk_precision


def hidden_states(
    model: PreTrainedModel, batch: PackedBatch, places: Tensor | None = None
) -> Tensor:
    """Last hidden states (N, H) of a packed batch; no language-model head is computed.

    places: (n,), each once, where states are read; those of other tokens, most of which are of
    prompts, are unfinished then: the last layer's feed-forward part leaves them out. None: all are.
    Where the batch carries the output of lower layers that `model` holds, only the layers above
    run. Raises ValueError where those lower layers would have to be trained.
    """
    layers, lower = find_layers(model), batch.lower
    with feed_forward_at(model if layers is None else layers[-1], places):
        if lower is None or not _holds(model, lower.owner, lower.depth):
            return _trunk(model, batch)
        if torch.is_grad_enabled() and any(p.requires_grad for p in lower.owner.parameters()):
            raise ValueError(
                f"the batch carries the output of the lower {lower.depth} layers, but not all of "
                "them are frozen: they would not be trained; compute it for fewer layers"
            )
        with _only(model, slice(lower.depth, None)) as upper:
            handle = upper[0].register_forward_pre_hook(
                lambda _, positional, named: _with_input(lower.values[None], positional, named),
                with_kwargs=True,
            )
            try:
                return _trunk(model, batch)
            finally:
                handle.remove()


@torch.no_grad()
def trunk_output(model: PreTrainedModel, batch: PackedBatch, depth: int) -> Tensor:
    """The output (N, H) of the first `depth` >= 1 layers."""
    caught: list[Tensor] = []
    with _only(model, slice(depth)) as layers:
        handle = layers[-1].register_forward_hook(
            lambda _, __, output: caught.append(output[0] if isinstance(output, tuple) else output)
        )
        try:
            _trunk(model, batch)
        finally:
            handle.remove()
    return caught[0][0]


def tie_trunk(model: PreTrainedModel, other: PreTrainedModel, at_most: int) -> int:
    """Let `other` use the modules of `model` for the lower layers that are equal in both.

    Returns their number, at most `at_most`; 0 where the embeddings already differ. Both then hold
    those layers once in memory, and the output of one is known to be that of the other. Where
    `other` is stored narrow, equal means when rounded as it is, after which outputs are the same.
    """
    mine, theirs = find_layers(model), find_layers(other)
    if mine is None or theirs is None or at_most == 0:
        return 0
    embeddings, others = embeddings_of(model), embeddings_of(other)
    if len(embeddings) != len(others) or not all(map(_equal, embeddings, others)):
        return 0
    count = 0
    for index in range(min(at_most, len(mine), len(theirs))):
        if not _equal(mine[index], theirs[index]):
            break
        theirs[index] = mine[index]
        count = index + 1
    return count


def trunk_digest(model: PreTrainedModel, depth: int) -> str:
    """sha256 over the embeddings and the first `depth` layers: whose output stored states are."""
    digest = hashlib.sha256()
    for module in (*embeddings_of(model), *layers_of(model)[:depth]):
        for name, value in module.state_dict().items():
            digest.update(f"{name} {tuple(value.shape)} {value.dtype}".encode())
            digest.update(value.detach().cpu().contiguous().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _trunk(model: PreTrainedModel, batch: PackedBatch) -> Tensor:
    with packed_attention(model.base_model), trunk_precision(model.base_model):
        output = model.base_model(
            input_ids=batch.input_ids[None],
            position_ids=batch.position_ids[None],
            attention_mask=further_mask(
                batch.lengths, attention_dtype(model.dtype), batch.input_ids.device
            ),
            packed_lengths=batch.lengths,
            packed_sequences=batch.sequences,
            use_cache=False,
        )
    hidden: Tensor = output.last_hidden_state[0]
    return hidden


@contextmanager
def _only(model: PreTrainedModel, chosen: slice) -> Iterator[nn.ModuleList]:
    """Inside, the trunk has the chosen layers only."""
    parent, name = place_of_layers(model)
    layers = getattr(parent, name)
    part = layers[chosen]
    setattr(parent, name, part)
    try:
        yield part
    finally:
        setattr(parent, name, layers)


def _with_input(
    values: Tensor, positional: tuple[Any, ...], named: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A layer's arguments with other hidden states, which come first or by name."""
    if positional:
        return (values, *positional[1:]), named
    return positional, {**named, "hidden_states": values}


def _holds(model: PreTrainedModel, owner: nn.Module, depth: int) -> bool:
    layers = layers_of(model)
    return depth <= len(layers) and layers[depth - 1] is owner


def _equal(mine: nn.Module, theirs: nn.Module) -> bool:
    ours, others = mine.state_dict(), theirs.state_dict()
    return ours.keys() == others.keys() and all(
        torch.equal(value.to(others[name].dtype), others[name]) for name, value in ours.items()
    )
