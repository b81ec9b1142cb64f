"""How much a GPU computes at a time: more than a CPU, as far as its memory is free."""

from __future__ import annotations

import torch
from transformers import PreTrainedModel

from trimtab.models.nets import counts
from trimtab.models.nets.precision import attention_dtype

FLOAT_BYTES = torch.float32.itemsize


def is_strict() -> bool:
    """Whether an operation without a deterministic form is an error."""
    is_on = torch.are_deterministic_algorithms_enabled()
    return is_on and not torch.is_deterministic_algorithms_warn_only_enabled()


def free_bytes(device: torch.device) -> int | None:
    """Bytes that no tensor of a GPU's process takes, nor another process.

    None: no GPU, or what is computed must not depend on them.
    """
    if device.type != "cuda" or is_strict():
        return None
    free, _ = torch.cuda.mem_get_info(device)
    return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)


def pass_tokens(device: torch.device) -> int:
    """Most tokens in one pass without gradient: those that plans count, or more if they fit."""
    share = int(counts.FREE_SHARE * (free_bytes(device) or 0))
    fitting = min(counts.GPU_PASS_TOKENS, share // counts.TOKEN_BYTES)
    return max(counts.PASS_TOKENS, fitting)


def decoding_rows(model: PreTrainedModel, longest: int) -> int | None:
    """Most rows of `longest` tokens in one decoding batch; None: of `counts.CACHE_TOKENS`.

    A row has keys and values in every layer, and what its draw takes of the vocabulary: once where
    it is run, once more in a graph's memory.
    """
    free, config = free_bytes(model.device), model.config.get_text_config()
    if free is None:
        return None
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    width = attention_dtype(model.dtype).itemsize
    cached = 2 * config.num_hidden_layers * heads * size * width
    row = longest * cached + 2 * FLOAT_BYTES * counts.SAMPLING_ROWS * config.vocab_size
    return max(1, min(counts.GPU_DECODING_ROWS, int(counts.FREE_SHARE * free) // row))
