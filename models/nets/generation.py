"""Sampling responses from a causal language model of transformers.

`generate` spends much of its time in bookkeeping at small scale (docs/explanation/performance.md).
On a CPU a loop does one pass a token (`decoding_steps`), the draw and nothing else, and drops
finished rows from the batch as soon as a fifth of it is done. A GPU replays both as CUDA graphs
(`static_steps`), and the host looks at finished rows every so many tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby, islice
from typing import Literal

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from trimtab.models.nets import counts
from trimtab.models.nets.decoding_steps import begin_decoding, padded
from trimtab.models.nets.free_memory import is_strict
from trimtab.models.nets.static_steps import Graphs, StaticSteps, few_launches, has_static_steps

MOST_LIKELY = 256  # tokens looked at first where a nucleus is asked for
_NONE = -1  # in place of a token
# Static steps: tokens after which finished rows are looked for, and by which attention's reach
# grows. Finished rows leave a batch of more than so many where they are half of it, and others have
# so many tokens left: graphs are recorded anew then, for about as long as some twenty steps take.
LOOK_EVERY = 16
STRETCH = 256
FEW_ROWS = 32
FEW_TOKENS = 64
FEW_STEPS = 8  # are not recorded
# How to decode: the loop, static steps, or these as CUDA graphs if the device has any.
Mode = Literal["loop", "eager", "graphs"]


@dataclass(frozen=True)
class Sampling:
    """How to sample: softmax(logits / temperature), nucleus, repetition penalty, length limit.

    instruction: stands behind every prompt that is a text, and is never cut.
    """

    temperature: float
    max_new_tokens: int
    top_p: float = 1.0
    repetition_penalty: float = 1.0
    instruction: str = ""


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
    reported: metrics of vLLM, whose log-probabilities are at temperature 1, and entropies NaN.
    """

    responses: list[list[int]]
    logprobs: Tensor
    entropies: Tensor
    reported: dict[str, Tensor] = field(default_factory=dict)


@torch.no_grad()
def decode(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[list[int]],
    sampling: Sampling,
    draws: Tensor,
    mode: Mode | None = None,
) -> Samples:
    """One sampled response for each of a batch.

    draws: (B, T) uniform in [0, 1), one a token: a response depends on its own only, whatever the
    batch. Prompts are padded on the left. Of equal prompts that follow one another one goes through
    the model, and its cache serves all. mode: None: graphs on a GPU, but the loop where all must be
    deterministic or the model has no static steps.
    """
    if mode is None:
        takes_loop = model.device.type == "cpu" or is_strict() or not has_static_steps(model)
        mode = "loop" if takes_loop else "graphs"
    if mode != "loop":
        are_wanted = mode == "graphs" and sampling.max_new_tokens > FEW_STEPS
        graphs = Graphs(model.device, are_wanted)
        return _decode_statically(model, tokenizer, prompts, sampling, draws, graphs)
    distinct, repeats = _distinct(prompts)
    device = model.device
    rows = _Rows(model, distinct, tokenizer.pad_token_id, sampling.max_new_tokens)
    if len(distinct) < len(prompts):
        rows.select(torch.repeat_interleave(torch.tensor(repeats, device=device)))
    alive = torch.arange(len(prompts), device=device)
    finished = torch.zeros(len(prompts), dtype=torch.bool, device=device)
    tokens = torch.full(draws.shape, _NONE, device=device)
    logprobs, entropies = (torch.zeros(draws.shape, device=device) for _ in range(2))
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
        tokens, mask, position = padded(prompts, pad_id, model.device)
        logits, self.steps = begin_decoding(model, tokens, mask, position, room)
        self.logits = logits.float()
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
        self.logits = self.steps.step(chosen, self.position).float()


def _decode_statically(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[list[int]],
    sampling: Sampling,
    draws: Tensor,
    graphs: Graphs,
) -> Samples:
    """As `decode`, by static steps."""
    rows = _StaticRows(model, tokenizer, prompts, sampling, draws)
    draw: Callable[[], None] = rows.draw
    draw_from_all: Callable[[], None] = partial(rows.draw, from_all=True)
    room, reach = sampling.max_new_tokens, 0
    with few_launches(model):
        for number in range(room):
            if number == 0:
                rows.weigh(rows.steps.first_logits())
            else:
                if rows.steps.width + number > reach:
                    reach = rows.steps.reach(number + STRETCH - 1)
                    advance, draw, draw_from_all = graphs.replayed(
                        partial(rows.advance, reach), rows.draw, partial(rows.draw, from_all=True)
                    )
                advance()
            are_enough, left = True, len(rows.finished)
            if sampling.top_p < 1.0 or number % LOOK_EVERY == 0:
                are_enough, left = rows.status.tolist()  # the host waits for the GPU
            if left == 0:
                break
            (draw if are_enough else draw_from_all)()
            is_half_done = len(rows.finished) > FEW_ROWS and 2 * left <= len(rows.finished)
            if is_half_done and room - number > FEW_TOKENS:
                if rows.drop_finished() == 0:
                    break
                reach = 0
    return rows.samples()


