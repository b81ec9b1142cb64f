"""Locks between the processes and threads of one machine, freed by the kernel on any death.

A stage takes its locks in this order, and gives all of them back when it ends:

    1. its key's lock                    file_lock  <home>/work/.locks/<stage>-<key>.lock
    2. slots for cores                   hold_slots <home>/work/.locks/slot-<n>.lock
    3. GPUs of this host                 hold_slots <home>/work/.locks/gpus/<name>.lock
    4. GPU slots of all hosts            trimtab.tasks.resources, on Prefect's server

Nobody waits for a key's lock while holding another lock, and `hold_slots` takes all that it wants
at once or none. So a holder waits at most for locks later in this order, and the holder of the last
waits for nobody: there is no cycle. `waiting.lock`, beside the slots, says that somebody waits for
a slot; only `hold_slots` uses it, as waiting for a key is not waiting for a slot.

Held for a moment, and nothing of the above is asked for meanwhile: the store's `.tmp/lock` for a
manifest, `<home>/reports/.<name>.lock` for a report's folder, `<home>/.mlflow.lock` and
`<home>/prefect/.tables.lock` for making databases, a file of trimtab.infra.tracking.outbox by who
sends it. The report's lock is the outermost of these. A stack's folder and one of backups are
locked for as long as a command of the stack uses them. Locks of threads guard single calls; those
of judges live inside trainers.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

_POLL_SECONDS = 0.05
# A stage that ends makes others ready: the patient give them so long to come for its slot, and
# longer where they would leave none to others.
_PATIENCE_SECONDS = 1.0
_LAST_PATIENCE_SECONDS = 5.0


def pause() -> None:
    """Wait a moment between two tries."""
    time.sleep(_POLL_SECONDS)


@contextmanager
def file_lock(path: Path, wait: Callable[[], None] = pause) -> Iterator[None]:
    """Hold an exclusive lock on a file, waiting for it as long as it takes.

    It polls rather than blocks, so that a thread that is cancelled meanwhile notices. The file
    stays: removing it would let two holders in.
    """
    with _opened(path) as stream:
        while not _take([stream], 1):
            wait()
        yield


@contextmanager
def try_folder_lock(folder: Path) -> Iterator[bool]:
    """Hold an exclusive lock on a folder that exists, if nobody has it; whether it is held.

    Nothing is written into the folder.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(descriptor)


@contextmanager
def hold_slots(
    paths: list[Path],
    count: int,
    *,
    is_patient: bool = False,
    wait: Callable[[], None] = pause,
) -> Iterator[list[Path]]:
    """Hold `count` of several locks, or all where there are fewer, whichever are free first: slots.

    Gives those it holds. What `wait` raises, between two tries, ends the waiting.

    It takes all `count` at once or none, so no holder waits for more. With `is_patient` it takes
    locks only after they were free for a while with no other waiter, and the first, which others
    take first, only after it was free for longer.
    """
    if is_patient:
        paths = [*paths[1:], paths[0]]
    count = min(count, len(paths))
    with ExitStack() as stack:
        streams = [stack.enter_context(_opened(path)) for path in paths]
        queue = stack.enter_context(_opened(paths[0].with_name("waiting.lock")))
        if is_patient:
            taken = _wait_behind(queue, streams, count, wait)
        else:
            fcntl.flock(queue.fileno(), fcntl.LOCK_SH)  # held by all that wait
            while not (taken := _take(streams, count)):
                wait()
            fcntl.flock(queue.fileno(), fcntl.LOCK_UN)
        yield [Path(stream.name) for stream in taken]


def _opened(path: Path) -> IO[str]:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.open("a")


def _wait_behind(
    queue: IO[str], streams: Sequence[IO[str]], count: int, wait: Callable[[], None]
) -> list[IO[str]]:
    """Take slots that have been free for a while, with nobody waiting; the last, if there are
    others, after longer."""
    *_, last = streams
    free_since, before, misses = time.monotonic(), list[IO[str]](), 0
    while True:
        taken = _take_behind(queue, streams, count)
        misses = 0 if taken else misses + 1
        # One miss by itself is another of the patient that looks at the same moment.
        if misses > 1 or (taken and taken != before):
            free_since, before = time.monotonic(), taken
        is_last = last in taken and len(streams) > 1
        patience = _LAST_PATIENCE_SECONDS if is_last else _PATIENCE_SECONDS
        if taken and time.monotonic() - free_since >= patience:
            return taken
        _give_back(streams)
        wait()


def _take_behind(queue: IO[str], streams: Sequence[IO[str]], count: int) -> list[IO[str]]:
    try:
        fcntl.flock(queue.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return []
    try:
        return _take(streams, count)
    finally:
        fcntl.flock(queue.fileno(), fcntl.LOCK_UN)


def _take(streams: Sequence[IO[str]], count: int) -> list[IO[str]]:
    """Lock `count` of the files, at least one, or none."""
    taken: list[IO[str]] = []
    for stream in streams:
        if len(taken) == count:
            break
        try:
            fcntl.flock(stream.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            continue
        taken.append(stream)
    if len(taken) == count:
        return taken
    _give_back(taken)
    return []


def _give_back(streams: Sequence[IO[str]]) -> None:
    for stream in streams:
        fcntl.flock(stream.fileno(), fcntl.LOCK_UN)
