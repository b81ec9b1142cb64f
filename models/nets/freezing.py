"""Training only the upper layers of a model: what is frozen costs no gradient, state or checkpoint.

With the embeddings and lower layers frozen, the backward pass ends at the first trained layer and
no activation below it is kept. Tied output embeddings stay frozen with the input embeddings.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torch import Tensor, nn
from transformers import PreTrainedModel


def freeze_lower_layers(model: PreTrainedModel, trainable_layers: int | None) -> None:
    """Leave the top `trainable_layers` layers, the final norm and the heads trainable.

    None leaves everything trainable. Raises ValueError for a number the model does not have.
    """
    if trainable_layers is None:
        return
    count = num_frozen_layers(model, trainable_layers)
    for module in (*embeddings_of(model), *layers_of(model)[:count]):
        module.requires_grad_(False)


def num_frozen_layers(model: PreTrainedModel, trainable_layers: int | None) -> int:
    """How many lower layers are frozen: none where all are trained.

    Raises ValueError for a number of trained layers that the model does not have.
    """
    if trainable_layers is None:
        return 0
    count = len(layers_of(model))
    if not 1 <= trainable_layers <= count:
        raise ValueError(
            f"trainable_layers must be in [1, {count}] (the model's layers) or none, "
            f"found {trainable_layers}"
        )
    return count - trainable_layers


def trained_parameters(model: nn.Module) -> list[nn.Parameter]:
    """The parameters that are not frozen, each once."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def trained_state(model: nn.Module) -> dict[str, Tensor]:
    """The trained parameters by name: what a checkpoint holds of a model."""
    return {
        name: parameter.detach()
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    }


def load_trained_state(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Restore what `trained_state` gave. Raises ValueError where the trained parts differ."""
    check_trained_names(trained_state(model), state)
    model.load_state_dict(state, strict=False)


def check_trained_names(expected: Iterable[str], names: Iterable[str]) -> None:
    """Raises ValueError where a checkpoint's trained parameters are others than are trained now."""
    odd = sorted(set(expected) ^ set(names))
    if odd:
        raise ValueError(
            f"the checkpoint holds other parameters than are trained now: {len(odd)} differ, "
            f"the first {odd[0]!r}; was trainable_layers changed?"
        )


# OPT makes these before its layers, and passes them behind.
_BEHIND = {"final_layer_norm", "project_out"}


def embeddings_of(model: PreTrainedModel) -> list[nn.Module]:
    """The trunk's embeddings: of tokens and, in some models, of positions."""
    parent, name = place_of_layers(model)
    names = [child for child, _ in parent.named_children()]
    return [getattr(parent, child) for child in names[: names.index(name)] if child not in _BEHIND]


def layers_of(model: PreTrainedModel) -> nn.ModuleList:
    """The trunk's list of layers. Raises ValueError for an architecture that keeps no such list."""
    parent, name = place_of_layers(model)
    layers: nn.ModuleList = getattr(parent, name)
    return layers


def place_of_layers(model: PreTrainedModel) -> tuple[nn.Module, str]:
    """The part of the trunk that holds its list of layers, and the list's name there.

    It is the trunk itself, or its decoder (OPT). Raises ValueError as `layers_of`.
    """
    for parent in model.base_model.modules():
        for name, child in parent.named_children():
            if isinstance(child, nn.ModuleList) and len(child) == model.config.num_hidden_layers:
                return parent, name
    raise ValueError(
        f"{type(model).__name__} keeps its {model.config.num_hidden_layers} layers in no list"
    )


def find_layers(model: PreTrainedModel) -> nn.ModuleList | None:
    """As `layers_of`; None where there is no such list."""
    try:
        return layers_of(model)
    except ValueError:
        return None
