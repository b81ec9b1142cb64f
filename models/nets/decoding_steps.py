"""One more token for each row of a batch: passes over a key-value cache that grows with it.

Llamas, and Mistral and Qwen2 without a window, have a pass of their own here, over the same
modules, which saves many small operations on a CPU; other models take theirs.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import (
    DynamicCache,
    LlamaForCausalLM,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2ForCausalLM,
)
from transformers.models.llama.modeling_llama import LlamaAttention, LlamaRMSNorm

# Architectures whose modules, names and rotary positions are a Llama's.
_LIKE_LLAMA = (LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM)


def padded(
    prompts: Sequence[list[int]], pad_id: int, device: torch.device
) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens, mask (1 where there is a token) and positions (B, t), padded on the left."""
    width = max(map(len, prompts))
    tokens = torch.tensor([[pad_id] * (width - len(p)) + p for p in prompts], device=device)
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts], device=device)
    return tokens, mask, mask.cumsum(1).sub(1).clamp(min=0)


def begin_decoding(
    model: PreTrainedModel, tokens: Tensor, mask: Tensor, position: Tensor, room: int
) -> tuple[Tensor, ModelSteps | LlamaSteps]:
    """The logits (B, V) after prompts (B, t), padded on the left, and a state for `room` steps.

    mask: (B, t), 1 where there is a token; position: (B, t), from 0 on in each row.
    """
    cache = DynamicCache(config=model.config)
    general = ModelSteps(model, cache, mask[:, :0])
    logits = general.run(tokens, mask, position)
    if type(model) in _LIKE_LLAMA and getattr(model.config, "sliding_window", None) is None:
        return logits, LlamaSteps(model, cache, mask, room)
    return logits, general


class ModelSteps:
    """B rows decoded by the model's forward pass, for any causal language model of transformers."""

    def __init__(self, model: PreTrainedModel, cache: DynamicCache, mask: Tensor) -> None:
        """mask: (B, t), of the tokens that the cache holds."""
        self.model, self.cache, self.mask = model, cache, mask

    def select(self, index: Tensor) -> None:
        """Keep the rows of `index` (b,), which may name a row several times."""
        self.cache.batch_select_indices(index)
        self.mask = self.mask[index]

    def step(self, tokens: Tensor, position: Tensor) -> Tensor:
        """Process a token (B,) of each row at its position (B,); returns the next logits (B, V)."""
        one = self.mask.new_ones(len(tokens), 1)
        return self.run(tokens[:, None], one, position[:, None])

    def run(self, tokens: Tensor, mask: Tensor, position: Tensor) -> Tensor:
        """Append tokens (B, t); returns the logits (B, V) after the last."""
        self.mask = torch.cat([self.mask, mask], dim=1)
        output = self.model(
            input_ids=tokens,
            attention_mask=self.mask,
            position_ids=position,
            past_key_values=self.cache,
            use_cache=True,
            logits_to_keep=1,
        )
        logits: Tensor = output.logits[:, -1]
        return logits


class LlamaSteps:
    """By a Llama's modules, without what a forward pass for any length and any cache adds to them.

    Keys and values are written into room left for them, heads that share keys are multiplied by
    them together, and no row attends to what another has behind it.
    """

    def __init__(
        self, model: PreTrainedModel, cache: DynamicCache, mask: Tensor, room: int
    ) -> None:
        """model: of `_LIKE_LLAMA`; cache: filled by prompts (B, t) of that mask, emptied here."""
        self.model = model
        self.length = mask.shape[1]
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []
        while cache.layers:
            layer = cache.layers.pop(0)
            self.keys.append(_with_room(layer.keys, room))
            self.values.append(_with_room(layer.values, room))
        self.bias = self.keys[0].new_zeros(len(mask), 1, 1, self.length + room)
        self.bias[:, 0, 0, : self.length].masked_fill_(mask == 0, -torch.inf)

    def select(self, index: Tensor) -> None:
        """As in `ModelSteps`."""
        self.keys = [keys[index] for keys in self.keys]
        self.values = [values[index] for values in self.values]
        self.bias = self.bias[index]

    def step(self, tokens: Tensor, position: Tensor) -> Tensor:
        """As in `ModelSteps`."""
        trunk = self.model.model
        hidden = trunk.embed_tokens(tokens)
        cosine, sine = trunk.rotary_emb(hidden, position[:, None])  # (B, 1, d) each
        # Halves change places in the product with the sine, and the first one its sign.
        half = sine.shape[-1] // 2
        angles = cosine, torch.cat([-sine[..., :half], sine[..., half:]], -1)
        for number, layer in enumerate(trunk.layers):
            hidden = hidden + self._attend(
                number, layer.self_attn, _normed(layer.input_layernorm, hidden), angles
            )
            hidden = hidden + layer.mlp(_normed(layer.post_attention_layernorm, hidden))
        self.length += 1
        logits: Tensor = self.model.lm_head(_normed(trunk.norm, hidden))
        return logits

    def _attend(
        self, number: int, attention: LlamaAttention, hidden: Tensor, angles: tuple[Tensor, Tensor]
    ) -> Tensor:
        """(B, H) -> (B, H), over all keys of that layer and the one of this token."""
        now, ahead = self.length, self.length + 1
        keys, values = self.keys[number], self.values[number]
        rows, key_heads, _, size = keys.shape
        query = attention.q_proj(hidden).view(rows, -1, size)
        key = attention.k_proj(hidden).view(rows, key_heads, size)
        cosine, sine = angles
        both = torch.cat([query, key], 1)
        both = torch.addcmul(both * cosine, both.roll(size // 2, -1), sine)
        query, key = both.split([query.shape[1], key_heads], 1)
        keys[:, :, now] = key
        values[:, :, now] = attention.v_proj(hidden).view(rows, key_heads, size)
        grouped = query.reshape(rows, key_heads, -1, size) * attention.scaling
        scores = grouped @ keys[:, :, :ahead].transpose(2, 3) + self.bias[..., :ahead]
        weights = scores.softmax(-1, dtype=torch.float32).to(values.dtype)
        attended: Tensor = attention.o_proj((weights @ values[:, :, :ahead]).view(rows, -1))
        return attended


def _with_room(held: Tensor, room: int) -> Tensor:
    """(B, heads, t, d) -> (B, heads, t + room, d), what comes behind not yet written."""
    rows, heads, length, size = held.shape
    wide = held.new_empty(rows, heads, length + room, size)
    wide[:, :, :length] = held
    return wide


def _normed(norm: LlamaRMSNorm, hidden: Tensor) -> Tensor:
    return F.rms_norm(hidden, hidden.shape[-1:], norm.weight, norm.variance_epsilon)
