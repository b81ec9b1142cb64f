"""The embedded Prefect server: up while a command runs, gone after it, even after a kill -9."""

from __future__ import annotations

import io
import logging
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trimtab.infra.prefect.server import PrefectServerError, _Briefly, local_prefect_server

COMMAND = """
import sys, time
from trimtab.infra.prefect.server import local_prefect_server
with local_prefect_server() as wait_until_ready:
    wait_until_ready()
    import os
    print(os.environ["PREFECT_API_URL"], flush=True)
    assert "prefect" not in sys.modules
    time.sleep(600)
"""


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5) as answer:
            return bool(answer.read() == b"true")
    except (OSError, urllib.error.URLError):
        return False


@pytest.mark.slow
def test_servers_on_loopback_make_one_database_and_end_with_killed_commands(
    tmp_path: Path,
) -> None:
    elsewhere = tmp_path / "elsewhere"  # with files that stand in for no module of the server
    elsewhere.mkdir()
    for name in ("infra", "prefect", "uvicorn"):
        (elsewhere / f"{name}.py").write_text("raise SystemExit('of the current folder')\n")
    environment = {key: value for key, value in os.environ.items() if key != "PREFECT_API_URL"}
    commands = [
        subprocess.Popen(
            [sys.executable, "-P", "-c", COMMAND],
            stdout=subprocess.PIPE,
            text=True,
            cwd=elsewhere,
            env={**environment, "PREFECT_HOME": str(tmp_path)},
        )
        for _ in range(2)
    ]
    urls = [command.stdout.readline().strip() for command in commands if command.stdout]
    assert all(url.startswith("http://127.0.0.1:") and _answers(url) for url in urls), urls
    for command in commands:
        command.send_signal(signal.SIGKILL)
        command.communicate()
    deadline = time.monotonic() + 60
    while any(map(_answers, urls)) and time.monotonic() < deadline:
        time.sleep(0.5)
    assert not any(map(_answers, urls))


def test_a_server_of_the_users_own_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:1/api")
    with local_prefect_server() as wait_until_ready:
        wait_until_ready()
        assert os.environ["PREFECT_API_URL"] == "http://127.0.0.1:1/api"


@pytest.mark.slow
def test_a_server_that_cannot_start_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "file"))
    with (
        local_prefect_server() as wait_until_ready,
        pytest.raises(PrefectServerError, match="ended with status"),
    ):
        wait_until_ready()
    assert "PREFECT_API_URL" not in os.environ


def test_a_full_disk_is_said_once_and_other_errors_whole(caplog: pytest.LogCaptureFixture) -> None:
    """SQLAlchemy wraps what SQLite raises; each request and service logs it with a traceback."""

    def log(cause: Exception, times: int) -> None:
        for number in range(times):
            try:
                try:
                    raise cause
                except type(cause) as error:
                    raise RuntimeError(f"insert {number}") from error
            except RuntimeError:
                logging.getLogger(f"server.{number % 3}").exception("Error flushing %s", number)

    caplog.handler.addFilter(_Briefly())
    log(sqlite3.OperationalError("database or disk is full"), 100)
    assert (
        caplog.text.count("\n") == 1 and "database or disk is full; not said again" in caplog.text
    )
    caplog.clear()
    log(sqlite3.OperationalError("attempt to write a readonly database"), 2)
    log(KeyError("of a mistake"), 2)
    assert caplog.text.count("readonly") == 1
    assert caplog.text.count("KeyError: 'of a mistake'") == caplog.text.count("insert 0") + 1 == 2


def test_connections_send_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else an answer's body waits for the receipt of its head, 40 ms."""
    options = []

    def start(_: Any, *, pass_fds: list[int], **__: Any) -> SimpleNamespace:
        with (
            socket.socket(fileno=os.dup(pass_fds[0])) as listener,
            socket.create_connection(listener.getsockname()),
            listener.accept()[0] as connection,
        ):
            options.append(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        return SimpleNamespace(stdin=io.BytesIO())

    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    monkeypatch.setattr(subprocess, "Popen", start)
    with local_prefect_server():
        pass
    assert options == [1]
