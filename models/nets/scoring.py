"""Scores from hidden states: where a scorer's heads read, for one, two and many responses a row.

A scorer's columns are its reward heads, e(x) if it is an Advantage Model, and the gate. Most have
one reward head and no gate. With category heads there is a reward head and a column of the gate for
each category. Where a prompt's category is known (`Candidates.category`), its head scores. For
others r(x, y) = sum over categories c of p(c | x) r_c(x, y); the gate p is a softmax of what it
reads at the prompt's last token, as in [ArmoRM] Wang et al., Interpretable Preferences via
Multi-Objective Reward Modeling and Mixture-of-Experts, arXiv 2406.12845.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from trimtab.models.nets import counts
from trimtab.models.nets.logits import logits_of, token_logprobs
from trimtab.models.nets.packing import PackedBatch, ResponseTokens
from trimtab.models.nets.trunk import hidden_states

# In a model's config.json: (N - K) / N, by which an Advantage Model multiplies r - e.
ADVANTAGE_SCALE = "advantage_scale"
# In a model's config.json: the categories that have a reward head each.
CATEGORY_HEADS = "category_heads"


def response_scores(model: PreTrainedModel, batch: PackedBatch) -> Tensor:
    """Scores (R,) of all R responses of a packed batch, in packing order.

    A reward model answers r(x, y), read at the response's last real token; an Advantage Model
    answers r(x, y) - e(x), with e read at the prompt's last token, on the scale that it
    was trained on [AM eq. 8].
    """
    return combined_heads(model, *reward_heads(model, batch))


def combined_heads(model: PreTrainedModel, rewards: Tensor, expected: Tensor | None) -> Tensor:
    """The scores (R,) that `response_scores` answers, of what `reward_heads` does."""
    if expected is None:
        return rewards
    return getattr(model.config, ADVANTAGE_SCALE, 1.0) * (rewards - expected)


def reward_heads(model: PreTrainedModel, batch: PackedBatch) -> tuple[Tensor, Tensor | None]:
    """r(x, y) (R,) and, for an Advantage Model, e(x) (R,) repeated for each response."""
    return read_rewards(model, hidden_states(model, batch, batch.ends), batch)


def read_rewards(
    model: PreTrainedModel, hidden: Tensor, batch: PackedBatch
) -> tuple[Tensor, Tensor | None]:
    """As `reward_heads`, from the last hidden states (N, H), read at the batch's `ends`."""
    at_response = model.score(hidden.index_select(0, batch.response_end))
    if model.config.num_labels == 1:
        return at_response[:, 0], None
    at_prompt = model.score(hidden.index_select(0, batch.prompt_end))
    count = len(category_heads(model))
    expected = at_prompt[:, expected_column(model)] if is_advantage_model(model) else None
    if count == 0:
        return at_response[:, 0], expected
    weight = at_prompt[:, -count:].detach().softmax(1)  # no loss trains the gate
    is_own = batch.category[:, None] == _hashes(category_heads(model), weight.device)
    weight = torch.where(is_own.any(1, keepdim=True), is_own.to(weight.dtype), weight)
    return (at_response[:, :count] * weight).sum(1), expected


def category_heads(model: PreTrainedModel) -> tuple[str, ...]:
    """The categories that have a reward head each, in order; none: one head serves all pairs."""
    return tuple(getattr(model.config, CATEGORY_HEADS, ()))


@lru_cache
def _hashes(names: tuple[str, ...], device: torch.device) -> Tensor:
    """(C,), as `PackedBatch.category`; copied to the device once."""
    return torch.tensor(list(map(hash, names)), device=device)


def heads_of(names: Sequence[str], categories: Sequence[str | None]) -> Tensor:
    """(N,) the place of each category among `names`, -1 where it is none of them."""
    place: dict[str | None, int] = {name: index for index, name in enumerate(names)}
    return torch.tensor([place.get(name, -1) for name in categories])


def expected_column(model: PreTrainedModel) -> int:
    """Which column of an Advantage Model's heads is e(x)."""
    return max(1, len(category_heads(model)))


