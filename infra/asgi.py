"""Parts of a layer before an ASGI application: read a body and hand it on, refuse a request."""

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


async def read_request(receive: Receive, limit: int) -> Message | None:
    """A whole request as one message, or that its sender has gone.

    None where the body has more bytes than the limit, or is not there after a minute.
    A body that is too large is read to its end and dropped: its sender then reads the answer.
    """
    body, is_over = bytearray(), False
    try:
        async with asyncio.timeout(BODY_SECONDS):
            while (message := await receive())["type"] == "http.request":
                body += b"" if is_over else message.get("body", b"")
                if len(body) > limit:
                    body, is_over = bytearray(), True
                if not message.get("more_body"):
                    complete = {"type": "http.request", "body": bytes(body), "more_body": False}
                    return None if is_over else complete
    except TimeoutError:
        return None
    return message


def replay_request(request: Message, receive: Receive) -> Receive:
    """A function that receives `request`, which was read already, and then what else comes."""
    waiting = [request]

    async def replay() -> Message:
        return waiting.pop() if waiting else await receive()

    return replay


def read_login(scope: Message) -> str | None:
    """The `name:password` of a request; None where it has none that can be read."""
    scheme, _, login = dict(scope["headers"]).get(b"authorization", b"").partition(b" ")
    try:
        text = base64.b64decode(login, validate=True).decode()
    except ValueError:
        return None
    return text if scheme.lower() == b"basic" else None


async def refuse(
    send: Send, status: int, text: str, headers: Mapping[str, str] | None = None
) -> None:
    """Answer with a status and a text."""
    headers = {"Content-Type": "text/plain; charset=utf-8", **(headers or {})}
    raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": raw})
    await send({"type": "http.response.body", "body": text.encode(errors="replace")})
