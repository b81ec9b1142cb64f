"""Locks between the processes and threads of one machine, freed by the kernel on any death."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

_POLL_SECONDS = 0.05


@contextmanager
def file_lock(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on a file, waiting for it as long as it takes.

    It polls rather than blocks, so that a thread that is cancelled meanwhile notices. The file
    stays: removing it would let two holders in.
    """
    with one_of([path]):
        yield


@contextmanager
def one_of(paths: list[Path]) -> Iterator[Path]:
    """Hold whichever of several locks is free first: one of `len(paths)` slots."""
    with ExitStack() as stack:
        streams = []
        for path in paths:
            path.parent.mkdir(parents=True, exist_ok=True)
            streams.append(stack.enter_context(path.open("a")))
        while (taken := _first_free(streams)) is None:
            time.sleep(_POLL_SECONDS)
        yield paths[taken]


def _first_free(streams: Sequence[IO[str]]) -> int | None:
    for index, stream in enumerate(streams):
        try:
            fcntl.flock(stream.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            continue
        return index
    return None