class _StaticRows:
    """Rows under way by static steps, and what has been drawn of them, at fixed addresses.

    What is of every token lies (T, b), as draws, or (T, B) of all rows: `stored`.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        prompts: Sequence[list[int]],
        sampling: Sampling,
        draws: Tensor,
    ) -> None:
        pad_id, end_id, device = tokenizer.pad_token_id, tokenizer.eos_token_id, model.device
        self.sampling, self.end_id = sampling, _NONE if end_id is None else end_id
        distinct, repeats = _distinct(prompts)
        self.steps = StaticSteps(model, distinct, repeats, pad_id, sampling.max_new_tokens)
        self.seen = None
        if sampling.repetition_penalty != 1.0:
            tokens, mask, _ = padded(prompts, pad_id, device)
            self.seen = _seen_tokens(tokens, mask, model.config.vocab_size)
        self.draws = draws.to(device).T.contiguous()
        self.number = torch.zeros(1, dtype=torch.long, device=device)
        self.finished = torch.zeros(len(prompts), dtype=torch.bool, device=device)
        self.rows = torch.arange(len(prompts), device=device)
        tokens = torch.full(self.draws.shape, _NONE, device=device)
        self.stored = (tokens, torch.zeros_like(self.draws), torch.zeros_like(self.draws))
        self.current = tuple(tensor.clone() for tensor in self.stored)

    def advance(self, reach: int) -> None:
        """Process the tokens drawn last, and weigh the next ones."""
        self.weigh(self.steps.step(reach))

    def weigh(self, logits: Tensor) -> None:
        """Probabilities of the next tokens, from logits (b, V).

        status (2,): whether `likely` ones are enough for the nucleus of all rows that have not
        finished, how many these are.
        """
        logits, top_p = logits.float(), self.sampling.top_p
        self.scaled = logits / self.sampling.temperature
        self.probabilities = self.scaled.softmax(-1)
        self.drawn_from = _penalised(logits, self.probabilities, self.seen, self.sampling)
        are_enough = self.finished
        if top_p < 1.0:
            self.likely = _most_likely(self.drawn_from)
            are_enough = self.finished | (self.likely[0].sum(-1) >= top_p)
        self.status = torch.stack([are_enough.all().long(), self.finished.logical_not().sum()])

    def draw(self, from_all: bool = False) -> None:
        """The next token of each row: from the likely ones where a nucleus is asked for, or all."""
        uniform = self.draws.index_select(0, self.number)[0]
        if self.sampling.top_p == 1.0:
            chosen = _hit(_running_sums(self.drawn_from), uniform)
        else:
            candidates = _sorted_by_probability(self.drawn_from) if from_all else self.likely
            chosen = _draw_from_nucleus(*candidates, self.sampling.top_p, uniform)
        drawn = chosen, *_logprobs_and_entropies(self.scaled, self.probabilities, chosen)
        for column, values, nothing in zip(self.current, drawn, (_NONE, 0.0, 0.0), strict=True):
            column.index_copy_(0, self.number, values.masked_fill(self.finished, nothing)[None])
        self.finished.logical_or_(chosen == self.end_id)
        if self.seen is not None:
            self.seen.scatter_(1, chosen[:, None], True)
        self.steps.append(chosen)
        self.number.add_(1)

    def drop_finished(self) -> int:
        """Go on with the rest, at new addresses; returns how many they are."""
        self._keep()
        index = self.finished.logical_not().nonzero()[:, 0]
        self.steps.select(index)
        self.rows, self.finished = self.rows[index], self.finished[index]
        self.draws, *columns = (values[:, index] for values in (self.draws, *self.current))
        self.current = tuple(columns)
        if self.seen is not None:
            self.seen = self.seen[index]
        return len(index)

    def _keep(self) -> None:
        for tensor, current in zip(self.stored, self.current, strict=True):
            tensor.index_copy_(1, self.rows, current)

    def samples(self) -> Samples:
        """What has been drawn of all rows."""
        self._keep()
        tokens, logprobs, entropies = (tensor.T for tensor in self.stored)
        responses = [[token for token in row if token != _NONE] for row in tokens.tolist()]
        return Samples(responses, logprobs, entropies)


def _distinct(prompts: Sequence[list[int]]) -> tuple[list[list[int]], list[int]]:
    """Prompts of which none equals the one before, and how often each is there."""
    groups = [(prompt, len(list(equal))) for prompt, equal in groupby(prompts)]
    return [prompt for prompt, _ in groups], [count for _, count in groups]


def _seen_tokens(tokens: Tensor, mask: Tensor, vocab_size: int) -> Tensor:
    """(B, V) bool: which tokens a row already holds (padding does not count)."""
    seen = torch.zeros(len(tokens), vocab_size + 1, dtype=torch.bool, device=tokens.device)
    return seen.scatter_(1, tokens.masked_fill(mask == 0, vocab_size), True)[:, :vocab_size]


def _choose(probabilities: Tensor, rows: _Rows, sampling: Sampling, draw: Tensor) -> Tensor:
    """The token of each row (B,) that its draw (B,) hits in its probabilities (B, V)."""
    drawn_from = _penalised(rows.logits, probabilities, rows.seen, sampling)
    if sampling.top_p == 1.0:
        return _hit(_running_sums(drawn_from), draw)
    candidates = _most_likely(drawn_from)
    if not bool((candidates[0].sum(-1) >= sampling.top_p).all()):
        candidates = _sorted_by_probability(drawn_from)
    return _draw_from_nucleus(*candidates, sampling.top_p, draw)


def _penalised(
    logits: Tensor, probabilities: Tensor, seen: Tensor | None, sampling: Sampling
) -> Tensor:
    """Probabilities (B, V) in which tokens that a row holds already are less likely."""
    if seen is None or sampling.repetition_penalty == 1.0:
        return probabilities
    penalty = sampling.repetition_penalty
    penalised = torch.where(logits > 0, logits / penalty, logits * penalty)
    return (torch.where(seen, penalised, logits) / sampling.temperature).softmax(-1)


def _draw_from_nucleus(ordered: Tensor, index: Tensor, top_p: float, draw: Tensor) -> Tensor:
    """The token (B,) that a draw (B,) hits in the nucleus of probabilities (B, K) in order."""
    cumulated = _running_sums(ordered)
    last = (cumulated - ordered < top_p).sum(-1) - 1
    return index.gather(1, _hit(cumulated, draw, last)[:, None])[:, 0]


def _running_sums(values: Tensor) -> Tensor:
    """`cumsum` of the last dimension; of floats CUDA has no deterministic one, but the CPU has."""
    return values.cpu().cumsum(-1).to(values.device) if is_strict() else values.cumsum(-1)


def _logprobs_and_entropies(
    logits: Tensor, probabilities: Tensor, tokens: Tensor
) -> tuple[Tensor, Tensor]:
    """Log-probabilities (B,) of tokens and entropies (B,), of logits and their softmax (B, V)."""
    place = tokens[:, None]
    probability = probabilities.gather(1, place)[:, 0]
    # None is left of what is unlikely and was drawn all the same, for what others were penalised.
    logprobs = probability.clamp(min=torch.finfo(probability.dtype).tiny).log()
    log_sum = logits.gather(1, place)[:, 0] - logprobs
    return logprobs, log_sum - torch.linalg.vecdot(probabilities, logits)


def _hit(cumulated: Tensor, draw: Tensor, last: Tensor | None = None) -> Tensor:
    """The place (B,) in which a draw lies of the sums (B, V) up to there, at most the `last`."""
    if last is None:
        last = torch.full_like(draw, cumulated.shape[1] - 1, dtype=torch.long)
    total = cumulated.gather(1, last[:, None])
    hit = torch.searchsorted(cumulated, draw[:, None] * total, right=True)[:, 0]
    return torch.minimum(hit, last)


def _most_likely(probabilities: Tensor) -> tuple[Tensor, Tensor]:
    """The largest of each row (B, V) in order, and their tokens.

    To sort a whole vocabulary takes longer than a small model's pass, and few tokens are likely.
    """
    return probabilities.topk(max(1, min(MOST_LIKELY, probabilities.shape[1] // 4)))


def _sorted_by_probability(probabilities: Tensor) -> tuple[Tensor, Tensor]:
    """Each row (B, V) in order, and its tokens."""
    return probabilities.sort(dim=-1, descending=True)
