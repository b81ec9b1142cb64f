"""One token a row and a step: what a key-value cache holds, and the pass that goes on from it.

At small scale a general forward pass spends most of a step in bookkeeping and in many small
operations. Llamas have a pass of their own here, over the same modules; other models take theirs.
"""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import DynamicCache, LlamaForCausalLM, PreTrainedModel
from transformers.models.llama.modeling_llama import LlamaAttention, LlamaRMSNorm


class Steps(Protocol):
    """B rows whose tokens so far a model has seen."""

    def select(self, index: Tensor) -> None:
        """Go on with the rows of `index` (b,), in which one may come several times."""

    def step(self, tokens: Tensor, position: Tensor) -> Tensor:
        """A token (B,) at its position (B,) of each row -> the logits (B, V) behind it."""


def begin(
    model: PreTrainedModel, tokens: Tensor, mask: Tensor, position: Tensor, room: int
) -> tuple[Tensor, Steps]:
    """The logits (B, V) behind prompts (B, t), padded on the left, and `room` steps from there.

    mask: (B, t), 1 where there is a token; position: (B, t), from 0 on in each row.
    """
    cache = DynamicCache(config=model.config)
    general = ModelSteps(model, cache, mask[:, :0])
    logits = general.run(tokens, mask, position)
    if type(model) is LlamaForCausalLM:
        return logits, LlamaSteps(model, cache, mask, room)
    return logits, general


class ModelSteps:
    """By the model's own forward pass: any causal language model of transformers."""

    def __init__(self, model: PreTrainedModel, cache: DynamicCache, mask: Tensor) -> None:
        """mask: (B, t), of the tokens that the cache holds."""
        self.model, self.cache, self.mask = model, cache, mask

    def select(self, index: Tensor) -> None:
        """As in `Steps`."""
        self.cache.batch_select_indices(index)
        self.mask = self.mask[index]

    def step(self, tokens: Tensor, position: Tensor) -> Tensor:
        """As in `Steps`."""
        one = self.mask.new_ones(len(tokens), 1)
        return self.run(tokens[:, None], one, position[:, None])

    def run(self, tokens: Tensor, mask: Tensor, position: Tensor) -> Tensor:
        """Append tokens (B, t) -> the logits (B, V) behind the last."""
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
        self, model: LlamaForCausalLM, cache: DynamicCache, mask: Tensor, room: int
    ) -> None:
        """cache: filled by prompts (B, t) of that mask, and emptied here."""
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
        """As in `Steps`."""
        self.keys = [keys[index] for keys in self.keys]
        self.values = [values[index] for values in self.values]
        self.bias = self.bias[index]

    def step(self, tokens: Tensor, position: Tensor) -> Tensor:
        """As in `Steps`."""
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
