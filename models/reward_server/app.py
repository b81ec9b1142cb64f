"""The HTTP side: who may ask, what a body may hold, and the answers.

A request is refused before its body is read where the key is missing or wrong, and where no key is
set, if its Host header names another machine: pages of a browser reach loopback by names of their
own. Overload is 503, which the clients of trainers send again; they take any 4xx for final.
"""

from __future__ import annotations

import asyncio
import base64
import math
import time
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from hmac import compare_digest
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from trimtab.models.reward_server.batching import (
    QueueFullError,
    QueueLimits,
    RewardQueue,
    ScoreError,
)
from trimtab.models.reward_server.ensemble import Ensemble, Text
from trimtab.models.reward_server.formats import (
    RequestError,
    RewardRequest,
    Scored,
    read_request,
)
from trimtab.models.reward_server.metrics import Metrics

# The body says which format it is: any of these takes each.
PATHS = ("/", "/score", "/v1/score", "/classify", "/get_reward", "/remote_rm")
BODY_SECONDS = 60.0
RETRY_SECONDS = 1
CLIENT_GONE = 499  # nginx's; nobody reads it


@dataclass(frozen=True)
class Access:
    """Who may ask: who has the key or, where it is None, who names a host of `hosts`."""

    key: str | None
    hosts: frozenset[str]

    def check(self, request: Request) -> None:
        """Raises RequestError."""
        if self.key is None:
            host = request.url.hostname or ""
            if host not in self.hosts:
                raise RequestError(f"Host: found {host!r}; allowed: {sorted(self.hosts)}", 421)
        elif not compare_digest(_key_of(request).encode(), self.key.encode()):
            raise RequestError(
                "Authorization: found no key, or a wrong one; allowed: Bearer KEY, or http://x:KEY@"
                "host:port as the address",
                401,
            )


def _key_of(request: Request) -> str:
    """What a request has for a key: a Bearer token, or the password of its address."""
    scheme, _, value = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return value.strip()
    try:
        return base64.b64decode(value, validate=True).decode().partition(":")[2]
    except ValueError:
        return ""


