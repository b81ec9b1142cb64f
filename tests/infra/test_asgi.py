"""What stands before the servers of the stack: of whom a body is read, and for how long."""

from __future__ import annotations

import asyncio
import time
from base64 import b64encode
from typing import Any

import pytest

from trimtab.infra import asgi
from trimtab.infra.prefect.app import add_checks

LOGIN = "trimtab:secret"
RIGHT = b64encode(LOGIN.encode())


async def _never() -> dict[str, Any]:
    raise AssertionError("the body was read")


def _answered(headers: list[tuple[bytes, bytes]], receive: asgi.Receive) -> int:
    """The status of a request to Prefect's guard; 200 where it was passed on."""
    statuses = []

    async def app(scope: Any, receive: asgi.Receive, send: asgi.Send) -> None:
        statuses.append(200)

    async def send(message: asgi.Message) -> None:
        statuses.append(message.get("status", statuses[-1:]))

    async def ask() -> None:
        scope = {"type": "http", "method": "POST", "path": "/api/flow_runs/", "headers": headers}
        await add_checks(app, LOGIN)(scope, receive, send)

    asyncio.run(ask())
    return int(statuses[0])


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [(b"authorization", b"Basic " + b64encode(b"trimtab:wrong"))],
        # Prefect's own check would take these; what it takes and this does not is not unchecked.
        [(b"authorization", b"Basic  " + RIGHT)],
        [(b"authorization", b"Basic\t" + RIGHT)],
        [(b"authorization", b"Basic !" + RIGHT)],
        [(b"authorization", b"Basic " + RIGHT), (b"authorization", b"Basic x")],
    ],
)
def test_of_whoever_has_no_login_no_body_is_read(headers: list[tuple[bytes, bytes]]) -> None:
    assert _answered(headers, _never) == 401


def test_whoever_has_the_login_is_passed_on_with_the_body() -> None:
    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"{}"}

    assert _answered([(b"authorization", b"Basic " + RIGHT)], receive) == 200


def test_a_body_that_does_not_end_is_waited_for_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asgi, "BODY_SECONDS", 0.2)

    async def slow() -> dict[str, Any]:
        await asyncio.sleep(0.01)
        return {"type": "http.request", "body": b"x", "more_body": True}

    start = time.monotonic()
    assert asyncio.run(asgi.read_request(slow, 1000)) is None
    assert time.monotonic() - start < 5


def test_a_body_of_many_small_parts_takes_the_time_of_its_bytes() -> None:
    parts = iter([{"type": "http.request", "body": b"x", "more_body": True}] * 100_000)

    async def receive() -> dict[str, Any]:
        return next(parts, {"type": "http.request", "body": b"y"})

    start = time.monotonic()
    found = asyncio.run(asgi.read_request(receive, 1 << 20))
    assert found is not None and found["body"] == b"x" * 100_000 + b"y"
    assert time.monotonic() - start < 5
