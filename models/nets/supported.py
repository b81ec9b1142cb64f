"""Which base models can be trained, told before their weights are loaded.

Plans, runs and the stage that loads a base ask here, so that all refuse the same in the same words.
`trimtab.models.nets.counted` also passes packed rows through the model, on torch's meta device.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn
from transformers import (
    AutoModelForSequenceClassification,
    PreTrainedConfig,
    PreTrainedTokenizerBase,
)
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
)

from trimtab.models.nets.attention import check_packable
from trimtab.models.nets.pretrained import (
    build_from_config,
    code_named_by,
    load_config,
    load_tokenizer_of,
)

TOKENIZER_FILES = ("tokenizer*", "vocab*", "*.model")


def check_trainable(base: str | Path, tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise ValueError, in one line, where policy and scorers cannot be trained from a base model.

    base: a folder or a hub id.
    """
    config, reason = decoder_config(base)
    if config is not None and reason is None:
        reason = untrainable(config) or unencodable(tokenizer, config)
    if reason is not None:
        raise ValueError(f"{base}: {reason}")


def decoder_config(base: str | Path) -> tuple[PreTrainedConfig | None, str | None]:
    """A base model's configuration, and why there is no decoder to build; either may be None."""
    if (reason := code_named_by(base)) is not None:
        return None, reason
    config = load_config(base)
    return config, unbuildable(config)


def unbuildable(config: PreTrainedConfig) -> str | None:
    """Why there is no decoder with attention to build; None if there is."""
    kind = f"found model_type {config.model_type!r}"
    if getattr(config, "is_encoder_decoder", False):
        return f"{kind}, an encoder-decoder; allowed: a decoder (AutoModelForCausalLM)"
    if config.get_text_config() is not config:
        return (
            f"{kind}, a model of more than text, with a configuration of its language model "
            "inside; allowed: a language model alone"
        )
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        return f"{kind}; allowed: a decoder that transformers' AutoModelForCausalLM knows"
    if not getattr(config, "num_attention_heads", None):
        return f"{kind} without attention heads (a state-space model); allowed: attention"
    if not getattr(config, "num_hidden_layers", None):
        return f"{kind} without layers; allowed: at least one"
    return None


def untrainable(config: PreTrainedConfig) -> str | None:
    """Why policy and scorers cannot be trained from a decoder; None if they can.

    By its configuration and classes.
    """
    kind = f"found model_type {config.model_type!r}"
    if type(config) not in MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING:
        return (
            f"{kind}, of which transformers has no AutoModelForSequenceClassification; allowed: "
            "an architecture that has one, as reward models need it"
        )
    others = {
        name
        for name in getattr(config, "layer_types", None) or ()
        if not name.endswith("_attention") or name == "linear_attention"
    }
    if others:
        return (
            f"{kind} with layers of {', '.join(sorted(others))}, which mix responses of a packed "
            "row; allowed: layers with attention"
        )
    with torch.device("meta"):
        scorer = build_from_config(AutoModelForSequenceClassification, config)
    try:
        check_packable(scorer.base_model)
    except ValueError as error:
        return f"{kind}: {error}"
    if getattr(config, "max_position_embeddings", None) is None:
        return f"{kind} without max_position_embeddings; allowed: a model that says its context"
    if not isinstance(getattr(scorer, "score", None), nn.Linear):
        return f"{kind}, whose {type(scorer).__name__} has no `score`; allowed: one linear head"
    return None


def unencodable(tokenizer: PreTrainedTokenizerBase, config: PreTrainedConfig) -> str | None:
    """Why a model cannot read what a tokenizer writes; None if it can.

    Special tokens beyond the embedding are allowed where no text has them, as Gemma 3's of images.
    """
    end, size = tokenizer.eos_token_id, config.vocab_size
    if end is None:
        return "its tokenizer has no end token (eos_token); allowed: one, which ends every answer"
    most = max(tokenizer.vocab_size, end + 1)
    if most > size:
        return (
            f"its tokenizer has {most:,} tokens, the model's embedding {size:,} (vocab_size); "
            "allowed: at most as many"
        )
    return None


def unencodable_in(folder: Path, config: PreTrainedConfig) -> str | None:
    """As `unencodable`, of the tokenizer in a folder; None where there is none."""
    if not any(any(folder.glob(name)) for name in TOKENIZER_FILES):
        return None
    return unencodable(load_tokenizer_of(folder), config)
