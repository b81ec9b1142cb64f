"""A real endpoint on loopback that does as it is told: answers, or faults as real ones have."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from trimtab.models.judge.chat import ChatModel, ChatRequest, Message

Body = dict[str, Any]


def completion(
    content: str, *, prompt_tokens: int = 10, completion_tokens: int = 1, **logprobs: float
) -> Body:
    """A chat completion, its first token with the log-probabilities of others if there are any."""
    choice: Body = {"index": 0, "finish_reason": "stop", "logprobs": None}
    choice["message"] = {"role": "assistant", "content": content}
    if logprobs:
        top = [{"token": token, "logprob": value} for token, value in logprobs.items()]
        choice["logprobs"] = {"content": [{**top[0], "top_logprobs": top}]}
    usage = {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }
    return {"object": "chat.completion", "choices": [choice], "usage": usage}


@dataclass
class Reply:
    """What a request gets.

    text: the body, JSON of `body` if not given. cut: so many bytes of it are sent, then the line is
    closed. stall: nothing is sent before the server ends. drip: seconds between two bytes.
    """

    body: Any = None
    status: int = 200
    text: str | None = None
    headers: dict[str, str] = field(default_factory=dict)
    cut: int | None = None
    stall: bool = False
    drip: float = 0.0


Script = Callable[[int, Body], Reply | Body]


class ScriptedServer(ThreadingHTTPServer):
    """`script` gets the number of a request (from 0) and its body; what it returns is sent.

    path: where it is asked. models: what it says of the models that it has; None: it does not say.
    """

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, script: Script) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.script = script
        self.path = "/v1/chat/completions"
        self.models: Reply | None = None
        self.bodies: list[Body] = []
        self.headers: list[dict[str, str]] = []
        self.most_at_once = 0
        self.ended = threading.Event()
        self._running = 0
        self._lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"

    def enter(self, body: Body, headers: dict[str, str]) -> int:
        with self._lock:
            self.bodies.append(body)
            self.headers.append(headers)
            self._running += 1
            self.most_at_once = max(self.most_at_once, self._running)
            return len(self.bodies) - 1

    def leave(self) -> None:
        with self._lock:
            self._running -= 1

    def handle_error(self, request: Any, client_address: Any) -> None:
        """The client has hung up, as some tests want."""


class _Handler(BaseHTTPRequestHandler):
    server: ScriptedServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # head and body of an answer are two packets

    def do_GET(self) -> None:
        found = self.server.models if self.path == "/v1/models" else None
        self._send(found or Reply(status=404))

    def do_POST(self) -> None:
        if self.path != self.server.path:
            self.rfile.read(int(self.headers["Content-Length"]))
            self._send(Reply(status=404))
            return
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        number = self.server.enter(body, dict(self.headers))
        try:
            reply = self.server.script(number, body)
        finally:
            self.server.leave()
        self._send(reply if isinstance(reply, Reply) else Reply(reply))

    def _send(self, reply: Reply) -> None:
        if reply.stall:
            self.server.ended.wait()
            return
        content = (json.dumps(reply.body) if reply.text is None else reply.text).encode()
        self.send_response(reply.status)
        for name, value in reply.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if reply.drip:
            for place in range(len(content)):
                self.wfile.write(content[place : place + 1])
                if self.server.ended.wait(reply.drip):
                    return
        self.wfile.write(content[: reply.cut])
        if reply.cut is not None:
            self.wfile.flush()
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def serving(script: Script) -> Iterator[ScriptedServer]:
    """A server that runs inside."""
    with ScriptedServer(script) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.ended.set()
            server.shutdown()
            thread.join()


def answers_of(model: ChatModel) -> Script:
    """What a model in this process answers, one request at a time."""
    one_at_a_time = threading.Lock()

    def script(_: int, body: Body) -> Body:
        request = ChatRequest(
            tuple(Message(**message) for message in body["messages"]),
            body["max_tokens"],
            body["temperature"],
            body.get("top_logprobs", 0),
            body.get("seed"),
        )
        with one_at_a_time:
            ((_, answer),) = model.answers([("", request)])
        return answer.to_json()

    return script
