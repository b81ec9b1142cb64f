"""The interface to an object store, which keeps bytes by name, and a local folder as one.

Names are POSIX paths below one root. The rule both places keep: an object is either absent or
whole. A write that fails half way (no space, a kill) leaves the old state behind.
"""

from __future__ import annotations

import errno
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import Protocol

from trimtab.infra.processes.locks import file_lock
from trimtab.infra.store.manifest import CorruptArtifactError, hash_file

_TEMP = ".tmp"
_STALE_SECONDS = 24 * 3600.0


@dataclass(frozen=True)
class ObjectInfo:
    """What a listing says of an object: bytes, and when it was written (seconds of the epoch)."""

    size: int
    modified: float


class ObjectStore(Protocol):
    """A flat space of named objects. All methods are safe to call from several threads."""

    def put_file(self, name: str, path: Path, sha256: str, *, link: bool = False) -> None:
        """Store a file whole. `link` lets a local folder share the inode of an immutable file.

        Raises CorruptArtifactError when what was stored is not what `sha256` says.
        """

    def get_file(self, name: str, path: Path) -> None:
        """Bring an object to `path`, read-only. Raises KeyError if there is none."""

    def get_bytes(self, name: str) -> bytes | None:
        """A small object's bytes, or None if there is none."""

    def put_bytes(self, name: str, data: bytes) -> None:
        """Store a small object, replacing an older one."""

    def swap_bytes(self, name: str, data: bytes, expected: bytes | None) -> bool:
        """Compare and swap: store `data` only if the object still equals `expected` (None: absent).

        Returns whether it did. Of writers that expect the same state exactly one succeeds.
        """

    def list(self, prefix: str) -> dict[str, ObjectInfo]:
        """Name -> size and age of every object below the folder `prefix`; all, if it is empty."""

    def delete(self, name: str) -> None:
        """Remove one object; not an error if it is absent."""

    def now(self) -> float:
        """Seconds of the epoch by the store's own clock, from which ages are computed."""

    def drop_unfinished(self, before: float) -> int:
        """Remove unfinished writes begun before `before` (epoch seconds); returns how many."""


class LocalObjects:
    """Objects as files below a folder: temporary file, fsync, rename, fsync of the folder."""

    def __init__(self, root: Path) -> None:
        """Creates `root`, and removes temporary files that a kill left there a day ago or more."""
        self.root = root.resolve()
        self._temp = self.root / _TEMP
        self._temp.mkdir(parents=True, exist_ok=True)
        self.drop_unfinished(self.now() - _STALE_SECONDS)

    def put_file(self, name: str, path: Path, sha256: str, *, link: bool = False) -> None:
        with self._temporary(name) as temp:
            if not (link and _try_link(path, temp)):
                shutil.copyfile(path, temp)
                os.chmod(temp, 0o444)
            if hash_file(temp) != sha256:
                raise CorruptArtifactError(f"{path} changed while it was being stored as {name}")
            _fsync(temp)

    def get_file(self, name: str, path: Path) -> None:
        source = self.root / name
        try:
            if not _try_link(source, path):
                shutil.copyfile(source, path)
                os.chmod(path, 0o444)
        except FileNotFoundError as error:
            raise KeyError(name) from error

    def get_bytes(self, name: str) -> bytes | None:
        try:
            return (self.root / name).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def put_bytes(self, name: str, data: bytes) -> None:
        with self._temporary(name) as temp:
            temp.write_bytes(data)
            _fsync(temp)

    def swap_bytes(self, name: str, data: bytes, expected: bytes | None) -> bool:
        with file_lock(self._temp / "lock"):
            if self.get_bytes(name) != expected:
                return False
            self.put_bytes(name, data)
            return True

    def list(self, prefix: str) -> dict[str, ObjectInfo]:
        objects: dict[str, ObjectInfo] = {}
        for folder, _, names in os.walk(self.root / prefix):
            for name in names:
                path = Path(folder, name)
                try:
                    status = path.stat()
                except FileNotFoundError:  # deleted by someone else between the two calls
                    continue
                relative = path.relative_to(self.root).as_posix()
                # ctime: when it came here. A hard-linked file keeps its old mtime.
                objects[relative] = ObjectInfo(status.st_size, status.st_ctime)
        return objects

    def delete(self, name: str) -> None:
        path = self.root / name
        path.unlink(missing_ok=True)
        for parent in path.parents:
            if parent == self.root:
                break
            try:
                parent.rmdir()
            except OSError:  # not empty, or already gone
                break

    def now(self) -> float:
        with TemporaryFile(dir=self._temp) as probe:
            return os.fstat(probe.fileno()).st_ctime

    def drop_unfinished(self, before: float) -> int:
        count = 0
        for path in self._temp.iterdir():
            try:
                is_old = path.name != "lock" and path.stat().st_ctime < before
            except FileNotFoundError:  # another run has ended its write since it was listed
                continue
            if is_old:
                path.unlink(missing_ok=True)
                count += 1
        return count

    @contextmanager
    def _temporary(self, name: str) -> Iterator[Path]:
        """A temporary path that becomes `name` on success and vanishes on failure."""
        temp = self._temp / uuid.uuid4().hex
        target = self.root / name
        try:
            yield temp
            for attempt in range(5):
                target.parent.mkdir(parents=True, exist_ok=True)
                try:
                    os.replace(temp, target)
                    break
                except FileNotFoundError:  # delete() of a neighbour removed the empty folder
                    if attempt == 4 or not temp.exists():
                        raise
            _fsync(target.parent)
        finally:
            temp.unlink(missing_ok=True)


def _try_link(source: Path, target: Path) -> bool:
    """Hard-link and make read-only; False where the file system cannot (another device, a limit).

    A hard link, never a symbolic one: the target stays whole when the source is deleted.
    """
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError as error:
        if error.errno in (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.EACCES):
            return False
        raise
    os.chmod(target, 0o444)
    return True


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
