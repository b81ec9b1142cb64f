"""A chat model in this process: any causal language model of transformers, asked in batches.

Answers of one token, which is all that a verdict needs, come from one pass over packed prompts
without padding; the common prefix of the prompts (the rubric) is computed once. Longer answers are
sampled by the project's decoding loop. If log-probabilities are asked for, one more packed pass
over prompts and answers computes them, from softmax(logits) at any temperature. Up to rounding, an
answer depends on its request alone, because each request has its own random numbers. Text that
looks like a control token is encoded as text.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from itertools import groupby, islice, takewhile
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from trimtab.models.judge.chat import ChatAnswer, ChatRequest, Token, Usage, cache_key
from trimtab.models.nets import counts
from trimtab.models.nets.free_memory import decoding_rows, pass_tokens
from trimtab.models.nets.generation import Sampling, decode, decoding_batches
from trimtab.models.nets.loading import load_base_policy, load_tokenizer
from trimtab.models.nets.packing import Candidates, pack
from trimtab.models.nets.scoring import likeliest_tokens, next_logprobs

# A nucleus that only the likeliest token fits in.
GREEDY_NUCLEUS = 1e-9
# For a tokenizer without a chat template.
PLAIN_TEMPLATE = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


class RequestError(ValueError):
    """A request that is too long for the model."""


class LocalModel:
    """A causal language model and its tokenizer. One thread at a time may use it."""

    def __init__(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, identity: str
    ) -> None:
        self.identity = identity
        self._model, self._tokenizer = model.eval(), tokenizer
        self._context = int(model.config.max_position_embeddings)

    @classmethod
    def load(cls, name: str) -> LocalModel:
        """A packaged model, a folder or a hub id. A folder is identified by its content."""
        folder = Path(name).expanduser()
        identity = _digest(folder) if folder.is_dir() else name
        model = load_base_policy(name, is_frozen=True)
        return cls(model, load_tokenizer(name), f"local {identity}")

    def answers(
        self, requests: Iterable[tuple[str, ChatRequest]]
    ) -> Iterator[tuple[str, ChatAnswer]]:
        """As in `ChatModel`; raises RequestError."""
        waiting = iter(requests)
        while window := list(islice(waiting, counts.REQUESTS_AT_ONCE)):
            window.sort(key=_batch_key)
            for _, alike in groupby(window, key=_batch_key):
                yield from self._answer_alike(list(alike))

    def encode(self, request: ChatRequest) -> list[int]:
        """Token ids of the prompt, up to where the answer begins. Raises RequestError."""
        ids: list[int] = self._tokenizer.apply_chat_template(
            [asdict(message) for message in request.messages],
            chat_template=self._tokenizer.chat_template or PLAIN_TEMPLATE,
            add_generation_prompt=True,
            sanitize_control_tokens=True,
            return_dict=False,
        )
        if len(ids) + request.max_tokens > self._context:
            raise RequestError(
                f"the request has {len(ids)} tokens and its answer up to {request.max_tokens}, "
                f"together more than the model takes ({self._context}): lower max_characters, or "
                "use a model with a longer context"
            )
        return ids

    def _answer_alike(
        self, named: Sequence[tuple[str, ChatRequest]]
    ) -> Iterator[tuple[str, ChatAnswer]]:
        """Answers to requests that differ only in messages and seed."""
        form = named[0][1]
        prompts = [self.encode(request) for _, request in named]
        is_one_token = form.max_tokens == 1 and form.temperature == 0
        longest = max(map(len, prompts)) + form.max_tokens
        rows = decoding_rows(self._model, longest)
        limit = counts.CACHE_TOKENS if rows is None else rows * longest
        if is_one_token:
            limit = pass_tokens(self._model.device)
        for batch in decoding_batches(prompts, form.max_tokens, limit, at_least=1):
            texts = [prompts[index] for index in batch]
            if is_one_token:
                answers = self._likeliest(texts, form.top_logprobs)
            else:
                answers = self._sampled(texts, form, [named[index][1] for index in batch])
            for index, (ids, tokens) in zip(batch, answers, strict=True):
                content = self._tokenizer.decode(ids, skip_special_tokens=True)
                usage = Usage(len(prompts[index]), len(ids))
                reason = "stop" if ids[-1] == self._tokenizer.eos_token_id else "length"
                yield named[index][0], ChatAnswer(content, usage, tokens, reason)

    def _likeliest(
        self, prompts: Sequence[list[int]], count: int
    ) -> list[tuple[list[int], tuple[Token, ...]]]:
        """The likeliest token after each prompt. Their common prefix is computed once."""
        logprobs = next_logprobs(self._model, pack(_with_common_prefix(prompts)))
        top, ids = logprobs.topk(max(1, count))
        tokens = self._tokens(ids[:, 0], top[:, 0], top, ids) if count else ()
        return [([token], tokens[row : row + 1]) for row, token in enumerate(ids[:, 0].tolist())]

    def _sampled(
        self, prompts: Sequence[list[int]], form: ChatRequest, requests: Sequence[ChatRequest]
    ) -> list[tuple[list[int], tuple[Token, ...]]]:
        """A sampled or, at temperature 0, the greedy response to each prompt."""
        if form.temperature == 0:
            sampling = Sampling(1.0, form.max_tokens, top_p=GREEDY_NUCLEUS)
        else:
            sampling = Sampling(form.temperature, form.max_tokens)
        draws = torch.stack([self._draws(request) for request in requests])
        device = self._model.device
        ids = decode(self._model, self._tokenizer, prompts, sampling, draws.to(device)).responses
        if not form.top_logprobs:
            return [(response, ()) for response in ids]
        batch = pack([Candidates(p, (r,)) for p, r in zip(prompts, ids, strict=True)])
        logprobs, top, likeliest = likeliest_tokens(self._model, batch, form.top_logprobs)
        chosen = torch.tensor([token for response in ids for token in response])
        tokens = iter(self._tokens(chosen, logprobs, top, likeliest))
        return [(response, tuple(islice(tokens, len(response)))) for response in ids]

    def _draws(self, request: ChatRequest) -> Tensor:
        """Random numbers (T,) in [0, 1), which depend on the request alone."""
        seed = int(cache_key(self.identity, request)[:15], 16)
        generator = torch.Generator("cpu").manual_seed(seed)
        return torch.rand(request.max_tokens, generator=generator, device="cpu")

    def _tokens(
        self, chosen: Tensor, logprobs: Tensor, top: Tensor, ids: Tensor
    ) -> tuple[Token, ...]:
        """N tokens from ids (N,), log-probabilities (N,), and the K likeliest of each (N, K)."""
        texts = {i: self._tokenizer.decode([i]) for i in {*chosen.tolist(), *ids.ravel().tolist()}}
        rows = zip(chosen.tolist(), logprobs.tolist(), top.tolist(), ids.tolist(), strict=True)
        return tuple(
            Token(texts[token], value, tuple(zip((texts[i] for i in others), values, strict=True)))
            for token, value, values, others in rows
        )


def _with_common_prefix(prompts: Sequence[list[int]]) -> list[Candidates]:
    """Prompts as responses to their common prefix, in one row; one row each without a prefix."""
    first, last = min(prompts), max(prompts)  # the prefix of these two is that of all
    both = zip(first, last, strict=False)
    shared = [token for token, _ in takewhile(lambda pair: pair[0] == pair[1], both)]
    shared = shared[: min(map(len, prompts)) - 1]
    if not shared:
        return [Candidates(prompt[:-1], (prompt[-1:],)) for prompt in prompts]
    return [Candidates(shared, tuple(prompt[len(shared) :] for prompt in prompts))]


def _batch_key(named: tuple[str, ChatRequest]) -> tuple[int, float, int]:
    """What the requests of one batch must have in common."""
    _, request = named
    return request.max_tokens, request.temperature, request.top_logprobs


def _digest(folder: Path) -> str:
    """sha256 over the names and contents of a folder's files."""
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        with path.open("rb") as stream:
            content = hashlib.file_digest(stream, "sha256").hexdigest()
        digest.update(f"{path.relative_to(folder)}\0{content}\n".encode())
    return digest.hexdigest()
