"""Requests and answers of a chat model, in the form of OpenAI's chat completions.

The client and the answers on disk use the same form. It is read strictly here, and not
by the types of the `openai` package, which accept any body.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, astuple, dataclass, replace
from typing import Any, Protocol

# What reading a body of another form raises; OverflowError comes of huge numbers.
_MALFORMED = (
    ValueError,
    KeyError,
    IndexError,
    TypeError,
    AttributeError,
    RecursionError,
    OverflowError,
)
MOST_TOKENS = 2**53  # of one answer; a float is exact up to here


class AnswerError(ValueError):
    """A text that is no answer: unreadable, cut off, or of another form."""


@dataclass(frozen=True)
class Message:
    """One message of a dialogue; `role` is user, assistant or system."""

    role: str
    content: str


@dataclass(frozen=True)
class ChatRequest:
    """One request.

    temperature 0: greedy. top_logprobs 0: no log-probabilities. seed None: none is sent.
    """

    messages: tuple[Message, ...]
    max_tokens: int
    temperature: float = 0.0
    top_logprobs: int = 0
    seed: int | None = None

    def to_json(self) -> dict[str, Any]:
        """The body of a request, without the model's name."""
        return {
            "messages": [asdict(message) for message in self.messages],
            "max_tokens": self.max_tokens,
            "temperature": self.temperature,
            **({"logprobs": True, "top_logprobs": self.top_logprobs} if self.top_logprobs else {}),
            **({} if self.seed is None else {"seed": self.seed}),
        }

    def followed_by(self, *messages: Message, **changes: Any) -> ChatRequest:
        """This request with further messages and other changes."""
        return replace(self, messages=(*self.messages, *messages), **changes)


@dataclass(frozen=True)
class Token:
    """A token of an answer; `top` has the likeliest tokens at its position. Nats."""

    text: str
    logprob: float
    top: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True)
class Usage:
    """Tokens of requests and of answers, as an endpoint bills them."""

    prompt_tokens: int = 0
    completion_tokens: int = 0

    @property
    def total(self) -> int:
        """Tokens of requests and answers together."""
        return self.prompt_tokens + self.completion_tokens

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
        )


@dataclass(frozen=True)
class ChatAnswer:
    """One answer; `usage` is None if the endpoint does not report it."""

    content: str
    usage: Usage | None
    tokens: tuple[Token, ...] = ()
    finish_reason: str = "stop"

    def to_json(self) -> dict[str, Any]:
        """The body of a response, without id and model."""
        choice: dict[str, Any] = {
            "index": 0,
            "message": {"role": "assistant", "content": self.content},
            "finish_reason": self.finish_reason,
            "logprobs": None,
        }
        if self.tokens:
            choice["logprobs"] = {"content": [_token_json(token) for token in self.tokens]}
        body: dict[str, Any] = {"object": "chat.completion", "choices": [choice]}
        if self.usage is not None:
            body["usage"] = {**asdict(self.usage), "total_tokens": self.usage.total}
        return body

    def to_text(self) -> str:
        """The body of a response as a text that `from_text` reads."""
        return json.dumps(self.to_json(), separators=(",", ":"), allow_nan=False)

    @classmethod
    def from_text(cls, text: str) -> ChatAnswer:
        """Read the body of a response. Raises AnswerError."""
        try:
            body = json.loads(text)
            choice = body["choices"][0]
            content = choice["message"]["content"]
            tokens = (choice.get("logprobs") or {}).get("content") or []
            return cls(
                "" if content is None else _text(content),
                _usage_of(body.get("usage")),
                tuple(map(_token_of, tokens)),
                str(choice.get("finish_reason") or "stop"),
            )
        except _MALFORMED as error:
            raise AnswerError(f"not a chat completion ({type(error).__name__}: {error})") from None


class ChatModel(Protocol):
    """Answers requests: an endpoint, a model in this process, or the gold scorer.

    identity: what decides an answer besides the request.
    """

    identity: str

    def answers(
        self, requests: Iterable[tuple[str, ChatRequest]]
    ) -> Iterator[tuple[str, ChatAnswer]]:
        """Answers in any order, each with the name of its request.

        Requests are taken one by one as capacity allows. If one fails, no more are taken, those
        under way are still answered, and then the failure is raised.
        """


def cache_key(identity: str, request: ChatRequest) -> str:
    """sha256, in hex, of a request to the chat model that `identity` names."""
    content = {"to": identity, "request": request.to_json()}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _token_json(token: Token) -> dict[str, Any]:
    return {
        "token": token.text,
        "logprob": token.logprob,
        "top_logprobs": [{"token": text, "logprob": value} for text, value in token.top],
    }


def _token_of(entry: Mapping[str, Any]) -> Token:
    top = ((_text(t["token"]), _logprob(t["logprob"])) for t in entry.get("top_logprobs") or ())
    return Token(_text(entry["token"]), _logprob(entry["logprob"]), tuple(top))


def _text(value: Any) -> str:
    """A text that can be encoded: half a surrogate pair (an emoji cut in two) becomes U+FFFD."""
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a text")
    return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _logprob(value: Any) -> float:
    """A log-probability, at least -9999 (OpenAI's value for very unlikely tokens)."""
    number = float(value)
    if math.isnan(number):
        raise ValueError("a log-probability is NaN")
    return min(0.0, max(-9999.0, number))


def _usage_of(entry: Any) -> Usage | None:
    if entry is None:
        return None
    usage = Usage(entry["prompt_tokens"], entry["completion_tokens"])
    for count in astuple(usage):
        if type(count) is not int or not 0 <= count < MOST_TOKENS:
            raise ValueError(f"usage counts {count!r} tokens")
    return usage
