"""What stands before an ASGI application: a body that is read and handed on, and refusals."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

BODY_SECONDS = 60.0

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]


async def received(receive: Receive, limit: int | None = None) -> Message | None:
    """A whole request as one message, or that its sender has gone.

    None where the body has more bytes than the limit, or with a limit is not there after a minute.
    One that is too large is taken to its end all the same, and dropped: its sender then reads the
    answer.
    """
    body, is_over = bytearray(), False
    try:
        async with asyncio.timeout(None if limit is None else BODY_SECONDS):
            while (message := await receive())["type"] == "http.request":
                body += b"" if is_over else message.get("body", b"")
                if limit is not None and len(body) > limit:
                    body, is_over = bytearray(), True
                if not message.get("more_body"):
                    whole = {"type": "http.request", "body": bytes(body), "more_body": False}
                    return None if is_over else whole
    except TimeoutError:
        return None
    return message


def replayed(request: Message, receive: Receive) -> Receive:
    """What was received, and then what else comes."""
    waiting = [request]

    async def replay() -> Message:
        return waiting.pop() if waiting else await receive()

    return replay


def login_of(scope: Message) -> str | None:
    """What a request brings as `name:password`; None where it has none that can be read."""
    scheme, _, login = dict(scope["headers"]).get(b"authorization", b"").partition(b" ")
    try:
        given = base64.b64decode(login, validate=True).decode()
    except ValueError:
        return None
    return given if scheme.lower() == b"basic" else None


async def refuse(
    send: Send, status: int, text: str, headers: Mapping[str, str] | None = None
) -> None:
    """Answer with a status and a text."""
    given = {"Content-Type": "text/plain; charset=utf-8", **(headers or {})}
    raw = [(name.lower().encode(), value.encode()) for name, value in given.items()]
    await send({"type": "http.response.start", "status": status, "headers": raw})
    await send({"type": "http.response.body", "body": text.encode(errors="replace")})
