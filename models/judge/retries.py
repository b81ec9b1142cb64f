"""How long to wait before another try: the endpoint's word, else twice as long from try to try."""

from __future__ import annotations

import random
import threading
import time
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

RETRIED_STATUS = frozenset({408, 409, 429})
# Of what stands between: nobody knows whether the model behind it has answered, and bills it.
UNKNOWN_STATUS = frozenset({408, 502, 504, 520, 524})
# Said of the endpoint as a whole: all requests wait, not only the one that was told so.
BUSY_STATUS = frozenset({429, 503})


def is_retried(status: int) -> bool:
    """Whether a later try may go well: a time-out, a conflict, too many requests, its own fault."""
    return status in RETRIED_STATUS or status >= 500


def retry_after(value: str | None, now: datetime | None = None) -> float | None:
    """Seconds that a Retry-After header asks for, as a number or a date; None without one.

    None as well for one that asks for no wait, as a date does where clocks differ: tries without
    any would be used up at once.
    """
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        seconds = _until(value, now or datetime.now(UTC))
    return seconds if seconds > 0 else None


def _until(date: str, now: datetime) -> float:
    """Seconds up to a date; 0 for what is none."""
    try:
        moment = parsedate_to_datetime(date)
    except (ValueError, OverflowError):
        return 0.0
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return (moment - now).total_seconds()


def backoff(attempt: int, first: float, longest: float) -> float:
    """Seconds before try number `attempt` + 1: doubling, at most `longest`, half of it by chance.

    The chance keeps requests that failed together from coming back together.
    """
    whole = min(longest, first * 2.0 ** min(attempt, 60))
    return whole * random.uniform(0.5, 1.0)


class GoneError(Exception):
    """Nobody waits for the answer any more."""


class Gate:
    """Where requests wait while the endpoint wants none. Thread-safe."""

    def __init__(self) -> None:
        self._opens_at = 0.0
        self._closing = threading.Lock()
        self._is_gone = threading.Event()

    def close_for(self, seconds: float) -> None:
        """Let nobody through for so long."""
        opens_at = time.monotonic() + seconds
        with self._closing:
            self._opens_at = max(self._opens_at, opens_at)

    def give_up(self) -> None:
        """Let everybody know that the caller has gone."""
        self._is_gone.set()

    def wait(self, seconds: float) -> None:
        """Wait so long, unless the caller goes meanwhile."""
        self._is_gone.wait(seconds)

    def check(self) -> None:
        """Wait until the gate is open. Raises GoneError where the caller has gone meanwhile."""
        while (left := self._opens_at - time.monotonic()) > 0 and not self._is_gone.is_set():
            self._is_gone.wait(left)
        if self._is_gone.is_set():
            raise GoneError
