"""A busy answer is kept back and the request repeated, whole; everything else passes through."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from trimtab.infra.prefect import server
from trimtab.infra.prefect.server import retry_when_busy

PARTS = [
    {"type": "http.request", "body": b"ab", "more_body": True},
    {"type": "http.request", "body": b"c", "more_body": False},
]


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "RETRY_PAUSES", (0.0, 0.0, 0.0))


def _ask(num_busy: int, *, raises: bool = False, kind: str = "http") -> tuple[list[Any], list[Any]]:
    """The bodies that an application saw which is busy so often, and what was sent back."""
    seen: list[Any] = []
    sent: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert scope.pop("path") == "/api"  # a router may change what it is given
        body, more = b"", kind == "http"
        while more:
            message = await receive()
            body, more = body + message["body"], message["more_body"]
        seen.append(body)
        status = 503 if len(seen) <= num_busy else 200
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": str(len(seen)).encode()})
        if raises and status == 503:
            raise RuntimeError("database is locked")

    async def ask() -> None:
        incoming = iter(PARTS)

        async def receive() -> Any:
            return next(incoming)

        async def send(message: Any) -> None:
            sent.append(message)

        await retry_when_busy(app)({"type": kind, "path": "/api"}, receive, send)

    asyncio.run(ask())
    return seen, sent


@pytest.mark.parametrize("raises", [False, True])
@pytest.mark.parametrize("num_busy", [0, 1, 3])
def test_the_answer_is_that_of_the_first_try_that_is_not_busy(num_busy: int, raises: bool) -> None:
    seen, sent = _ask(num_busy, raises=raises)
    assert seen == [b"abc"] * (num_busy + 1)
    assert [message.get("status") for message in sent] == [200, None]
    assert sent[1]["body"] == str(num_busy + 1).encode()


def test_who_stays_busy_says_so_in_the_end() -> None:
    seen, sent = _ask(9)
    assert len(seen) == 4 and sent[0]["status"] == 503
    with pytest.raises(RuntimeError, match="locked"):
        _ask(9, raises=True)


def test_what_is_no_request_passes_through() -> None:
    seen, sent = _ask(1, kind="lifespan")
    assert len(seen) == 1 and sent[0]["status"] == 503
