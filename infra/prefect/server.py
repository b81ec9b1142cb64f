"""Prefect's API on the embedded files, as a child process for as long as a command runs.

Prefect starts a temporary server of its own where none is configured, but late (after this process
has imported the server as well), it outlives a killed command, and it stops before it has written
down the last task runs. This one starts while the command still imports its flows; its end is the
end of a pipe, which a kill -9 closes too; then it still takes in what it was sent.

SQLite refuses at once to let a transaction write that began by reading while another has written
since. Prefect then answers 503, and its client tries again in two seconds: at every other stage of
a run that was two seconds for nothing. So this server's transactions begin as writes, one after
another.

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
from typing import Any, ClassVar

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
        # Connections inherit it (Linux). asyncio, which takes the socket for a Unix one as uvicorn
        # says so, does not set it: an answer would wait for 40 ms.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
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


def begin_transactions_as_writes() -> None:
    """Have every transaction of Prefect with SQLite wait at its begin, and not fail in the middle.

    SQLite lets it wait for up to a minute, after which Prefect answers 503.
    """
    from prefect.server.database.configurations import AioSqliteConfiguration

    begin: Any = AioSqliteConfiguration.begin_transaction
    database: Any = AioSqliteConfiguration
    database.begin_transaction = lambda self, session, **_: begin(self, session, True)


class _Briefly(logging.Filter):
    """Logs an error of SQLite's, such as that of a full disk, once, as one line.

    Every request and every service of the server, several times a second, would log a hundred.
    """

    logged: ClassVar[set[str]] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        while error is not None and not isinstance(error, sqlite3.Error):
            error = error.__cause__ or error.__context__
        if error is None:
            return True
        is_news = str(error) not in self.logged
        self.logged.add(str(error))
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

        begin_transactions_as_writes()
        # Several commands may share a home: their servers make the tables one at a time.
        with file_lock(PREFECT_HOME.value() / ".tables.lock"):
            asyncio.run(provide_database_interface().create_db())
        # `ephemeral`: only the services a client cannot do without, no scheduler. `final`: no other
        # application is made in this process.
        app = create_app(ephemeral=True, final=True)
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
