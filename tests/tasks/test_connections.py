"""A new client of Prefect's API, made while the server is being started again."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import httpx
import pytest
from prefect.client.base import PrefectHttpxAsyncClient, PrefectHttpxSyncClient

from trimtab.tasks import context


class _Answer(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        return


@pytest.fixture(autouse=True)
def shared(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(context, "_reached", set())
    monkeypatch.setenv("PREFECT_CLIENT_RETRY_JITTER_FACTOR", "0")
    context.share_connections()
    yield
    for kind in (PrefectHttpxAsyncClient, PrefectHttpxSyncClient):
        del kind._has_connected


def _get(address: str, kind: type[Any]) -> int:
    if kind is PrefectHttpxSyncClient:
        with kind(base_url=address) as client:
            return int(client.get("/x").status_code)

    async def get() -> int:
        async with kind(base_url=address) as client:
            return int((await client.get("/x")).status_code)

    return asyncio.run(get())


@pytest.mark.slow
@pytest.mark.parametrize("kind", [PrefectHttpxSyncClient, PrefectHttpxAsyncClient])
def test_a_new_client_waits_for_a_server_that_another_has_reached(kind: type[Any]) -> None:
    with HTTPServer(("127.0.0.1", 0), _Answer) as server:
        address = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.handle_request).start()
        assert _get(address, PrefectHttpxSyncClient) == 200

    def start_again() -> None:
        time.sleep(0.5)  # the first attempt finds nobody
        with HTTPServer(("127.0.0.1", int(address.rpartition(":")[2])), _Answer) as server:
            server.handle_request()

    thread = threading.Thread(target=start_again)
    thread.start()
    assert _get(address, kind) == 200
    thread.join()


@pytest.mark.parametrize("kind", [PrefectHttpxSyncClient, PrefectHttpxAsyncClient])
def test_an_address_that_nobody_has_reached_is_an_error_at_once(kind: type[Any]) -> None:
    with socket.socket() as taken:  # bound, and nobody listens
        taken.bind(("127.0.0.1", 0))
        started = time.monotonic()
        with pytest.raises(httpx.ConnectError):
            _get(f"http://127.0.0.1:{taken.getsockname()[1]}", kind)
        assert time.monotonic() - started < 1.5
