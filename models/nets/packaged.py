"""Models that come as Python packages, so that a run needs no model hub."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from models.packages import folder_of


def gguf_of(base: str) -> Path | None:
    """The GGUF file of a packaged model, `None` for any other name.

    Raises ValueError when the package is not installed.
    """
    folder = folder_of(base)
    return None if folder is None else next(folder.glob("*.gguf"))


def load_base_policy(base: str) -> PreTrainedModel:
    """A causal language model in float32 from a packaged model, a folder or a hub id.

    A GGUF file is rebuilt as a plain model, because one loaded from GGUF cannot be saved.
    """
    gguf = gguf_of(base)
    if gguf is None:
        return AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    loaded = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=torch.float32
    )
    config = loaded.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    model = LlamaForCausalLM(config)
    model.load_state_dict(loaded.state_dict())
    return model


def load_base_tokenizer(base: str) -> PreTrainedTokenizerBase:
    """The tokenizer of a packaged model, a folder or a hub id; pad falls back to the end token."""
    gguf = gguf_of(base)
    if gguf is None:
        tokenizer = AutoTokenizer.from_pretrained(base)
    else:
        tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer
