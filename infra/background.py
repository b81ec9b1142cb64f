"""Calls that nobody waits for, until the end."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor


class Background:
    """Makes calls in a few threads of its own. Thread-safe; threads start with the first call."""

    def __init__(self, num_threads: int) -> None:
        self._threads = ThreadPoolExecutor(num_threads)
        self._put_off: deque[Future[None]] = deque()

    def later(self, function: Callable[[], None]) -> None:
        """Call it while the caller goes on."""
        self._put_off.append(self._threads.submit(function))

    def settle(self) -> None:
        """Wait for all that was put off, and raise what it raised."""
        while self._put_off:
            self._put_off.popleft().result()
