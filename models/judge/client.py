"""A judge behind an OpenAI-compatible endpoint: POST <base_url>/chat/completions.

Over httpx, which transformers and Prefect bring along, and not the `openai` package: all that is
needed of it is one POST, it is a dependency more, and it tries again by itself, where the budget
would not see what the further tries may cost.

The key is read from the environment when a client is made, goes into one header, and is cut out of
whatever the endpoint sends back. Redirects are not followed: nobody else gets it. In a run that a
worker took, the name's address is checked before each request (`models.judge.addresses`).
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import re
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from typing import Any

import httpx

from models.config.judge import EndpointConfig
from models.judge.addresses import AddressError, checked_address, is_confined
from models.judge.budget import Budget, worst_case
from models.judge.chat import AnswerError, ChatAnswer, ChatRequest, Usage
from models.judge.retries import (
    BUSY_STATUS,
    UNKNOWN_STATUS,
    Gate,
    backoff,
    is_retried,
    retry_after,
)

logger = logging.getLogger(__name__)
# Its lines for debugging hold whatever headers come back.
logging.getLogger("httpcore").setLevel(logging.INFO)

MAX_BODY_BYTES = 16 << 20
MAX_QUOTED = 300
HIDDEN = "[key]"
# A shorter one is what people give to servers that want none ("EMPTY"), and may be a word.
MIN_KEY_LENGTH = 8


class EndpointError(ValueError):
    """The endpoint refuses, or gives no answer however often it is asked."""


@dataclass(frozen=True)
class _Failure:
    """A try without an answer.

    wait: what the endpoint asks for, in seconds. is_final: another try is of no use. is_busy:
    others had better wait too. may_be_billed: nobody knows whether the endpoint did the work.
    """

    message: str
    wait: float | None = None
    is_final: bool = False
    is_busy: bool = False
    may_be_billed: bool = False


class Endpoint:
    """Asks an endpoint, several requests at once. Used by one thread at a time.

    num_retries counts tries that had to be repeated.
    """

    def __init__(self, config: EndpointConfig, budget: Budget) -> None:
        """Raises EndpointError where the key cannot be sent in a header."""
        self.identity = f"{config.base_url} {config.model}"
        self.num_retries = 0
        self._counting = threading.Lock()
        self._config, self._budget = config, budget
        self._url = f"{config.base_url}/chat/completions"
        self._key = _read_key(config.key_variable)
        self._spellings = _spellings(self._key) if len(self._key) >= MIN_KEY_LENGTH else None
        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        limits = httpx.Limits(max_connections=config.max_concurrency)
        self._client = httpx.Client(
            headers={**headers, "Content-Type": "application/json"},
            timeout=config.timeout_seconds,
            limits=limits,
        )

    def answers(
        self, requests: Iterable[tuple[str, ChatRequest]]
    ) -> Iterator[tuple[str, ChatAnswer]]:
        """As in `ChatModel`; raises EndpointError or BudgetError."""
        gate = Gate()
        pool = ThreadPoolExecutor(self._config.max_concurrency, thread_name_prefix="judge")
        waiting = iter(requests)
        running: dict[Future[ChatAnswer], str] = {}
        failure: BaseException | None = None
        try:
            while True:
                room = 0 if failure else self._config.max_concurrency - len(running)
                for name, request in itertools.islice(waiting, room):
                    running[pool.submit(self._answer, request, gate)] = name
                if not running:
                    break
                for done in wait(running, return_when=FIRST_COMPLETED).done:
                    name = running.pop(done)
                    error = done.exception()
                    if error is None:
                        yield name, done.result()
                    failure = failure or error
        finally:
            gate.give_up()
            pool.shutdown(wait=False, cancel_futures=True)
        if failure is not None:
            raise failure

    def _answer(self, request: ChatRequest, gate: Gate) -> ChatAnswer:
        """Ask until there is an answer, another try is of no use, or there were enough."""
        config, most = self._config, worst_case(request)
        body = {"model": config.model, **request.to_json()}
        body[config.limit_field] = body.pop("max_tokens")
        content = json.dumps(body, allow_nan=False).encode()
        for attempt in itertools.count():
            held = self._budget.hold(most)
            came_to = Usage()
            try:
                gate.check()
                came_to = most
                found = self._try_once(content)
                if isinstance(found, ChatAnswer):
                    came_to = found.usage or most
                    return replace(found, usage=came_to)
                came_to = most if found.may_be_billed else Usage()
            finally:
                self._budget.settle(held, came_to)
            pause = self._pause(found, attempt)
            logger.warning("judge: %s; again in %.1f s", found.message, pause)
            with self._counting:
                self.num_retries += 1
            if found.is_busy:
                gate.close_for(pause)
            gate.wait(pause)
        raise AssertionError("unreachable")

    def _pause(self, failure: _Failure, attempt: int) -> float:
        """Seconds before another try; raises EndpointError where there is none."""
        config = self._config
        tries = f" ({attempt + 1} tries)" if attempt else ""
        if failure.is_final or attempt == config.max_retries:
            raise EndpointError(failure.message + tries)
        if failure.wait is None:
            return backoff(attempt, config.first_wait_seconds, config.max_wait_seconds)
        if failure.wait > config.max_wait_seconds:
            raise EndpointError(
                f"{failure.message}; it asks to wait {failure.wait:g} s, and max_wait_seconds is "
                f"{config.max_wait_seconds:g}: run the same again later, and only the rest is asked"
            )
        return failure.wait

    def _try_once(self, content: bytes) -> ChatAnswer | _Failure:
        try:
            status, headers, text = self._post(content)
        except (httpx.InvalidURL, UnicodeError) as error:  # of a name that no machine can have
            return _Failure(self._said(f"no address ({_name(error)})"), is_final=True)
        except AddressError as error:
            return _Failure(self._said(f"no judge may be there: {error}"), is_final=True)
        except (OSError, httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
            return _Failure(self._said(f"no connection ({_name(error)})"))
        except httpx.RequestError as error:
            return _Failure(self._said(f"no answer ({_name(error)})"), may_be_billed=True)
        if status == 200:
            try:
                return ChatAnswer.from_text(text)
            except AnswerError as error:
                return _Failure(self._said(f"{error}: {_quoted(text)}"), may_be_billed=True)
        said = self._said(f"status {status}: {_quoted(_message_of(text))}")
        if status in (401, 403):
            there = "is set" if self._key else "is not set"
            said += f"; the key comes from ${self._config.key_variable}, which {there}"
        return _Failure(
            said,
            wait=retry_after(headers.get("retry-after")),
            is_final=not is_retried(status),
            is_busy=status in BUSY_STATUS,
            may_be_billed=status in UNKNOWN_STATUS,
        )

    def _post(self, content: bytes) -> tuple[int, httpx.Headers, str]:
        """Status, headers and body; it is read piece by piece, as one may come at a time for ever.

        Raises httpx.RequestError, AddressError, and OSError for a name that has no address.
        """
        deadline = time.monotonic() + self._config.timeout_seconds
        parts, size = [], 0
        where = self._where()
        with self._client.stream("POST", content=content, **where) as response:
            for part in response.iter_bytes():
                parts.append(part)
                size += len(part)
                if time.monotonic() > deadline:
                    raise httpx.ReadTimeout("the answer was not complete in time")
                if size > MAX_BODY_BYTES:
                    raise httpx.ReadError(f"the answer is longer than {MAX_BODY_BYTES} bytes")
            text = b"".join(parts).decode(errors="replace")
            return response.status_code, response.headers, self._without_key(text)

    def _where(self) -> dict[str, Any]:
        """The address to ask, as httpx takes it; the server's certificate is still the name's."""
        if not is_confined():
            return {"url": self._url}
        url = httpx.URL(self._url)
        port = url.port or {"http": 80, "https": 443}[url.scheme]
        return {
            "url": url.copy_with(host=checked_address(url.host, port)),
            "headers": {"Host": url.netloc.decode()},
            "extensions": {"sni_hostname": url.host},
        }

    def _said(self, what: str) -> str:
        return self._without_key(f"{self._url} ({self._config.model}): {what}")

    def _without_key(self, text: str) -> str:
        return self._spellings.sub(HIDDEN, text) if self._spellings else text


def _read_key(variable: str) -> str:
    """The key, "" where the variable is not set; no message shows any of it."""
    key = os.environ.get(variable, "").strip()
    if not key.isascii() or not key.isprintable() or " " in key:
        raise EndpointError(
            f"${variable} holds characters that no key has: printable ASCII without spaces is "
            "allowed; check how it was set"
        )
    return key


def _spellings(key: str) -> re.Pattern[str]:
    """The key as JSON may write it, and as addresses do, character by character.

    PHP has a backslash before a slash, .NET a number for a plus.
    """
    ways = (rf"(?:\\?{re.escape(c)}|(?i:\\u{ord(c):04x}|%{ord(c):02x}))" for c in key)
    return re.compile("".join(ways))


def _name(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _quoted(text: str) -> str:
    """The beginning of a text on one line."""
    line = " ".join(text.split())
    return line if len(line) <= MAX_QUOTED else f"{line[:MAX_QUOTED]}..."


def _message_of(text: str) -> str:
    """What an error's body says, in OpenAI's form or any other."""
    try:
        body: Any = json.loads(text)
        return str(body["error"]["message"])
    except (ValueError, KeyError, TypeError, IndexError):
        return text
