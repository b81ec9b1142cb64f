"""A model's dimensions, parameters and kept activations, read off it without its weights.

`python -m trimtab.models.nets.counted CONFIG_JSON` builds the model of a `config.json` on torch's
meta device, passes rows of packed attention through it, and prints what plans ask for as JSON:
{"shape": ..., "untrainable": why}; either may be null. Plans call it so, in a process of its own,
as they load no torch themselves (`trimtab.models.estimates.shapes`).
"""

from __future__ import annotations

import json
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from transformers import (
    AttentionInterface,
    AutoModelForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.pytorch_utils import Conv1D
from transformers.utils import logging

from trimtab.models.nets.attention import packed_attention
from trimtab.models.nets.freezing import layers_of
from trimtab.models.nets.fused import fuse_layers
from trimtab.models.nets.packing import Candidates, pack
from trimtab.models.nets.pretrained import build_from_config
from trimtab.models.nets.supported import decoder_config, unencodable_in, untrainable
from trimtab.models.nets.trunk import hidden_states

# Two passes of so many tokens tell what is kept a token from what is kept once.
FEW_TOKENS, MORE_TOKENS = 16, 32
NARROW = torch.bfloat16


class Pass:
    """What autograd keeps of packed rows, by layer (None: beside them) and width.

    kept: numbers. calls: of the attention function by each layer. Products are narrow as on a GPU,
    so that what they keep is told from what stays in float32.
    """

    def __init__(self, model: PreTrainedModel, num_tokens: int) -> None:
        self.kept = Counter[tuple[int | None, bool]]()
        self.calls = Counter[int | None]()
        self._layer: int | None = None
        self._storages: dict[int, Any] = {}
        for parameter in model.parameters():
            self._storages[parameter.untyped_storage()._cdata] = parameter
        half = [0] * (num_tokens // 2)
        batch = pack([Candidates(half, (half,))])
        ids, positions = (values.to("meta") for values in (batch.input_ids, batch.position_ids))
        with self._watched(model):
            hidden_states(model, replace(batch, input_ids=ids, position_ids=positions))

    @contextmanager
    def _watched(self, model: PreTrainedModel) -> Iterator[None]:
        with packed_attention(model.base_model):
            name = model.config._attn_implementation
        attend = AttentionInterface()[name]
        AttentionInterface.register(name, partial(self._attend, attend))
        handles = [
            handle
            for index, layer in enumerate(layers_of(model))
            for handle in (
                layer.register_forward_pre_hook(partial(self._enter, index), with_kwargs=True),
                layer.register_forward_hook(self._leave),
            )
        ]
        try:
            with saved_tensors_hooks(self._keep, lambda tensor: tensor):
                yield
        finally:
            AttentionInterface.register(name, attend)
            for handle in handles:
                handle.remove()

    def _enter(self, layer: int, _: nn.Module, __: Any, named: dict[str, Any]) -> None:
        for rotary in named.get("position_embeddings") or ():  # all layers share them
            self._keep(rotary)
        self._layer = layer

    def _leave(self, *_: Any) -> None:
        self._layer = None

    def _keep(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in self._storages:
            self._storages[storage._cdata] = tensor
            is_narrow = tensor.dtype == NARROW
            self.kept[self._layer, is_narrow] += storage.nbytes() // (2 if is_narrow else 4)
        return tensor

    def _attend(self, attend: Callable[..., Any], module: nn.Module, *args: Any, **named: Any):  # type: ignore[no-untyped-def]
        """Attention, which keeps its operands, its output and a log-sum-exp a head and token."""
        self.calls[self._layer] += 1
        if "packed_lengths" not in named:
            raise ValueError("the model hands no arguments of its own to attention functions")
        if getattr(module, "is_causal", True) is False:
            raise ValueError(f"{type(module).__name__} attends to later tokens")
        with saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor):
            output, _ = attend(module, *args, **named)
        query, key, value = args[:3]
        for tensor in (query, key, value, output.clone()):
            self._keep(tensor.detach().to(NARROW))
        self.kept[self._layer, False] += query.shape[1] * query.shape[2]
        return output.to(NARROW), None


def shape_of_model(config: PreTrainedConfig, model: PreTrainedModel) -> dict[str, Any]:
    """The fields of `trimtab.models.estimates.shapes.ModelShape`, but what autograd keeps."""
    heads, trunk, layers = config.num_attention_heads, model.base_model, layers_of(model)
    head = model.get_output_embeddings()
    in_trunk, embedding = (
        _numel(trunk),
        sum(_numel(part) for part in trunk.modules() if isinstance(part, nn.Embedding)),
    )
    sizes = [getattr(part, "head_dim", None) for part in layers.modules()]
    return {
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "num_heads": heads,
        "num_kv_heads": getattr(config, "num_key_value_heads", None) or heads,
        "head_dim": next(filter(None, sizes), None) or config.hidden_size // heads,
        "context": getattr(config, "max_position_embeddings", None) or 0,
        "is_tied": head is not None and head.weight is model.get_input_embeddings().weight,
        "embedding_parameters": embedding,
        "last_parameters": in_trunk - _numel(layers) - embedding,
        "head_parameters": _numel(model) - in_trunk,
        "largest_parameter": max(parameter.numel() for parameter in model.parameters()),
        "layers": [_layer(config, layer) for layer in layers],
    }


def _numel(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _layer(config: PreTrainedConfig, layer: nn.Module) -> dict[str, Any]:
    maps = [
        (part.in_features, part.out_features) if isinstance(part, nn.Linear) else (part.nx, part.nf)
        for part in layer.modules()
        if isinstance(part, nn.Linear | Conv1D)
    ]
    experts = [parameter for parameter in layer.parameters() if parameter.ndim == 3]
    taken = getattr(config, "num_experts_per_tok", None)
    matrices = sum(parameter.numel() for parameter in layer.parameters() if parameter.ndim == 2)
    active = sum(
        expert.numel() * min(1.0, (taken or len(expert)) / len(expert)) for expert in experts
    )
    return {
        "maps": maps,
        "parameters": _numel(layer),
        "active": matrices + round(active),
    }


def with_narrow_products(model: PreTrainedModel) -> None:
    """Matrices of layers, and what they multiply, become narrow; as under autocast, whose device
    cannot be meta."""
    for layer in layers_of(model):
        for part in layer.children():
            if any(parameter.ndim > 1 for parameter in part.parameters()):
                part.register_forward_pre_hook(_cast_first, with_kwargs=True)
        for part in layer.modules():
            if any(parameter.ndim > 1 for parameter in part.parameters(recurse=False)):
                part.to(NARROW)
                part.register_forward_pre_hook(_cast_first, with_kwargs=True)


def _cast_first(
    _: nn.Module, positional: tuple[Any, ...], named: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if positional:
        return (positional[0].to(NARROW), *positional[1:]), named
    return positional, {**named, "hidden_states": named["hidden_states"].to(NARROW)}


def kept_of(model: PreTrainedModel) -> dict[str, Any]:
    """What autograd keeps a token: of each layer wide and narrow, and beside them.

    Raises ValueError where a layer does not attend by transformers' attention functions alone.
    """
    with_narrow_products(model)
    few, more = (Pass(model, tokens) for tokens in (FEW_TOKENS, MORE_TOKENS))
    count = len(layers_of(model))
    others = [index for index in range(count) if more.calls[index] != 1]
    if others:
        raise ValueError(
            f"layer {others[0]} of {count} mixes tokens otherwise than by one call of an "
            "attention function (a state-space or linear-attention layer)"
        )

    def kept(layer: int | None, is_narrow: bool) -> int:
        numbers = more.kept[layer, is_narrow] - few.kept[layer, is_narrow]
        return -(-numbers // (MORE_TOKENS - FEW_TOKENS))

    return {
        "layers": [[kept(index, False), kept(index, True)] for index in range(count)],
        "once": kept(None, False) + kept(None, True),
    }


def _usual_shape(shape: dict[str, Any]) -> dict[str, Any]:
    """What is kept where no pass tells, at least that of a gated decoder: of each matrix that a
    token passes its input and output, and attention's and the norms'."""
    hidden = shape["hidden_size"]
    numbers = [
        [3 * hidden, 7 * hidden + 2 * layer["active"] // hidden] for layer in shape["layers"]
    ]
    return {"layers": numbers, "once": hidden}


def counted(path: Path) -> dict[str, Any]:
    """What is printed for a `config.json`."""
    config, reason = decoder_config(path.parent)
    if config is None or reason is not None:
        return {"shape": None, "untrainable": reason}
    reason = untrainable(config) or unencodable_in(path.parent, config)
    with torch.device("meta"):
        model = build_from_config(AutoModelForCausalLM, config, dtype=torch.float32)
    shape = shape_of_model(config, model)
    try:
        fuse_layers(model)
        kept = kept_of(model.eval())
    except (ValueError, TypeError) as error:  # training would raise it too
        kept = _usual_shape(shape)
        reason = reason or f"found model_type {config.model_type!r}: {error}"
    except (NotImplementedError, RuntimeError):  # the meta device cannot do all
        kept = _usual_shape(shape)
    for layer, numbers in zip(shape["layers"], kept["layers"], strict=True):
        layer["kept_wide"], layer["kept_narrow"] = numbers
    return {"shape": {**shape, "kept_once": kept["once"]}, "untrainable": reason}


def main(path: Path) -> dict[str, Any]:
    """As `counted`; a configuration that transformers refuses is an error of one line."""
    try:
        return counted(path)
    except Exception as error:  # whatever a configuration from elsewhere makes a library raise
        message = " ".join(str(error).split())
        return {"shape": None, "untrainable": f"{type(error).__name__}: {message[:300]}"}


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    logging.set_verbosity_error()
    print(json.dumps(main(Path(sys.argv[1]))))
