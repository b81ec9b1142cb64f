"""The small Llama that is trained from scratch where no base model is named.

Imports no torch, as plans, which count its parameters, do not.
"""

from __future__ import annotations

from typing import Any

from trimtab.models.config.training import ModelConfig


def llama_fields(config: ModelConfig, vocab_size: int) -> dict[str, Any]:
    """Its dimensions, by the names of transformers' LlamaConfig and so of a `config.json`."""
    return {
        "vocab_size": vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.hidden_size * 3,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_heads,
        "max_position_embeddings": config.max_length,
        "tie_word_embeddings": True,
    }
