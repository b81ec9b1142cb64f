"""Servers over HTTP (`Server`); a judge behind an OpenAI-compatible endpoint (`Endpoint`).

The transport is httpx and not the `openai` client, which reads an answer without a limit of time
or size, accepts malformed answers, and sends OPENAI_ORG_ID and the platform to any address. The
loop over attempts is plain, because tenacity knows no Retry-After and no gate, and with its hooks
the loop takes twice the lines.

Each attempt reserves the most that it can use in the budget. A failure that may pass is tried
again after the endpoint's Retry-After, else after a wait that doubles. While an endpoint is
overloaded, all requests wait at one gate.

The key is read from the environment when a client is made. It goes into one header, and is cut out
of all that the endpoint sends back. Redirects are not followed, so no other server gets it. In a
confined run the address is checked before each request (`trimtab.models.judge.addresses`).
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import random
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar

import httpx

from trimtab.models.config.judge import EndpointConfig, ServerConfig
from trimtab.models.judge.addresses import AddressError, checked_address, is_confined
from trimtab.models.judge.budget import Budget, worst_case
from trimtab.models.judge.chat import AnswerError, ChatAnswer, ChatRequest, Usage

# Of requests: their names, what they ask, and the answers.
K = TypeVar("K")
R = TypeVar("R")
A = TypeVar("A")

logger = logging.getLogger(__name__)
# Its debug lines hold the headers that come back.
logging.getLogger("httpcore").setLevel(logging.INFO)

MAX_BODY_BYTES = 16 << 20
MAX_QUOTED = 300
HIDDEN = "[key]"
# A shorter value is what people give to servers that need no key ("EMPTY"), and may be a word.
MIN_KEY_LENGTH = 8

RETRIED_STATUS = frozenset({408, 409, 429})
# From a gateway: the model behind it may have answered, and the answer may be billed.
UNKNOWN_STATUS = frozenset({408, 502, 504, 520, 524})
# About the endpoint as a whole: all requests wait.
OVERLOAD_STATUS = frozenset({429, 503})


class EndpointError(ValueError):
    """The endpoint refuses a request, or gives no answer in all attempts."""


class AbandonedError(Exception):
    """The caller no longer waits for the answer."""


@dataclass(eq=False)
class AttemptError(Exception):
    """One attempt without an answer.

    retry_after: seconds that the endpoint asks to wait. is_final: another attempt would fail alike.
    is_overload: other requests must wait too. may_be_billed: the endpoint may have done the work.
    """

    message: str
    retry_after: float | None = None
    is_final: bool = False
    is_overload: bool = False
    may_be_billed: bool = False


class Server:
    """Asks a server, several requests at once. One thread at a time may use it.

    num_retries: attempts that were repeated.
    """

    def __init__(self, config: ServerConfig, url: str, model: str | None) -> None:
        """model: its name in messages, if the server has several.

        Raises EndpointError if the key cannot be sent in a header.
        """
        self.num_retries = 0
        self._counting = threading.Lock()
        self._config, self._url = config, url
        self._asked = f"{url} ({model})" if model else url
        self._key = _read_key(config.key_variable)
        self._spellings = _spellings(self._key) if len(self._key) >= MIN_KEY_LENGTH else None
        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        self._client = httpx.Client(
            headers={**headers, "Content-Type": "application/json"},
            limits=httpx.Limits(max_connections=config.max_concurrency),
        )

    def ask_all(
        self,
        requests: Iterable[tuple[K, R]],
        ask: Callable[[R, Gate], A],
    ) -> Iterator[tuple[K, A]]:
        """Each request's name with its answer, in the order in which they come.

        ask: one attempt at a request, which raises AttemptError where another may succeed; it calls
        `Gate.check` first. Raises EndpointError, and what else `ask` raises.
        """
        gate = Gate()
        pool = ThreadPoolExecutor(self._config.max_concurrency, thread_name_prefix="judge")
        waiting = iter(requests)
        running: dict[Future[A], K] = {}
        failure: BaseException | None = None
        try:
            while True:
                room = 0 if failure else self._config.max_concurrency - len(running)
                for name, request in itertools.islice(waiting, room):
                    running[pool.submit(self._try, request, ask, gate)] = name
                if not running:
                    break
                for done in wait(running, return_when=FIRST_COMPLETED).done:
                    name = running.pop(done)
                    error = done.exception()
                    if error is None:
                        yield name, done.result()
                    failure = failure or error
        finally:
            gate.abandon()
            pool.shutdown(wait=False, cancel_futures=True)
        if failure is not None:
            raise failure

    def _try(self, request: R, ask: Callable[[R, Gate], A], gate: Gate) -> A:
        """The answer of the first attempt that has one; raises EndpointError if none may."""
        config = self._config
        attempt = 0
        while True:
            attempt += 1
            try:
                return ask(request, gate)
            except AttemptError as error:
                failure = error
            if failure.is_final or attempt > config.max_retries:
                attempts = f" ({attempt} attempts)" if attempt > 1 else ""
                raise EndpointError(failure.message + attempts)
            pause = backoff(attempt, config.first_wait_seconds, config.max_wait_seconds)
            pause = max(pause, failure.retry_after or 0.0)
            logger.warning("%s; next attempt in %.1f s", failure.message, pause)
            with self._counting:
                self.num_retries += 1
            if failure.is_overload:
                gate.close_for(pause)
            gate.pause(pause)

    def post(self, content: bytes, read: Callable[[str], A]) -> A:
        """Post once, and what `read` makes of the answer's text; it raises AnswerError for no
        answer. Raises AttemptError."""
        try:
            status, headers, text = self._request(
                "POST", self._url, self._config.timeout_seconds, content
            )
        except (httpx.InvalidURL, UnicodeError) as error:  # a name that no machine can have
            raise self._failure(f"no address ({_name(error)})", is_final=True) from None
        except AddressError as error:
            raise self._failure(f"the address is not allowed: {error}", is_final=True) from None
        except (OSError, httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
            raise self._failure(f"no connection ({_name(error)})") from None
        except httpx.RequestError as error:
            raise self._failure(f"no answer ({_name(error)})", may_be_billed=True) from None
        if status != 200:
            raise self._refusal(status, headers.get("retry-after"), text)
        try:
            return read(text)
        except AnswerError as error:
            raise self._failure(f"{error}: {_quoted(text)}", may_be_billed=True) from None

    def _refusal(self, status: int, header: str | None, text: str) -> AttemptError:
        config, seconds = self._config, retry_after(header)
        problem = f"status {status}: {_quoted(_message_of(text))}"
        is_too_long = seconds is not None and seconds > config.max_wait_seconds
        if status in (401, 403):
            problem += f"; the key comes from ${config.key_variable}, which "
            problem += "is set" if self._key else "is not set"
        elif is_retried(status) and is_too_long:
            problem += (
                f"; it asks to wait {seconds:g} s, and max_wait_seconds is "
                f"{config.max_wait_seconds:g}: run the same again later, and only the rest is asked"
            )
        return self._failure(
            problem,
            retry_after=seconds,
            is_final=is_too_long or not is_retried(status),
            is_overload=status in OVERLOAD_STATUS,
            may_be_billed=status in UNKNOWN_STATUS,
        )

    def _request(
        self, method: str, url: str, seconds: float, content: bytes | None = None
    ) -> tuple[int, httpx.Headers, str]:
        """Status, headers and body. All of the body must come before one deadline.

        Raises httpx.RequestError, AddressError, and OSError for a name that has no address.
        """
        deadline = time.monotonic() + seconds
        parts, size = [], 0
        with self._client.stream(
            method, content=content, timeout=seconds, **self._address(url)
        ) as response:
            for part in response.iter_bytes():
                parts.append(part)
                size += len(part)
                if time.monotonic() > deadline:
                    raise httpx.ReadTimeout("the answer was not complete in time")
                if size > MAX_BODY_BYTES:
                    raise httpx.ReadError(f"the answer is longer than {MAX_BODY_BYTES} bytes")
            text = b"".join(parts).decode(errors="replace")
            return response.status_code, response.headers, self._hide_key(text)

    def _address(self, address: str) -> dict[str, Any]:
        """An address as httpx takes it; the certificate must be that of the name."""
        if not is_confined():
            return {"url": address}
        url = httpx.URL(address)
        port = url.port or {"http": 80, "https": 443}[url.scheme]
        return {
            "url": url.copy_with(host=checked_address(url.host, port)),
            "headers": {"Host": url.netloc.decode()},
            "extensions": {"sni_hostname": url.host},
        }

    def _failure(self, problem: str, **more: Any) -> AttemptError:
        message = f"{self._asked}: {problem}"
        return AttemptError(self._hide_key(message), **more)

    def _hide_key(self, text: str) -> str:
        return self._spellings.sub(HIDDEN, text) if self._spellings else text


class Endpoint(Server):
    """Asks an OpenAI-compatible endpoint.

    num_retries: attempts that were repeated.
    """

    _config: EndpointConfig

    def __init__(self, config: EndpointConfig, budget: Budget) -> None:
        """Raises EndpointError if the key cannot be sent in a header."""
        super().__init__(config, f"{config.base_url}/chat/completions", config.model)
        self.identity = f"{config.base_url} {config.model}"
        self._budget = budget

    def answers(
        self, requests: Iterable[tuple[str, ChatRequest]]
    ) -> Iterator[tuple[str, ChatAnswer]]:
        """As in `ChatModel`; raises EndpointError or BudgetError."""
        return self.ask_all(requests, self._answer)

    def _answer(self, request: ChatRequest, gate: Gate) -> ChatAnswer:
        """Ask once. Raises AttemptError, AbandonedError, and BudgetError."""
        config, most = self._config, worst_case(request)
        body = {"model": config.model, **request.to_json()}
        body[config.limit_field] = body.pop("max_tokens")
        content = json.dumps(body, allow_nan=False).encode()
        reserved = self._budget.reserve(most)
        used = Usage()
        try:
            gate.check()
            used = most
            answer = self.post(content, ChatAnswer.from_text)
            used = answer.usage or most
            return replace(answer, usage=used)
        except AttemptError as error:
            used = most if error.may_be_billed else Usage()
            raise
        finally:
            self._budget.settle(reserved, used)

    def models(self, seconds: float) -> list[str] | None:
        """The names of the models that the endpoint lists; None where it lists none in this time.

        seconds: the longest wait for a connection, and for the list. Raises EndpointError where
        nobody answers at the address, there are no chat completions, or the key is refused.
        """
        address = self._config.base_url
        status, text = self._look("GET", f"{address}/models", seconds)
        if status in (401, 403):
            raise EndpointError(self._refusal(status, None, text).message)
        # An empty request is refused in other words, and costs nothing.
        if status == 404 and self._look("POST", self._url, seconds, b"{}")[0] == 404:
            is_above = self._look("GET", f"{address}/v1/models", seconds)[0] == 200
            hint = f"; {address}/v1 has some" if is_above else ""
            raise EndpointError(f"{address}: found no chat completions there{hint}")
        try:
            return [str(model["id"]) for model in json.loads(text)["data"]]
        except (ValueError, KeyError, TypeError):
            return None

    def _look(
        self, method: str, url: str, seconds: float, content: bytes | None = None
    ) -> tuple[int | None, str]:
        try:
            status, _, text = self._request(method, url, seconds, content)
            return status, text
        except httpx.ReadTimeout:
            return None, ""
        except (httpx.InvalidURL, httpx.RequestError, OSError, ValueError) as error:
            raise EndpointError(self._hide_key(f"{url}: no answer ({_name(error)})")) from None


class Gate:
    """Where the requests of one caller wait while the endpoint is overloaded. Thread-safe."""

    def __init__(self) -> None:
        self._opens_at = 0.0
        self._closing = threading.Lock()
        self._is_abandoned = threading.Event()

    def close_for(self, seconds: float) -> None:
        """Let no request through for so long."""
        opens_at = time.monotonic() + seconds
        with self._closing:
            self._opens_at = max(self._opens_at, opens_at)

    def abandon(self) -> None:
        """Tell all requests that the caller no longer waits."""
        self._is_abandoned.set()

    def pause(self, seconds: float) -> None:
        """Sleep so long, or until the caller no longer waits."""
        self._is_abandoned.wait(seconds)

    def check(self) -> None:
        """Wait until the gate is open. Raises AbandonedError."""
        while (left := self._opens_at - time.monotonic()) > 0 and not self._is_abandoned.is_set():
            self._is_abandoned.wait(left)
        if self._is_abandoned.is_set():
            raise AbandonedError


def backoff(attempt: int, first: float, longest: float) -> float:
    """Seconds to wait after attempt 1, 2, ...: doubles up to `longest`; half of it is random.

    The random half keeps requests that failed together from coming back together.
    """
    return min(longest, first * 2.0 ** min(attempt - 1, 60)) * random.uniform(0.5, 1.0)


def is_retried(status: int) -> bool:
    """Whether a later attempt may succeed: time-out, conflict, overload, error of the server."""
    return status in RETRIED_STATUS or status >= 500


def retry_after(value: str | None, now: datetime | None = None) -> float | None:
    """Seconds that a Retry-After header asks for, as a number or a date; None without a header.

    None also if it asks for no wait, as a date does where clocks differ: without waits all
    attempts would be used up at once.
    """
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            date = parsedate_to_datetime(value)
        except (ValueError, OverflowError):
            return None
        date = date if date.tzinfo else date.replace(tzinfo=UTC)
        seconds = (date - (now or datetime.now(UTC))).total_seconds()
    return seconds if seconds > 0 else None


def _read_key(variable: str) -> str:
    """The key, or "" if the variable is not set. The message shows no part of it."""
    key = os.environ.get(variable, "").strip()
    if not key.isascii() or not key.isprintable() or " " in key:
        raise EndpointError(
            f"${variable} holds characters that no key has: printable ASCII without spaces is "
            "allowed; check how it was set"
        )
    return key


def _spellings(key: str) -> re.Pattern[str]:
    """The key as JSON or an address may write it, character by character.

    PHP writes a backslash before a slash, .NET a number for a plus.
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
    """The message in the body of an error, in OpenAI's form or any other."""
    try:
        body: Any = json.loads(text)
        return str(body["error"]["message"])
    except (ValueError, KeyError, TypeError, IndexError):
        return text