class RewardServer:
    """The application's parts. model: the name in vLLM's answers."""

    def __init__(
        self,
        ensemble: Ensemble,
        model: str,
        access: Access,
        queue: QueueLimits,
        max_request_texts: int,
        max_body: int,
    ) -> None:
        self.ensemble, self.model, self.access = ensemble, model, access
        self.max_request_texts, self.max_body = max_request_texts, max_body
        self.metrics = Metrics()
        self.queue = RewardQueue(ensemble.score, queue, self.metrics.observe_batch)
        self._reader = ThreadPoolExecutor(1, "tokenizer")  # which takes one call at a time
        watch = self.metrics.watch
        watch("queue_texts", "Texts that wait", lambda: self.queue.num_texts)
        watch("queue_tokens", "Tokens that wait", lambda: self.queue.num_tokens)
        watch("cut_texts", "Texts so far that lost their beginning", lambda: ensemble.num_cut)

    async def answer(self, request: Request) -> Response:
        """The scores of a request, or one error."""
        started, name, headers = time.perf_counter(), "none", {}
        try:
            self.access.check(request)
            wanted = read_request(await self._body(request), self.model)
            name = wanted.format
            content = wanted.reply(await self._score(request, wanted))
            status = 200
            self.metrics.latency.observe(time.perf_counter() - started)
        except RequestError as error:
            content, status = {"error": str(error)}, error.status
            if status == 401:
                headers["WWW-Authenticate"] = "Bearer"
            reasons = {401: "key", 421: "host", 413: "size"}
            self.metrics.refused.labels(reasons.get(status, "body")).inc()
        except QueueFullError as error:
            content, status = {"error": f"the queue is full: {error}; try again"}, 503
            headers["Retry-After"] = str(RETRY_SECONDS)
            self.metrics.refused.labels("full").inc()
        except (ClientDisconnect, _ClientGoneError):
            content, status = None, CLIENT_GONE
        except ScoreError as error:
            content, status = {"error": str(error)}, 500
        self.metrics.requests.labels(name, status).inc()
        return JSONResponse(content, status, headers)

    async def _body(self, request: Request) -> bytes:
        """Raises RequestError for one that is too large, or does not end.

        One that is too large is read to its end and dropped: its sender then reads the answer.
        """
        body, num_bytes = bytearray(), 0
        try:
            async with asyncio.timeout(BODY_SECONDS):
                async for part in request.stream():
                    num_bytes += len(part)
                    body += part if num_bytes <= self.max_body else b""
        except TimeoutError:
            raise RequestError(
                f"the body: found no end of it in {BODY_SECONDS:.0f} s; allowed: a whole one", 408
            ) from None
        if num_bytes > self.max_body:
            raise RequestError(
                f"the body: found {num_bytes} bytes; allowed: {self.max_body} or fewer", 413
            )
        return bytes(body)

    async def _score(self, request: Request, wanted: RewardRequest) -> Sequence[Scored]:
        count = len(wanted.dialogues)
        if count > self.max_request_texts:
            raise RequestError(
                f"the body: found {count} texts; allowed: {self.max_request_texts} or fewer", 413
            )
        if not count:
            return []
        self.queue.reserve(count)
        try:
            loop = asyncio.get_running_loop()
            texts = await loop.run_in_executor(self._reader, self._read, wanted)
            future = self.queue.submit(texts)
        except BaseException:
            self.queue.release(count)
            raise
        scored = await _unless_gone(request, future)
        for place, (score, *_) in enumerate(scored):
            if not math.isfinite(score):
                raise ScoreError(f"text {place}: the model's score is {score}")
        return scored

    def _read(self, wanted: RewardRequest) -> list[Text]:
        texts = []
        for place, dialogue in enumerate(wanted.dialogues):
            try:
                texts.append(self.ensemble.read(dialogue))
            except RequestError as error:
                raise RequestError(f"text {place}: {error}") from None
        return texts

    async def health(self) -> Response:
        """Whether the model computes: 503 after a batch that failed, until one does not."""
        fault = self.queue.fault or ("" if self.queue.is_alive else "the model's thread has ended")
        return JSONResponse({"status": "failed" if fault else "ok"}, 503 if fault else 200)

    async def ready(self) -> Response:
        """Whether a text would be taken, too."""
        health = await self.health()
        if health.status_code != 200 or self.queue.has_room:
            return health
        return JSONResponse({"status": "full"}, 503)


class _ClientGoneError(Exception):
    """Nobody waits for the answer any more."""


async def _unless_gone(request: Request, future: Future[list[Scored]]) -> Sequence[Scored]:
    """What the future holds, unless the client closes the connection first."""
    scored = asyncio.wrap_future(future)
    gone: Any = asyncio.ensure_future(request.receive())  # behind the body comes only its end
    try:
        await asyncio.wait({scored, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not scored.done():
            raise _ClientGoneError
        return scored.result()
    finally:
        gone.cancel()
        scored.cancel()


def create_app(server: RewardServer) -> FastAPI:
    """The application of a server; its end waits for what is queued."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(server.queue.close)

    app = FastAPI(lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)
    for path in PATHS:
        app.add_api_route(path, server.answer, methods=["POST"], response_model=None)

    async def metrics(request: Request) -> Response:
        server.access.check(request)
        return Response(server.metrics.text(), media_type="text/plain; version=0.0.4")

    app.add_api_route("/health", server.health, response_model=None)
    app.add_api_route("/ready", server.ready, response_model=None)
    app.add_api_route("/metrics", metrics, response_model=None)

    @app.exception_handler(RequestError)
    async def refuse(request: Request, error: Any) -> Response:
        return JSONResponse({"error": str(error)}, error.status)

    @app.exception_handler(HTTPException)
    async def refuse_path(request: Request, error: Any) -> Response:
        paths = f"POST to {', '.join(PATHS)}; GET /health, /ready, /metrics"
        route = f"{request.method} {request.url.path}"
        return JSONResponse({"error": f"found {route}; allowed: {paths}"}, error.status_code)

    return app
