"""A headless Chromium, spoken to by its DevTools protocol."""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from websockets.sync.client import connect
from websockets.sync.connection import Connection

FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--disable-quic"),
    *("--hide-scrollbars", "--remote-debugging-port=0"),
)
PATIENCE = 120.0


@contextmanager
def browser(program: str) -> Iterator[Browser]:
    """A browser with one empty page and a profile of its own."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = subprocess.Popen(
            [program, *FLAGS, f"--user-data-dir={profile}", "about:blank"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stderr is not None
        try:
            address = next(line for line in process.stderr if "DevTools listening" in line)
            host = address.split("ws://")[1].partition("/")[0]
            with urllib.request.urlopen(f"http://{host}/json") as answer:
                pages = [target for target in json.load(answer) if target["type"] == "page"]
            with connect(pages[0]["webSocketDebuggerUrl"], max_size=None) as connection:
                yield Browser(connection)
        finally:
            process.terminate()
            process.wait()


class Browser:
    """The page of a browser."""

    def __init__(self, connection: Connection) -> None:
        self._connection, self._number = connection, 0
        for domain in ("Page", "Runtime"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        """One command; events that come before its answer are left out."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        self._connection.send(json.dumps(message))
        while True:
            answer = json.loads(self._connection.recv(timeout=PATIENCE))
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result

    def run(self, script: str) -> Any:
        """The value of an expression; of a promise what it comes to."""
        answer = self.send(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def wait(self, condition: str) -> float:
        """Seconds until an expression is true."""
        started = time.monotonic()
        while not self.run(condition):
            assert time.monotonic() - started < PATIENCE, condition
            time.sleep(0.02)
        return time.monotonic() - started

    def open(self, path: Path, width: int = 1280, height: int = 800) -> None:
        """Load a file at a size of the window."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.send("Emulation.setDeviceMetricsOverride", **size)
        self.send("Page.navigate", url=path.resolve().as_uri())
