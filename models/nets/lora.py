"""LoRA: low-rank adapters learn in place of weights, and are merged into them in the end.

[LORA] Hu et al., LoRA: Low-Rank Adaptation of Large Language Models, 2021, arXiv 2106.09685.

Every linear map W of a trained layer becomes W + (alpha / rank) B A; A and B learn, and so do the
heads of a scorer. A model that comes out is an ordinary one, whatever made it.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from trimtab.models.config.training import LoraConfig
from trimtab.models.nets.freezing import layers_of
from trimtab.models.nets.precision import NarrowLinear, convert_to_bfloat16


def add_adapters(
    model: PreTrainedModel,
    config: LoraConfig,
    num_frozen: int,
    seed: int,
    *,
    is_narrow: bool = False,
) -> None:
    """Adapters in all layers but the lower `num_frozen`; all else but a scorer's heads is frozen.

    A language-model head is frozen with the rest, whether a policy's or lent to a scorer. Adapters
    begin as nothing: B is 0, A is drawn from `seed`. is_narrow: W is stored narrow where frozen
    models are; its sum with the adapter is a float32 one in the end. Raises ValueError for a model
    whose layers have no linear maps.
    """
    from peft import LoraConfig as Lora  # loads in a second
    from peft import LoraModel

    torch.manual_seed(seed)
    layers = {id(layer) for layer in layers_of(model)[num_frozen:]}
    maps = {
        f"{name}.{inner}": part
        for name, module in model.named_modules()
        if id(module) in layers
        for inner, part in module.named_modules()
        if isinstance(part, nn.Linear | Conv1D)
    }
    if not maps:
        raise ValueError(
            f"{type(model).__name__} has no linear maps in its layers: lora cannot be used with it"
        )
    is_transposed = all(isinstance(part, Conv1D) for part in maps.values())  # GPT-2
    lora = Lora(
        r=config.rank,
        lora_alpha=config.alpha,
        target_modules=list(maps),
        fan_in_fan_out=is_transposed,
    )
    with torch.device("cpu"):  # a GPU would draw others from the seed; peft moves them to it
        LoraModel(model, lora, "default")
    if is_narrow:
        convert_to_bfloat16(*(model.get_submodule(f"{name}.base_layer") for name in maps))
    for head in ("score", "prototypes"):
        if hasattr(model, head):
            getattr(model, head).requires_grad_(True)


def merge_adapters(model: PreTrainedModel) -> None:
    """Add every adapter to its weight and remove it; does nothing without adapters."""
    if not hasattr(model, "peft_config"):
        return
    from peft.tuners.tuners_utils import BaseTunerLayer

    for name, module in list(model.named_modules()):
        if isinstance(module, BaseTunerLayer):
            base = module.get_base_layer()
            if isinstance(base, NarrowLinear):
                base.add(module.get_delta_weight("default"))
            else:
                module.merge()
            parent, _, attribute = name.rpartition(".")
            setattr(model.get_submodule(parent), attribute, base)
    del model.peft_config


@torch.no_grad()
def merged_weights(model: PreTrainedModel) -> dict[str, Tensor]:
    """A state dict with every adapter added to its weight; the model is not changed."""
    weights = model.state_dict()
    if not hasattr(model, "peft_config"):
        return weights
    from peft.tuners.tuners_utils import BaseTunerLayer

    for name, module in model.named_modules():
        if isinstance(module, BaseTunerLayer):
            place = f"{name}.base_layer.weight"
            weights[place] = weights[place] + module.get_delta_weight("default")
    return {
        name.replace(".base_layer.", "."): value
        for name, value in weights.items()
        if ".lora_" not in name
    }


def share_frozen(model: PreTrainedModel, other: PreTrainedModel) -> None:
    """Let `other` use the memory of frozen parameters of `model` that are equal in both.

    So a reference that is the policy's start, or a scorer that is its critic's, is no second copy.
    """
    theirs = dict(other.named_parameters())
    for name, parameter in model.named_parameters():
        twin = theirs.get(name.replace(".base_layer.", "."))
        if twin is None or parameter.requires_grad or twin is parameter:
            continue
        if parameter.shape == twin.shape and torch.equal(parameter, twin):
            twin.data = parameter.data
