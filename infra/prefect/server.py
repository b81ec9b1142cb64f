"""Prefect's API on the embedded files, as a child process for as long as a command runs.

Prefect starts a temporary server of its own where none is configured, but late (after this process
has imported the server as well), it outlives a killed command, and it stops before it has written
down the last task runs. This one starts while the command still imports its flows; its end is the
end of a pipe, which a kill -9 closes too; then it still takes in what it was sent.

SQLite refuses at once to let a transaction write that began by reading while another has written
since. Prefect then answers 503, and its client tries again in two seconds: at every other stage of
a run that was two seconds for nothing. So the server tries such a request again itself.

Imports no Prefect in the process that calls `local_prefect_server`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sqlite3
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ClassVar

from trimtab.infra.asgi import App, Message, Receive, Send, received, replayed
from trimtab.infra.imports import quick_imports
from trimtab.infra.processes.environment import child_env
from trimtab.infra.processes.locks import file_lock

API_URL_VARIABLE = "PREFECT_API_URL"
# Set where the server lives as long as the command: nobody can follow a link to it later.
EMBEDDED_VARIABLE = "TRIMTAB_EMBEDDED_PREFECT"
START_SECONDS = 120.0
# Events wait up to two seconds in the client and two in the server before they are written.
DRAIN_SECONDS = 5.0
# Block types are for the pages of `trimtab ui`, whose server registers them itself. To memoise that
# they are registered, every integration that is installed would be imported.
NO_BLOCK_REGISTRATION = {
    "PREFECT_API_BLOCKS_REGISTER_ON_START": "false",
    "PREFECT_SERVER_MEMOIZE_BLOCK_AUTO_REGISTRATION": "false",
}

_BUSY = 503
RETRY_PAUSES = (0.02, 0.05, 0.1, 0.2, 0.4)  # seconds; after them the client gets its 503


class PrefectServerError(RuntimeError):
    """The embedded Prefect server did not start."""


@contextmanager
def local_prefect_server() -> Iterator[Callable[[], None]]:
    """Start the server on a free loopback port and name it in the environment's PREFECT_API_URL.

    Gives a function that waits until the server answers; raises PrefectServerError there if it
    does not. Where PREFECT_API_URL is set already nothing is started. Must be entered before
    Prefect is imported.
    """
    if os.environ.get(API_URL_VARIABLE):
        yield lambda: None
        return
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(128)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/api"
        server = subprocess.Popen(
            [sys.executable, "-P", "-m", "trimtab.infra.prefect.server", str(listener.fileno())],
            stdin=subprocess.PIPE,
            env=child_env(NO_BLOCK_REGISTRATION),
            pass_fds=[listener.fileno()],
            start_new_session=True,
        )
    os.environ |= {API_URL_VARIABLE: url, EMBEDDED_VARIABLE: "1"}
    try:
        yield lambda: _wait_until_ready(server, url)
    finally:
        del os.environ[API_URL_VARIABLE], os.environ[EMBEDDED_VARIABLE]
        assert server.stdin is not None
        server.stdin.close()


def _wait_until_ready(server: subprocess.Popen[bytes], url: str) -> None:
    """The listening socket is open from the start: a request waits for the server to come up."""
    deadline = time.monotonic() + START_SECONDS
    while server.poll() is None and time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=START_SECONDS):
                return
        except (OSError, urllib.error.URLError):
            time.sleep(0.2)
    state = "did not answer" if server.poll() is None else f"ended with status {server.returncode}"
    raise PrefectServerError(
        f"the embedded Prefect server {state} within {START_SECONDS:.0f} s; its messages are "
        f"above. Free space in the home folder, or set {API_URL_VARIABLE} to a server of your own"
    )


def retry_when_busy(app: App) -> App:
    """An ASGI application that answers as `app` does, but not at once that it is busy."""

    async def answer(scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        request = await received(receive)
        assert request is not None  # without a limit
        for pause in RETRY_PAUSES:
            if await _is_answered(app, scope, request, receive, send):
                return
            await asyncio.sleep(pause)
        await app(dict(scope), replayed(request, receive), send)

    return answer


async def _is_answered(
    app: App, scope: Message, request: Message, receive: Receive, send: Send
) -> bool:
    """Pass the request on, and back what comes, unless it is that the application is busy."""
    is_busy = False

    async def send_unless_busy(message: Message) -> None:
        nonlocal is_busy
        is_busy = is_busy or message.get("status") == _BUSY
        if not is_busy:
            await send(message)

    try:
        await app(dict(scope), replayed(request, receive), send_unless_busy)
    except Exception:  # frameworks raise once more what they have answered with
        if not is_busy:
            raise
    return not is_busy


class _Briefly(logging.Filter):
    """Of what SQLite refuses, such as to write to a full disk, a line once, for all that it meets.

    Every request and every service of the server, several times a second, would say a hundred.
    """

    said: ClassVar[set[str]] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        while error is not None and not isinstance(error, sqlite3.Error):
            error = error.__cause__ or error.__context__
        if error is None:
            return True
        is_news = str(error) not in self.said
        self.said.add(str(error))
        record.msg, record.args = "%s; not said again", (f"Prefect's database: {error}",)
        record.exc_info = record.exc_text = None
        return is_news


def serve(descriptor: int) -> None:
    """The child: serve on the inherited socket until stdin ends, then drain and stop."""
    with quick_imports():
        import uvicorn
        from prefect.server.api.server import create_app
        from prefect.server.database import provide_database_interface
        from prefect.settings import PREFECT_HOME

        # Several commands may share a home: their servers make the tables one at a time.
        with file_lock(PREFECT_HOME.value() / ".tables.lock"):
            asyncio.run(provide_database_interface().create_db())
        # `ephemeral`: only the services a client cannot do without, no scheduler. `final`: no other
        # application is made in this process.
        app = retry_when_busy(create_app(ephemeral=True, final=True))
    server = uvicorn.Server(uvicorn.Config(app, fd=descriptor, log_level="error", lifespan="on"))
    loggers = [logging.getLogger(name) for name in (None, *logging.root.manager.loggerDict)]
    for handler in {handler for logger in loggers for handler in logger.handlers}:
        handler.addFilter(_Briefly())

    def stop_after_the_command() -> None:
        while os.read(0, 1):  # not through sys.stdin: its lock would outlive this thread
            pass
        time.sleep(DRAIN_SECONDS)
        server.should_exit = True

    threading.Thread(target=stop_after_the_command, daemon=True).start()
    server.run()


if __name__ == "__main__":
    serve(int(sys.argv[1]))
