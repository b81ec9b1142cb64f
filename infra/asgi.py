"""What stands before an ASGI application: a body that is read and handed on, and refusals."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from typing import Any

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]


async def received(receive: Receive, limit: int | None = None) -> list[Message] | None:
    """The messages of a whole request; None where its body has more bytes than the limit.

    Such a body is taken to its end all the same, and dropped: its sender then reads the answer.
    """
    messages, size = [await receive()], 0
    is_over = False
    while True:
        size += len(messages[-1].get("body", b""))
        is_over = is_over or (limit is not None and size > limit)
        if not messages[-1].get("more_body"):
            return None if is_over else messages
        message = await receive()
        messages = [message] if is_over else [*messages, message]


def body_of(messages: Sequence[Message]) -> bytes:
    """The body of a request."""
    return b"".join(message.get("body", b"") for message in messages)


def replayed(messages: Sequence[Message], receive: Receive) -> Receive:
    """What was received, from the start, and then what else comes."""
    waiting = iter(messages)

    async def replay() -> Message:
        message = next(waiting, None)
        return await receive() if message is None else message

    return replay


async def refuse(
    send: Send, status: int, text: str, headers: Mapping[str, str] | None = None
) -> None:
    """Answer with a status and a text."""
    given = {"Content-Type": "text/plain; charset=utf-8", **(headers or {})}
    raw = [(name.lower().encode(), value.encode()) for name, value in given.items()]
    await send({"type": "http.response.start", "status": status, "headers": raw})
    await send({"type": "http.response.body", "body": text.encode(errors="replace")})
