"""What MLflow has not received of a run yet: files that outlive the process.

A line of the file is a record, `{kind: value}`, in the order in which MLflow is to get them. It is
there before MLflow is told, until MLflow has it; all can be sent twice without harm. The process
that writes a file holds its lock: a file whose lock is free was left behind by a process that died,
or that ended while MLflow was down.
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
from io import FileIO
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)

Record = Mapping[str, Any]


class Outbox:
    """The records of one run: in memory, and in a file where there is a folder for it."""

    def __init__(self, folder: Path | None = None, key: str = "") -> None:
        """The file is made with the first record; `key` is a name that no other run has."""
        self.waiting: deque[Record] = deque()
        self.written = 0.0
        self._path = folder / f"{time.time_ns():020d}-{key}.jsonl" if folder else None
        self._stream: FileIO | None = None
        self._noted = 0  # bytes of the file up to the last note
        self._is_full = False
        self._writing = threading.Lock()

    def add(self, record: Record) -> None:
        """Keep a record that is to be sent.

        If the file cannot be written, it stays in memory: tracking never fails a run.
        """
        with self._writing:
            self.waiting.append(record)
            self._write(record)

    def note(self, record: Record) -> None:
        """Write a record that is not sent, but that a later process must know."""
        with self._writing:
            self._write(record)
            if self._stream is not None:
                self._noted = os.fstat(self._stream.fileno()).st_size

    def _write(self, record: Record) -> None:
        if self._path is None or self._is_full:
            return
        try:
            self._stream = self._stream or _made(self._path)
            line = json.dumps(record).encode() + b"\n"
            if self._stream.write(line) < len(line):
                raise OSError("the disk took a part of a line only")
        except OSError as error:
            logger.warning("%s: %s. Data for MLflow is now kept in memory only", self._path, error)
            self._is_full = True

    def remove_sent(self, record: Record) -> None:
        """MLflow has the first record that waits. Where it was the last, the file gets short again;
        where the run has ended, it goes."""
        with self._writing:
            self.waiting.popleft()
            if self._stream is None or self._path is None or self.waiting:
                return
            if "end" in record:
                self._path.unlink(missing_ok=True)
                self._stream.close()
                self._stream = self._path = None
            elif not self._is_full:
                os.truncate(self._stream.fileno(), self._noted)


def left_behind(folder: Path) -> Iterator[Outbox]:
    """What others have left, the oldest first, with all their records waiting; now it is ours."""
    for path in sorted(folder.glob("*.jsonl")):
        try:
            stream = FileIO(path, "r+")
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
        outbox = Outbox()
        outbox._path, outbox._stream = path, stream
        outbox.written = path.stat().st_mtime
        outbox.waiting.extend(_whole(stream.readall()))
        yield outbox


def _made(path: Path) -> FileIO:
    """A new file, which gets its name once it is locked: no other takes it for left behind."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unnamed = path.with_suffix(".new")
    stream = FileIO(unnamed, "a")  # unbuffered: what a full disk refuses is not tried again
    fcntl.flock(stream.fileno(), fcntl.LOCK_EX)
    unnamed.rename(path)
    return stream


def _whole(data: bytes) -> Iterator[Record]:
    """The records of a file; the last line is in pieces where a kill came between."""
    for line in data.splitlines():
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