def is_advantage_model(model: PreTrainedModel) -> bool:
    """Whether a scorer carries the head e(x)."""
    return bool(model.config.num_labels == len(scorer_labels(category_heads(model), True)))


def scorer_labels(categories: Sequence[str], has_expected: bool) -> list[str]:
    """What each column of a scorer's head answers."""
    rewards = [f"reward: {name}" for name in categories] or ["reward"]
    expected = ["expected_reward"] if has_expected else []
    return [*rewards, *expected, *(f"gate: {name}" for name in categories)]


def response_logprobs(
    model: PreTrainedModel, batch: PackedBatch, temperature: float = 1.0
) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probabilities (R, L) of response tokens, entropies (R, L), response_mask (R, L).

    Under softmax(logits / temperature). The language-model head runs on response tokens only, and
    on so many of them at once that their logits stay bounded; it runs again for the gradient where
    they are more.
    """
    return read_logprobs(model, hidden_states(model, batch, batch.sources), batch, temperature)


def read_logprobs(
    model: PreTrainedModel,
    hidden: Tensor,
    batch: PackedBatch,
    temperature: float = 1.0,
    chosen: ResponseTokens | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """As `response_logprobs`, from the last hidden states (N, H), which are read at `sources`.

    For all responses, or for those of the tokens `chosen`.
    """
    source, ids, place, mask = batch.tokens if chosen is None else chosen
    # On CUDA the gradient does not take the logits' place.
    num_logits = counts.LOGITS_AT_ONCE // (2 if hidden.is_cuda else 1)
    size = max(1, num_logits // model.config.vocab_size)

    def logprobs_of_part(states: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        return token_logprobs(logits_of(model, states), tokens, temperature)

    once = (
        logprobs_of_part
        if len(source) <= size
        else partial(checkpoint, logprobs_of_part, use_reentrant=False)
    )
    parts = zip(hidden.index_select(0, source).split(size), ids.split(size), strict=True)
    logprobs, entropies = map(torch.cat, zip(*(once(*part) for part in parts), strict=True))
    return _spread(logprobs, place, mask), _spread(entropies, place, mask), mask


@torch.no_grad()
def next_logprobs(model: PreTrainedModel, batch: PackedBatch) -> Tensor:
    """Log-probabilities (R, V), nats, float32, of the next token after each of R responses."""
    hidden = hidden_states(model, batch, batch.ends)
    return logits_of(model, hidden[batch.response_end]).float().log_softmax(-1)


@torch.no_grad()
def likeliest_tokens(
    model: PreTrainedModel, batch: PackedBatch, count: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probabilities (n,) of all n response tokens, response by response, under softmax(logits).

    And of the `count` likeliest tokens in the place of each, in order: log-probabilities (n, count)
    and ids (n, count). Nats, float32.
    """
    hidden = hidden_states(model, batch, batch.sources)
    source, own_ids, _, _ = batch.tokens
    size = max(1, counts.LOGITS_AT_ONCE // model.config.vocab_size)
    parts = []
    for places, tokens in zip(source.split(size), own_ids.split(size), strict=True):
        logprobs = logits_of(model, hidden[places]).float().log_softmax(-1)
        parts.append((logprobs.gather(1, tokens[:, None])[:, 0], *logprobs.topk(count)))
    chosen, top, ids = map(torch.cat, zip(*parts, strict=True))
    return chosen, top, ids


def response_values(model: PreTrainedModel, batch: PackedBatch) -> tuple[Tensor, Tensor]:
    """Critic values (R, L) of the states before each response token, and response_mask (R, L)."""
    hidden = hidden_states(model, batch, batch.sources)
    source, _, place, mask = batch.tokens
    values = model.score(hidden.index_select(0, source))[:, 0]
    return _spread(values, place, mask), mask


def _spread(values: Tensor, place: Tensor, mask: Tensor) -> Tensor:
    """(R, L) with `values` (n,) in their places (n,), where `mask` (R, L) is True; 0 elsewhere."""
    return values.new_zeros(mask.numel()).index_copy(0, place, values).view(mask.shape)
