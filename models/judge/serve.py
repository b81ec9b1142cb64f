"""A local model behind an OpenAI-compatible address, for judging offline.

    python -m models.judge.serve --model FOLDER --port 8000

Requests that wait while the model works are answered together in its next batch. There is neither
authentication nor encryption: it listens on loopback unless another host is named. (`transformers
serve` needs the `openai` package, and gives no log-probabilities.)
"""

from __future__ import annotations

import argparse
import json
import logging
import queue
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from models import limits
from models.judge.chat import MALFORMED, ChatAnswer, ChatModel, ChatRequest, Message
from models.judge.local import LocalModel

logger = logging.getLogger(__name__)

HOST = "127.0.0.1"
MAX_BODY_BYTES = 16 << 20
DEFAULT_TOKENS = 256
_ALLOWED = {
    *("model", "messages", "max_tokens", "max_completion_tokens", "temperature"),
    *("logprobs", "top_logprobs", "seed", "n", "stream"),
}


class BadRequestError(ValueError):
    """A request that this server does not take."""


class JudgeServer(ThreadingHTTPServer):
    """Serves a chat model under a name; `serve_forever` until `shutdown`."""

    daemon_threads = True
    request_queue_size = 128  # of a client with many requests at once, more than 5 were reset

    def __init__(self, model: ChatModel, name: str, host: str = HOST, port: int = 0) -> None:
        """Port 0 takes a free one: `server_port` says which."""
        super().__init__((host, port), _Handler)
        self.name = name
        self._model = model
        self._waiting: queue.Queue[tuple[ChatRequest, Future[ChatAnswer]]] = queue.Queue()
        threading.Thread(target=self._work, name="judge-model", daemon=True).start()

    def answer(self, request: ChatRequest) -> ChatAnswer:
        """Wait for the model's answer; raises what it raises."""
        future: Future[ChatAnswer] = Future()
        self._waiting.put((request, future))
        return future.result()

    def _work(self) -> None:
        while True:
            batch = [self._waiting.get()]
            while len(batch) < limits.REQUESTS_AT_ONCE and not self._waiting.empty():
                batch.append(self._waiting.get())
            self._answer_all(batch)

    def _answer_all(self, batch: Sequence[tuple[ChatRequest, Future[ChatAnswer]]]) -> None:
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
                else:  # one that cannot be answered must not be the others' undoing
                    self._answer_all([item])


class _Handler(BaseHTTPRequestHandler):
    server: JudgeServer
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if self.path != "/v1/models":
            return self._refuse(404, f"no {self.path} here; allowed: /v1/models")
        found = {"id": self.server.name, "object": "model", "owned_by": "local"}
        return self._send(200, {"object": "list", "data": [found]})

    def do_POST(self) -> None:
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or int(length) > MAX_BODY_BYTES:
            self.close_connection = True  # what may follow is not read
            return self._refuse(413, f"Content-Length must be a number up to {MAX_BODY_BYTES}")
        body = self.rfile.read(int(length))
        if self.path != "/v1/chat/completions":
            return self._refuse(404, f"no {self.path} here; allowed: /v1/chat/completions")
        try:
            answer = self.server.answer(request_of(body))
        except ValueError as error:
            return self._refuse(400, str(error))
        except Exception as error:
            logger.exception("the model failed")
            return self._refuse(500, f"the model failed: {type(error).__name__}")
        return self._send(200, {"model": self.server.name, **answer.to_json()})

    def _refuse(self, status: int, message: str) -> None:
        self._send(status, {"error": {"message": message, "type": "invalid_request_error"}})

    def _send(self, status: int, body: dict[str, Any]) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        logger.info(format, *args)


def request_of(body: bytes) -> ChatRequest:
    """The request in a body. Raises BadRequestError, also for what would be ignored."""
    try:
        found = json.loads(body)
        unknown = sorted(found.keys() - _ALLOWED)
        if unknown:
            raise BadRequestError(f"fields {unknown} are not known; allowed: {sorted(_ALLOWED)}")
        if found.get("stream") or found.get("n", 1) != 1:
            raise BadRequestError("stream must be false and n 1: one whole answer is given")
        limit = found.get("max_tokens", found.get("max_completion_tokens", DEFAULT_TOKENS))
        seed = found.get("seed")
        request = ChatRequest(
            tuple(Message(_text(m["role"]), _text(m["content"])) for m in found["messages"]),
            max_tokens=int(limit),
            temperature=float(found.get("temperature", 1.0)),
            top_logprobs=int(found.get("top_logprobs") or 1) if found.get("logprobs") else 0,
            seed=None if seed is None else int(seed),
        )
    except BadRequestError:
        raise
    except MALFORMED as error:
        raise BadRequestError(f"not a chat request ({type(error).__name__}: {error})") from None
    if not request.messages or request.max_tokens < 1:
        raise BadRequestError("at least one message and one token are needed")
    if not 0 <= request.temperature <= 2 or not 0 <= request.top_logprobs <= 20:
        raise BadRequestError("temperature must be from 0 to 2, top_logprobs from 0 to 20")
    return request


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise BadRequestError(f"role and content must be text, found {value!r}")
    return value


def main(argv: Sequence[str] | None = None) -> None:
    """Load the model and serve it until interrupted."""
    parser = argparse.ArgumentParser(prog="python -m models.judge.serve")
    parser.add_argument("--model", required=True, help="packaged model, folder or hub id")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--host", default=HOST, help="address to listen on (default: loopback)")
    options = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO)
    server = JudgeServer(LocalModel.load(options.model), options.model, options.host, options.port)
    print(f"serving {options.model} at http://{options.host}:{server.server_port}/v1", flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        sys.exit(0)
    finally:
        server.server_close()


if __name__ == "__main__":
    main()
