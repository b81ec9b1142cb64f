"""Retry, inside the server, requests that Prefect's SQLite database was too busy for.

SQLite refuses at once to let a transaction write that began by reading while another has written
since. Prefect then answers 503, and its client tries again in two seconds: at every other stage of
a run that was two seconds for nothing. Imports no Prefect.
"""

from __future__ import annotations

import asyncio

from trimtab.infra.asgi import App, Message, Receive, Send, received, replayed

_BUSY = 503
RETRY_PAUSES = (0.02, 0.05, 0.1, 0.2, 0.4)  # seconds; after them the client gets its 503


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
