"""A user's data file or folder: its digest, and bringing it from where they keep it.

It is a path or s3://. Where access is limited (`trimtab.infra.access`), a path is opened below a
folder that is allowed, and what is copied is what was opened.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trimtab.infra.access import Access, AccessError, open_in
from trimtab.infra.store.manifest import hash_file

_STORED = r"raw:[0-9a-f]{64}/[^/\x00-\x1f\x7f-\x9f\u2028\u2029]+"


class FetchError(ValueError):
    """A source that is not there."""


def is_remote(source: str) -> bool:
    """Whether a source lies in object storage."""
    return source.startswith("s3://")


def is_stored(source: str) -> bool:
    """Whether a source is a file that the store has as an artifact of stage `raw`.

    raw:<sha256>/<name of the file, without control characters and ends of lines>
    """
    return re.fullmatch(_STORED, source) is not None


def digest_of(path: Path) -> str:
    """sha256 in hex over the name and content of a file, or of all files of a folder."""
    digest = hashlib.sha256()
    for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
        if file.is_file():
            digest.update(f"{file.relative_to(path.parent)}\0{hash_file(file)}\n".encode())
    return digest.hexdigest()


def fetch(
    source: str,
    folder: Path,
    access: Access | None = None,
    is_data: Callable[[str], bool] = lambda _: True,
) -> Path:
    """Copy a local file or folder, or download an s3:// object or prefix, into `folder`.

    Returns the path of the copy. A folder's files whose names are not those of data are left empty.
    Without `access` everything may be read. Raises FetchError when nothing is there, and
    AccessError.
    """
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / (source.rstrip("/").rpartition("/")[2] or "data")
    if is_remote(source):
        if access is not None:
            access.demand_file(source)
        _download(source, target, is_data)
        return target
    path = Path(source).expanduser()
    if access is not None:
        try:
            with access.opened(source) as descriptor:
                _copy_opened(access, descriptor, str(path), target, is_data)
        except FileNotFoundError:
            raise _missing(source) from None
    elif path.is_dir():

        def copy(name: str, to: str) -> None:
            shutil.copyfile(name, to) if is_data(Path(name).name) else Path(to).touch()

        shutil.copytree(path, target, copy_function=copy, dirs_exist_ok=True)
    elif path.is_file():
        shutil.copyfile(path, target)
    else:
        raise _missing(source)
    return target


def _missing(source: str) -> FetchError:
    return FetchError(f"{source}: found no file or folder; give an existing path or s3://")


def _copy_opened(
    access: Access, descriptor: int, path: str, target: Path, is_data: Callable[[str], bool]
) -> None:
    """Copy an open file, or an open folder with all below; links in it count by where they lead."""
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        with open(descriptor, "rb", closefd=False) as source, target.open("wb") as copy:
            shutil.copyfileobj(source, copy)
        return
    target.mkdir(exist_ok=True)
    with os.scandir(descriptor) as scanned:
        entries = sorted(scanned, key=lambda entry: entry.name)
    for entry in entries:
        inner, to = f"{path}/{entry.name}", target / entry.name
        if not entry.is_dir(follow_symlinks=False) and not is_data(entry.name):
            to.touch()
            continue
        is_link = entry.is_symlink()
        opening = access.opened(inner) if is_link else _opened_in(descriptor, entry.name)
        with opening as below:
            if is_link and not stat.S_ISREG(os.fstat(below).st_mode):
                raise AccessError(f"{inner!r} is a link to a folder: name that folder instead")
            _copy_opened(access, below, inner, to, is_data)


@contextmanager
def _opened_in(folder: int, name: str) -> Iterator[int]:
    descriptor = open_in(folder, name)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _download(source: str, target: Path, is_data: Callable[[str], bool]) -> None:
    """One object to `target`, or all objects below a prefix into the folder `target`."""
    import boto3
    from botocore.exceptions import BotoCoreError, ClientError

    bucket, _, key = source.removeprefix("s3://").partition("/")
    client: Any = boto3.client("s3")
    try:
        pages = client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=key)
        keys = [item["Key"] for page in pages for item in page.get("Contents", [])]
        for name, path in _targets(source, key, keys, target):
            path.parent.mkdir(parents=True, exist_ok=True)
            if path == target or is_data(path.name):
                client.download_file(bucket, name, str(path))
            else:
                path.touch()
    except (BotoCoreError, ClientError) as error:
        raise FetchError(f"{source}: {error}") from error


def _targets(
    source: str, key: str, keys: Sequence[str], target: Path
) -> Iterator[tuple[str, Path]]:
    """Each object to download and where to. Raises FetchError for none, or one that leads out."""
    if key in keys:
        yield key, target
        return
    prefix = key.rstrip("/") + "/" if key else ""
    # Some tools keep empty objects named like folders.
    below = [name for name in keys if name.startswith(prefix) and not name.endswith("/")]
    if not below:
        raise FetchError(f"{source}: found no object and no prefix of that name")
    for name in below:
        parts = name.removeprefix(prefix).split("/")
        if ".." in parts:
            raise FetchError(f"{source}: the object {name!r} would leave the folder it belongs in")
        yield name, target.joinpath(*parts)
