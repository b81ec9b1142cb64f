"""Sampling responses: a bare cached decoding loop over a causal language model of transformers.

`generate` spends much of its time in bookkeeping at small scale (docs/explanation/performance.md).
This loop does one pass a token (`DecodingSteps`), the draw and nothing else, and drops finished
rows from the batch as soon as a fifth of it is done. Llamas, and Mistral and Qwen2 without a
window, have a pass of their own here, over the same modules, which saves many small operations;
other models take theirs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import (
    DynamicCache,
    LlamaForCausalLM,
    MistralForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Qwen2ForCausalLM,
)
from transformers.models.llama.modeling_llama import LlamaAttention, LlamaRMSNorm

from trimtab.models import counts

# Architectures whose modules, names and rotary positions are a Llama's.
_LIKE_LLAMA = (LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM)
MOST_LIKELY = 256  # tokens looked at first where a nucleus is asked for
_NONE = -1  # in place of a token


@dataclass(frozen=True)
class Sampling:
    """How to sample: softmax(logits / temperature), nucleus, repetition penalty, length limit."""

    temperature: float
    max_new_tokens: int
    top_p: float = 1.0
    repetition_penalty: float = 1.0


def decoding_batches(
    prompts: Sequence[list[int]], max_new_tokens: int, cache_tokens: int, at_least: int
) -> list[list[int]]:
    """Indices of prompts by batch: equal prompts together, then those of similar length.

    How many a batch has, `counts.decoding_batch_sizes` says.
    """
    order = sorted(range(len(prompts)), key=lambda index: (len(prompts[index]), prompts[index]))
    longest = max(map(len, prompts), default=0) + max_new_tokens
    sizes = counts.decoding_batch_sizes(len(order), longest, cache_tokens, at_least)
    rest = iter(order)
    return [list(islice(rest, size)) for size in sizes]


@dataclass(frozen=True)
class Samples:
    """Responses to B prompts, T tokens at most: ids, the end token included where it was reached.

    logprobs, entropies: (B, T) nats, 0 behind a response's end; of the tokens and of what they were
    drawn from, under softmax(logits / temperature) before repetition penalty and nucleus.
    """

    responses: list[list[int]]
    logprobs: Tensor
    entropies: Tensor


@torch.no_grad()
def decode(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[list[int]],
    sampling: Sampling,
    draws: Tensor,
) -> Samples:
    """One sampled response for each of a batch.

    draws: (B, T) uniform in [0, 1), one a token: a response depends on its own only, whatever the
    batch. Prompts are padded on the left. Of equal prompts that follow one another one goes through
    the model, and its cache serves all.
    """
    distinct = [prompt for prompt, _ in groupby(prompts)]
    rows = _Rows(model, distinct, tokenizer.pad_token_id, sampling.max_new_tokens)
    if len(distinct) < len(prompts):
        repeats = torch.tensor([len(list(group)) for _, group in groupby(prompts)])
        index = torch.arange(len(distinct)).repeat_interleave(repeats)
        rows.select(index.to(draws.device))
    alive = torch.arange(len(prompts), device=draws.device)
    finished = torch.zeros_like(alive, dtype=torch.bool)
    tokens = torch.full_like(draws, _NONE, dtype=torch.long)
    logprobs, entropies = torch.zeros_like(draws), torch.zeros_like(draws)
    for number in range(sampling.max_new_tokens):
        scaled = rows.logits / sampling.temperature
        probabilities = scaled.softmax(-1)
        chosen = _choose(probabilities, rows, sampling, draws[:, number])
        own_logprobs, own_entropies = _logprobs_and_entropies(scaled, probabilities, chosen)
        tokens[alive, number] = chosen.masked_fill(finished, _NONE)
        logprobs[alive, number] = own_logprobs.masked_fill(finished, 0.0)
        entropies[alive, number] = own_entropies.masked_fill(finished, 0.0)
        finished = finished | (chosen == tokenizer.eos_token_id)
        if number + 1 == sampling.max_new_tokens or bool(finished.all()):
            break
        if finished.float().mean() >= 0.2:
            keep = (~finished).nonzero()[:, 0]
            rows.select(keep)
            alive, finished, chosen = alive[keep], finished[keep], chosen[keep]
            draws = draws[keep]
        rows.feed(chosen)
    return Samples([row[row != _NONE].tolist() for row in tokens], logprobs, entropies)


class _Rows:
    """Rows under way: the logits (B, V) of the next token, its position, the tokens they hold."""

    def __init__(
        self, model: PreTrainedModel, prompts: Sequence[list[int]], pad_id: int, room: int
    ) -> None:
        width = max(map(len, prompts))
        device = model.device
        tokens = torch.tensor([[pad_id] * (width - len(p)) + p for p in prompts], device=device)
        mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts], device=device)
        position = mask.cumsum(1).sub(1).clamp(min=0)
        self.logits, self.steps = begin_decoding(model, tokens, mask, position, room)
        self.seen = _seen_tokens(tokens, mask, model.config.vocab_size)
        self.position = position[:, -1]

    def select(self, index: Tensor) -> None:
        """Keep the rows of `index` (b,), which may name a row several times."""
        self.steps.select(index)
        self.seen, self.position = self.seen[index], self.position[index]
        self.logits = self.logits[index]

    def feed(self, chosen: Tensor) -> None:
        """Append a token (B,) to every row."""
        self.seen.scatter_(1, chosen[:, None], True)
        self.position = self.position + 1
        self.logits = self.steps.step(chosen, self.position)


def _seen_tokens(tokens: Tensor, mask: Tensor, vocab_size: int) -> Tensor:
    """(B, V) bool: which tokens a row already holds (padding does not count)."""
    counts = tokens.new_zeros(len(tokens), vocab_size)
    return counts.scatter_add_(1, tokens, mask) > 0


def _choose(probabilities: Tensor, rows: _Rows, sampling: Sampling, draw: Tensor) -> Tensor:
    """The token of each row (B,) that its draw (B,) hits in its probabilities (B, V).

    In other ones, where tokens that a row holds already are made less likely.
    """
    if sampling.repetition_penalty != 1.0:
        penalised = torch.where(
            rows.logits > 0,
            rows.logits / sampling.repetition_penalty,
            rows.logits * sampling.repetition_penalty,
        )
        logits = torch.where(rows.seen, penalised, rows.logits)
        probabilities = (logits / sampling.temperature).softmax(-1)
    if sampling.top_p == 1.0:
        return _hit(_running_sums(probabilities), draw, probabilities.shape[1] - 1)
    ordered, index = _most_likely(probabilities, sampling.top_p)
    cumulated = _running_sums(ordered)
    last = (cumulated - ordered < sampling.top_p).sum(-1) - 1
    return index.gather(1, _hit(cumulated, draw, last)[:, None])[:, 0]


def _running_sums(values: Tensor) -> Tensor:
    """`cumsum` of the last dimension; of floats CUDA has no deterministic one, but the CPU has."""
    is_strict = torch.are_deterministic_algorithms_enabled() and (
        not torch.is_deterministic_algorithms_warn_only_enabled()
    )
    return values.cpu().cumsum(-1).to(values.device) if is_strict else values.cumsum(-1)


def _logprobs_and_entropies(
    logits: Tensor, probabilities: Tensor, tokens: Tensor
) -> tuple[Tensor, Tensor]:
    """Log-probabilities (B,) of tokens and entropies (B,), of logits and their softmax (B, V)."""
    place = tokens[:, None]
    own = probabilities.gather(1, place)[:, 0]
    # None is left of what is unlikely and was drawn all the same, for what others were penalised.
    logprobs = own.clamp(min=torch.finfo(own.dtype).tiny).log()
    log_sum = logits.gather(1, place)[:, 0] - logprobs
    return logprobs, log_sum - torch.linalg.vecdot(probabilities, logits)


def _hit(cumulated: Tensor, draw: Tensor, last: Tensor | int) -> Tensor:
    """The place (B,), at most `last`, in which a draw lies of the sums (B, V) up to there."""
    place = torch.as_tensor(last, device=draw.device).expand(len(draw))
    total = cumulated.gather(1, place[:, None])
    hit = torch.searchsorted(cumulated, draw[:, None] * total, right=True)[:, 0]
    return torch.minimum(hit, place)


def _most_likely(probabilities: Tensor, mass: float) -> tuple[Tensor, Tensor]:
    """The largest of each row (B, V) in order, and their tokens; together at least `mass`.

    To sort a whole vocabulary takes longer than a small model's pass, and few tokens are likely.
    """
    count = max(1, min(MOST_LIKELY, probabilities.shape[1] // 4))
    ordered, index = probabilities.topk(count)
    if bool((ordered.sum(-1) >= mass).all()):
        return ordered, index
    return probabilities.sort(dim=-1, descending=True)


class DecodingSteps(Protocol):
    """A decoding state: B rows whose tokens the model has processed so far."""

    def select(self, index: Tensor) -> None:
        """Keep the rows of `index` (b,), which may name a row several times."""

    def step(self, tokens: Tensor, position: Tensor) -> Tensor:
        """Process a token (B,) of each row at its position (B,); returns the next logits (B, V)."""


def begin_decoding(
    model: PreTrainedModel, tokens: Tensor, mask: Tensor, position: Tensor, room: int
) -> tuple[Tensor, DecodingSteps]:
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
    """Decoding by the model's forward pass, for any causal language model of transformers."""

    def __init__(self, model: PreTrainedModel, cache: DynamicCache, mask: Tensor) -> None:
        """mask: (B, t), of the tokens that the cache holds."""
        self.model, self.cache, self.mask = model, cache, mask

    def select(self, index: Tensor) -> None:
        """As in `DecodingSteps`."""
        self.cache.batch_select_indices(index)
        self.mask = self.mask[index]

    def step(self, tokens: Tensor, position: Tensor) -> Tensor:
        """As in `DecodingSteps`."""
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
        """As in `DecodingSteps`."""
        self.keys = [keys[index] for keys in self.keys]
        self.values = [values[index] for values in self.values]
        self.bias = self.bias[index]

    def step(self, tokens: Tensor, position: Tensor) -> Tensor:
        """As in `DecodingSteps`."""
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
