"""Data that MLflow has not received of a run yet, in files that outlive the process.

A line of a file is a record, `{kind: value}`, in the order in which MLflow is to get them; all can
be sent twice without harm. A record is in the file before MLflow gets it, and until MLflow has it.
The first one, which creates the run, stays until the run ends: by it a later process ends a run
whose process died. The process that writes a file holds its lock: a file whose lock is free was
left behind by a process that died, or that ended while MLflow was down.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from io import FileIO
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)

Record = Mapping[str, Any]


class Outbox:
    """The records of one run: in memory, and in a file where there is a path for it.

    Tracking never fails a run: what the disk refuses stays in memory, and is written later.
    """

    def __init__(self, path: Path | None = None, stream: FileIO | None = None) -> None:
        """The file is made with the first record, unless its `stream` is open and locked."""
        self.waiting: deque[Record] = deque()
        self._path, self._stream = path, stream
        self._unwritten = bytearray()
        self._first_bytes = 0  # of the first record's line
        self._has_warned = False
        self._lock = threading.Lock()

    def read(self) -> None:
        """Take what the file holds, and cut off the last line where a kill left it in pieces."""
        assert self._stream is not None
        end = 0
        for line in self._stream.readall().splitlines(keepends=True):
            try:
                self.waiting.append(json.loads(line))
            except ValueError:
                break
            end += len(line)
            self._first_bytes = self._first_bytes or end
        self._stream.truncate(end)
        self._stream.seek(end)

    def add(self, record: Record) -> None:
        """Keep a record that is to be sent."""
        line = json.dumps(record).encode() + b"\n"
        with self._lock:
            self.waiting.append(record)
            self._unwritten += line
            self._first_bytes = self._first_bytes or len(self._unwritten)
        self.write()

    def write(self) -> None:
        """Write into the file what it lacks, if the disk takes it."""
        with self._lock:
            if self._path is None:
                self._unwritten.clear()
                return
            try:
                self._stream = self._stream or _new_file(self._path)
                while self._unwritten:
                    del self._unwritten[: self._stream.write(self._unwritten)]
            except OSError as error:
                self._warn(f"{error}. Data for MLflow is now kept in memory only")

    def remove_first(self) -> None:
        """MLflow has the first record that waits.

        Where it was the last, the file is cut to the first record of all, or removed after the end.
        """
        with self._lock:
            record = self.waiting.popleft()
            if self.waiting or self._path is None:
                return
            try:
                if "end" in record:
                    self._path.unlink(missing_ok=True)
                    self._path = None
                    if self._stream is not None:
                        self._stream.close()
                else:
                    self._cut_to_first()
            except OSError as error:
                self._warn(f"{error}. MLflow is sent what the file holds a second time")

    def _cut_to_first(self) -> None:
        num_written = os.fstat(self._stream.fileno()).st_size if self._stream else 0
        del self._unwritten[max(0, self._first_bytes - num_written) :]
        if self._stream and num_written > self._first_bytes:
            self._stream.truncate(self._first_bytes)

    def _warn(self, text: str) -> None:
        if not self._has_warned:
            logger.warning("%s: %s", self._path, text)
        self._has_warned = True


def take_over_files(folder: Path) -> Iterator[Outbox]:
    """The outboxes of processes that are gone, the oldest first; now they are this process's."""
    for path in sorted(folder.glob("*.jsonl")):
        try:
            outbox = _take_over(path)
        except (FileNotFoundError, BlockingIOError):  # it was just sent; its process is alive
            continue
        except OSError as error:
            logger.warning("%s: %s. What it holds for MLflow is not sent", path, error)
            continue
        if outbox is not None:
            yield outbox


def _take_over(path: Path) -> Outbox | None:
    """The outbox of a process that is gone, which then ends the run; None where it was sent."""
    with ExitStack() as stack:
        stream = stack.enter_context(FileIO(path, "r+"))
        fcntl.flock(stream.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        status = os.fstat(stream.fileno())
        if not status.st_nlink:  # another has just sent it
            return None
        outbox = Outbox(path, stream)
        outbox.read()
        stack.pop_all()
    if not any("end" in record for record in outbox.waiting):
        last = int(status.st_mtime * 1000)
        outbox.add({"end": "KILLED", "time": last, "unless_ended": True})
    return outbox


def _new_file(path: Path) -> FileIO:
    """A new file, which gets its name once it is locked: no other takes it for left behind."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unnamed = path.with_suffix(".new")
    stream = FileIO(unnamed, "a")  # unbuffered: what a full disk takes of a line is known
    fcntl.flock(stream.fileno(), fcntl.LOCK_EX)
    unnamed.rename(path)
    return stream


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
