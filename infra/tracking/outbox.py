"""What MLflow has not received of a run yet: files that outlive the process, and a sender thread.

A line of the file is a record, `{kind: value}`, in the order in which MLflow is to get them; all
can be sent twice without harm. The process that writes a file holds its lock: a file whose lock is
free was left behind by a process that died, or that ended while MLflow was down.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

logger = logging.getLogger(__name__)

Record = Mapping[str, Any]


class Outbox:
    """The records of one run: in memory, and in a file where there is a folder for it."""

    def __init__(self, folder: Path | None, key: str) -> None:
        """The file is made with the first record; `key` is a name that no other run has."""
        self.waiting: deque[Record] = deque()
        self.written = 0.0
        self._path = folder / f"{time.time_ns():020d}-{key}.jsonl" if folder else None
        self._stream: IO[str] | None = None
        self._is_full = False
        self._writing = threading.Lock()

    def add(self, record: Record) -> None:
        """Keep a record that is to be sent."""
        self.waiting.append(record)
        self.note(record)

    def note(self, record: Record) -> None:
        """Write a record that is not sent, but that a later process must know.

        If the file cannot be written, the record stays in memory: tracking never fails a run.
        """
        with self._writing:
            if self._path is None or self._is_full:
                return
            try:
                self._stream = self._stream or _made(self._path)
                self._stream.write(json.dumps(record) + "\n")
                self._stream.flush()
            except OSError as error:
                logger.warning(
                    "%s: %s. Data for MLflow is now kept in memory only", self._path, error
                )
                self._is_full = True

    def remove(self) -> None:
        """All was sent."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)
        if self._stream is not None:
            with suppress(OSError):  # a full disk does not take what is in its buffer
                self._stream.close()
        self._stream = self._path = None


def left_behind(folder: Path) -> Iterator[Outbox]:
    """What others have left, the oldest first, with all their records waiting; now it is ours."""
    for path in sorted(folder.glob("*.jsonl")):
        try:
            stream = path.open("r+")
        except FileNotFoundError:
            continue
        try:
            fcntl.flock(stream.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:  # its process is alive
            stream.close()
            continue
        if not os.fstat(stream.fileno()).st_nlink:  # another has just sent it
            stream.close()
            continue
        found = Outbox(None, "")
        found._path, found._stream = path, stream
        found.written = path.stat().st_mtime
        found.waiting.extend(_whole(stream.read()))
        yield found


def _made(path: Path) -> IO[str]:
    """A new file, which gets its name once it is locked: no other takes it for left behind."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unnamed = path.with_suffix(".new")
    stream = unnamed.open("w")
    fcntl.flock(stream.fileno(), fcntl.LOCK_EX)
    unnamed.rename(path)
    return stream


def _whole(text: str) -> Iterator[Record]:
    """The records of a file; the last line is in pieces where a kill came between."""
    for line in text.splitlines():
        try:
            yield json.loads(line)
        except ValueError:
            return


class Background:
    """Makes calls in a few threads of its own. Thread-safe; threads start with the first call."""

    def __init__(self, num_threads: int) -> None:
        self._threads = ThreadPoolExecutor(num_threads)
        self._put_off: deque[Future[None]] = deque()

    def submit(self, function: Callable[[], None]) -> None:
        """Call it in a background thread."""
        self._put_off.append(self._threads.submit(function))

    def wait(self) -> None:
        """Wait for all submitted calls, and raise what they raised."""
        while self._put_off:
            self._put_off.popleft().result()
