"""Building, loading and saving models in transformers' own folder format.

A base model is a folder, a hub id or the name of a Python package that brings one, so that a run
needs no model hub. Scorers and critics are `AutoModelForSequenceClassification` folders, which
anyone can load: one label is a reward model or critic, two labels are an Advantage Model (reward,
expected reward).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import torch
from accelerate.utils import other as accelerate_models
from torch import Tensor, nn
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from trimtab.models.config.packages import folder_of
from trimtab.models.config.training import ModelConfig
from trimtab.models.functional.contrastive import prototype_scores
from trimtab.models.nets.counts import llama_fields
from trimtab.models.nets.device import current_device
from trimtab.models.nets.freezing import find_layers
from trimtab.models.nets.fused import fuse_layers
from trimtab.models.nets.precision import convert_to_bfloat16, keeps_frozen_in_bfloat16
from trimtab.models.nets.pretrained import load_pretrained, load_tokenizer_of
from trimtab.models.nets.scoring import (
    CATEGORY_HEADS,
    category_heads,
    is_advantage_model,
    scorer_labels,
)


def gguf_of(base: str | Path) -> Path | None:
    """The GGUF file of a packaged model, `None` for any other name.

    Raises ValueError when the package is not installed.
    """
    folder = folder_of(base)
    return None if folder is None else next(folder.glob("*.gguf"))


def load_base_policy(base: str | Path, *, is_frozen: bool = False) -> PreTrainedModel:
    """A causal language model in float32 from a packaged model, a folder or a hub id.

    is_frozen: it is not trained, so that a GPU may store it narrow.
    """
    return _loaded(partial(_base_policy, base), is_frozen)


def load_policy(base: str | Path, *, is_frozen: bool = False) -> PreTrainedModel:
    """As `load_base_policy`, with the fused layers of its device."""
    model = load_base_policy(base, is_frozen=is_frozen)
    fuse_layers(model)
    return model


def _loaded(load: Callable[[], PreTrainedModel], is_frozen: bool) -> PreTrainedModel:
    """What `load` makes. What is to be narrow becomes so before it takes a GPU's memory."""
    if not (is_frozen and keeps_frozen_in_bfloat16()):
        with current_device():
            return load()
    model = load()
    convert_to_bfloat16(*(find_layers(model) or ()))
    return _move_to_device(model)


def _move_to_device(model: PreTrainedModel) -> PreTrainedModel:
    model = model.to(current_device())
    model.tie_weights()  # to move may make new parameters
    return model


def _base_policy(base: str | Path) -> PreTrainedModel:
    """A GGUF file is rebuilt as a plain model, because one loaded from GGUF cannot be saved."""
    gguf = gguf_of(base)
    if gguf is None:
        return load_pretrained(AutoModelForCausalLM, base, dtype=torch.float32)
    with torch.device("cpu"):
        loaded = load_pretrained(
            AutoModelForCausalLM, gguf.parent, gguf_file=gguf.name, dtype=torch.float32
        )
    config = loaded.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    model = LlamaForCausalLM(config)
    model.load_state_dict(loaded.state_dict())
    return model


