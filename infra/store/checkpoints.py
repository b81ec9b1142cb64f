"""Copy checkpoints between a work folder and the store during training.

A trainer writes `<workdir>/checkpoints/<step>` as a dot-named folder and renames it; whatever has
a number for a name is whole and does not change any more, though the trainer may delete it.
"""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path
from typing import Self

from trimtab.infra.store.manifest import CorruptArtifactError, StorageError
from trimtab.infra.store.store import Store

logger = logging.getLogger(__name__)

_POLL_SECONDS = 0.5
_RETRY_SECONDS = 30.0


def newest_local(folder: Path) -> int | None:
    """The highest step with a whole checkpoint in a work folder's `checkpoints`."""
    if not folder.is_dir():
        return None
    steps = [int(p.name) for p in folder.iterdir() if p.name.isdecimal() and p.is_dir()]
    return max(steps, default=None)


def restore_newest(store: Store, key: str, folder: Path) -> int | None:
    """Bring the newest whole checkpoint to `folder`/<step> unless one as new is there already.

    A corrupt one is skipped with a warning. Returns the step training will
    continue from, None for the beginning.
    """
    local = newest_local(folder)
    stored = store.newest_checkpoint(key)
    while stored is not None and (local is None or stored[0] > local):
        step, fetch = stored
        folder.mkdir(parents=True, exist_ok=True)
        try:
            fetch(folder / str(step))
        except CorruptArtifactError as error:
            logger.warning("skipping the checkpoint at step %d: %s", step, error)
            stored = store.newest_checkpoint(key, before=step)
            continue
        return step
    return local


class CheckpointUploader:
    """A thread that stores each new checkpoint; a failing store costs warnings, not training.

    As a context manager it stores what is left when training ends early, so that a stop on
    request can continue elsewhere; after success (`discard`) the rest is not needed.
    """

    def __init__(self, store: Store, key: str, folder: Path) -> None:
        self._store = store
        self._key = key
        self._folder = folder
        self._stored: int | None = None
        self._retry_at = 0.0
        self._stop = threading.Event()
        self._discard = False
        self._thread = threading.Thread(
            target=self._run, name=f"checkpoints-{key[:8]}", daemon=True
        )

    def discard(self) -> None:
        """Training has succeeded: store no further checkpoint."""
        self._discard = True

    def __enter__(self) -> Self:
        newest = self._store.newest_checkpoint(self._key)
        self._stored = newest[0] if newest else None
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        if not self._discard:
            self._retry_at = 0.0
            self._upload()

    def _run(self) -> None:
        while not self._stop.wait(_POLL_SECONDS):
            if time.monotonic() >= self._retry_at:
                self._upload()

    def _upload(self) -> None:
        step = newest_local(self._folder)
        if step is None or (self._stored is not None and step <= self._stored):
            return
        try:
            self._store.save_checkpoint(self._key, step, self._folder / str(step))
        except FileNotFoundError:  # the trainer has deleted it for a newer one: next time
            return
        except (StorageError, OSError) as error:
            self._retry_at = time.monotonic() + _RETRY_SECONDS
            logger.warning("checkpoint at step %d is not in the store yet: %s", step, error)
            return
        self._stored = step
