"""Serves a local model at an OpenAI-compatible address, so that a judge needs no internet.

    python -m trimtab.models.judge.serve --model FOLDER --port 8000

FastAPI checks the requests, uvicorn speaks HTTP, and one thread asks the model: requests that
arrive while the model works are answered together in its next batch. The server has neither
authentication nor encryption; it listens on loopback unless `--host` names another address.
(`transformers serve` gives no log-probabilities.)
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import queue
import socket
import sys
import threading
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from typing import Any, Literal

import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException

from trimtab.models import chunk_sizes
from trimtab.models.judge.chat import ChatAnswer, ChatModel, ChatRequest, Message
from trimtab.models.judge.local import LocalModel

HOST = "127.0.0.1"
MAX_BODY_BYTES = 16 << 20
DEFAULT_TOKENS = 256


class MessageBody(BaseModel):
    """One message of a dialogue."""

    role: str
    content: str


class ChatBody(BaseModel):
    """The body of a request. A field that the server would ignore is refused."""

    model_config = ConfigDict(extra="forbid")

    model: str = ""
    messages: list[MessageBody] = Field(min_length=1)
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    temperature: float = Field(1.0, ge=0, le=2)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=20)
    seed: int | None = None
    n: Literal[1] | None = None
    stream: Literal[False] | None = None

    def to_request(self) -> ChatRequest:
        """The request as a chat model takes it."""
        return ChatRequest(
            tuple(Message(message.role, message.content) for message in self.messages),
            max_tokens=self.max_tokens or self.max_completion_tokens or DEFAULT_TOKENS,
            temperature=self.temperature,
            top_logprobs=(self.top_logprobs or 1) if self.logprobs else 0,
            seed=self.seed,
        )


class _Batcher:
    """Answers requests of many threads with one model, in batches, in a thread of its own."""

    def __init__(self, model: ChatModel) -> None:
        self._model = model
        self._waiting: queue.Queue[tuple[ChatRequest, Future[ChatAnswer]]] = queue.Queue()
        threading.Thread(target=self._work, name="judge-model", daemon=True).start()

    def submit(self, request: ChatRequest) -> Future[ChatAnswer]:
        """The answer, or what the model raises, as soon as the model has worked on the request."""
        future: Future[ChatAnswer] = Future()
        self._waiting.put((request, future))
        return future

    def _work(self) -> None:
        while True:
            batch = [self._waiting.get()]
            while len(batch) < chunk_sizes.REQUESTS_AT_ONCE and not self._waiting.empty():
                batch.append(self._waiting.get())
            self._answer([item for item in batch if item[1].set_running_or_notify_cancel()])

    def _answer(self, batch: Sequence[tuple[ChatRequest, Future[ChatAnswer]]]) -> None:
        try:
            named = [(str(number), request) for number, (request, _) in enumerate(batch)]
            for name, answer in self._model.answers(named):
                batch[int(name)][1].set_result(answer)
        except Exception as error:
            for item in batch:
                if item[1].done():
                    continue
                if len(batch) == 1:
                    item[1].set_exception(error)
                else:  # a request that cannot be answered must not fail the others
                    self._answer([item])


def create_app(model: ChatModel, name: str) -> FastAPI:
    """The application that serves a chat model under a name."""
    batcher = _Batcher(model)
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)

    @app.get("/v1/models")
    async def list_models() -> dict[str, Any]:
        return {"object": "list", "data": [{"id": name, "object": "model", "owned_by": "local"}]}

    @app.post("/v1/chat/completions")
    async def complete(body: ChatBody) -> dict[str, Any]:
        answer = await asyncio.wrap_future(batcher.submit(body.to_request()))
        return {"model": name, **answer.to_json()}

    @app.middleware("http")
    async def limit_body(
        request: Request, call_next: Callable[[Request], Awaitable[Response]]
    ) -> Response:
        length = request.headers.get("content-length", "")
        if request.method == "POST" and not (length.isdecimal() and int(length) <= MAX_BODY_BYTES):
            return _refusal(413, f"Content-Length must be a number up to {MAX_BODY_BYTES}")
        return await call_next(request)

    @app.exception_handler(RequestValidationError)
    async def explain(_: Request, error: RequestValidationError) -> Response:
        found = (f"{'.'.join(map(str, e['loc'][1:]))}: {e['msg']}" for e in error.errors())
        return _refusal(400, f"not a chat request: {'; '.join(found)}")

    @app.exception_handler(HTTPException)
    async def refuse(request: Request, error: HTTPException) -> Response:
        return _refusal(error.status_code, f"{request.method} {request.url.path}: {error.detail}")

    @app.exception_handler(ValueError)
    async def cannot_answer(_: Request, error: ValueError) -> Response:
        return _refusal(400, str(error))

    @app.exception_handler(Exception)
    async def model_failed(_: Request, error: Exception) -> Response:
        return _refusal(500, f"the model failed: {type(error).__name__}")

    return app


def _refusal(status: int, message: str) -> JSONResponse:
    error = {"message": message, "type": "invalid_request_error"}
    return JSONResponse({"error": error}, status)


class JudgeServer(uvicorn.Server):
    """Serves an application at `url`; `serve_forever` returns after `should_exit` is set."""

    def __init__(self, app: FastAPI, host: str = HOST, port: int = 0) -> None:
        """Port 0 takes a free port."""
        super().__init__(uvicorn.Config(app, log_config=None))
        self._socket = socket.create_server((host, port))
        self.url = f"http://{host}:{self._socket.getsockname()[1]}/v1"

    def serve_forever(self) -> None:
        """Serve in this thread; in the main thread, SIGINT ends it with KeyboardInterrupt."""
        self.run(sockets=[self._socket])


def main(argv: Sequence[str] | None = None) -> None:
    """Load the model and serve it until interrupted."""
    parser = argparse.ArgumentParser(prog="python -m trimtab.models.judge.serve")
    parser.add_argument("--model", required=True, help="packaged model, folder or hub id")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--host", default=HOST, help="address to listen on (default: loopback)")
    options = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO)
    app = create_app(LocalModel.load(options.model), options.model)
    server = JudgeServer(app, options.host, options.port)
    print(f"serving {options.model} at {server.url}", flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        sys.exit(0)


if __name__ == "__main__":
    main()
