"""A web hook's other end."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any


@dataclass
class Listener:
    """An address on loopback, and the JSON that was posted there."""

    address: str = ""
    received: list[dict[str, Any]] = field(default_factory=list)

    def wait_for(self, event: str, seconds: float = 30.0) -> dict[str, Any]:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            for notice in list(self.received):
                if notice["event"] == event:
                    return notice
            time.sleep(0.2)
        raise TimeoutError(f"{event} did not come; {self.received} did")


@contextmanager
def listening() -> Iterator[Listener]:
    """Listen until the end of the block."""
    listener = Listener()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            content = json.loads(body)
            # Prefect's web hook sends text as a JSON string.
            listener.received.append(json.loads(content) if isinstance(content, str) else content)
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        listener.address = f"http://127.0.0.1:{server.server_address[1]}/"
        Thread(target=server.serve_forever, daemon=True).start()
        yield listener
        server.shutdown()