def load_tokenizer(base: str | Path) -> PreTrainedTokenizerBase:
    """The tokenizer of a packaged model, a folder or a hub id; pad falls back to the end token."""
    gguf = gguf_of(base)
    if gguf is None:
        tokenizer = load_tokenizer_of(base)
    else:
        tokenizer = load_tokenizer_of(gguf.parent, gguf_file=gguf.name)
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def build_policy(config: ModelConfig, tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
    """The base model to fine-tune: loaded from `config.base`, or a fresh small Llama.

    A fresh one's weights are drawn by torch's generator of the CPU, whatever the device.
    """
    if config.base is not None:
        return load_policy(config.base)
    with torch.device("cpu"):
        model = LlamaForCausalLM(
            LlamaConfig(
                **llama_fields(config, len(tokenizer)),
                bos_token_id=None,
                eos_token_id=tokenizer.eos_token_id,
                pad_token_id=tokenizer.pad_token_id,
            )
        )
    if config.initialisation == "fan_in":
        _initialise_by_fan_in(model.base_model)
    model = _move_to_device(model)
    fuse_layers(model)
    return model


@torch.no_grad()
def _initialise_by_fan_in(trunk: nn.Module) -> None:
    for module in trunk.modules():
        if isinstance(module, nn.Linear):
            module.weight.normal_(0, module.in_features**-0.5)
        elif isinstance(module, nn.Embedding):  # tied to the head, which would want less
            module.weight.normal_(0, 0.3)


def new_scorer(folder: Path, seed: int, *, has_expected: bool = False) -> PreTrainedModel:
    """A scorer on the trunk of the model in `folder`, its bias-free heads drawn from `seed`.

    has_expected: with a head e(x), as an Advantage Model. Heads start at
    normal(0, 1/sqrt(hidden + 1)) as in InstructGPT's reward models.
    """
    labels = scorer_labels((), has_expected)
    with current_device():
        model = load_pretrained(
            AutoModelForSequenceClassification,
            folder,
            num_labels=len(labels),
            id2label=dict(enumerate(labels)),
            label2id={label: index for index, label in enumerate(labels)},
            dtype=torch.float32,
        )
    _draw_heads(model.score, seed)
    fuse_layers(model)
    return model


def add_category_heads(model: PreTrainedModel, categories: Sequence[str], seed: int) -> None:
    """Give a new scorer a reward head for each of several categories, and a gate between them.

    All its heads are drawn anew, from `seed`; does nothing without categories.
    """
    if not categories:
        return
    labels = scorer_labels(categories, is_advantage_model(model))
    model.config.id2label = dict(enumerate(labels))
    model.config.label2id = {label: index for index, label in enumerate(labels)}
    model.num_labels = len(labels)
    setattr(model.config, CATEGORY_HEADS, list(categories))
    model.score = nn.Linear(
        model.score.in_features, len(labels), bias=False, device=model.score.weight.device
    )
    _draw_heads(model.score, seed)


def _draw_heads(heads: nn.Linear, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    std = (heads.in_features + 1) ** -0.5
    with torch.no_grad():
        heads.weight.copy_(
            torch.randn(heads.weight.shape, generator=generator, device="cpu").mul_(std)
        )


def load_scorer(folder: Path, *, is_frozen: bool = False) -> PreTrainedModel:
    """A reward model, critic or Advantage Model from its `save_pretrained` folder.

    is_frozen: as in `load_base_policy`.
    """
    kind = AutoModelForSequenceClassification
    load = partial(load_pretrained, kind, folder, dtype=torch.float32)
    model = _loaded(load, is_frozen)
    fuse_layers(model)
    return model


def load_critic(folder: Path) -> PreTrainedModel:
    """A critic that starts as the scorer in `folder`; of category heads, as their mean.

    It reads the first column only.
    """
    model = load_scorer(folder)
    count = len(category_heads(model))
    if count:
        with torch.no_grad():
            model.score.weight[0].copy_(model.score.weight[:count].mean(0))
    return model


class Prototypes(nn.Module):
    """SwAV's prototypes (K, H), drawn from `seed`; maps features to their cosines (N, K)."""

    def __init__(self, num_prototypes: int, hidden_size: int, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        drawn = torch.randn(num_prototypes, hidden_size, generator=generator, device="cpu")
        self.weight = nn.Parameter(drawn.to(current_device()))

    def forward(self, features: Tensor) -> Tensor:
        """Features (N, H) -> cosines (N, K)."""
        return prototype_scores(features, self.weight)


@contextmanager
def auxiliary_heads(
    model: PreTrainedModel, policy: Path | None, num_prototypes: int | None, seed: int
) -> Iterator[None]:
    """Inside, `model` has what is given: a language-model head, SwAV's prototypes.

    policy: the folder that its trunk came from, whose head it is; where that is tied to the
    embeddings it is tied to the model's own. They are modules of the model, so that they are
    trained, checkpointed and held in parts as the rest of it is.
    """
    if policy is not None:
        model.lm_head = _language_head(policy, model)
    if num_prototypes is not None:
        model.prototypes = Prototypes(num_prototypes, model.config.hidden_size, seed)
    try:
        yield
    finally:
        for name in ("lm_head", "prototypes"):
            if hasattr(model, name):
                delattr(model, name)


def _language_head(folder: Path, model: PreTrainedModel) -> nn.Module:
    policy = load_policy(folder)
    head: nn.Module = policy.get_output_embeddings()
    if head.weight is policy.get_input_embeddings().weight:
        head.weight = model.get_input_embeddings().weight
    return head


def save_model(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Weights as safetensors, configuration and tokenizer, in one `save_pretrained` folder."""
    with _deepspeed_switched_off():
        model.save_pretrained(folder, safe_serialization=True)
    tokenizer.save_pretrained(folder)


@contextmanager
def _deepspeed_switched_off() -> Iterator[None]:
    """Inside, accelerate does not load DeepSpeed (four seconds) to see if a model is its engine.

    Where DeepSpeed is not loaded, no model is.
    """
    if sys.modules.get("deepspeed") is not None:
        yield
        return
    is_available = accelerate_models.is_deepspeed_available
    accelerate_models.is_deepspeed_available = lambda: False
    try:
        yield
    finally:
        accelerate_models.is_deepspeed_available = is_available
