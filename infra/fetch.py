"""A user's data file or folder: its digest, and bringing it from a path or s3://."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any


class FetchError(ValueError):
    """A source that is not there."""


def is_remote(source: str) -> bool:
    """Whether a source lies in object storage."""
    return source.startswith("s3://")


def digest_of(path: Path) -> str:
    """sha256 in hex over the name and content of a file, or of all files of a folder."""
    digest = hashlib.sha256()
    for each in sorted(path.rglob("*")) if path.is_dir() else [path]:
        if each.is_file():
            with each.open("rb") as stream:
                content = hashlib.file_digest(stream, "sha256").hexdigest()
            digest.update(f"{each.relative_to(path.parent)}\0{content}\n".encode())
    return digest.hexdigest()


def fetch(source: str, folder: Path) -> Path:
    """Copy a local file or folder, or download an s3:// object or prefix, into `folder`.

    Returns the path of the copy. Raises FetchError when nothing is there.
    """
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / (source.rstrip("/").rpartition("/")[2] or "data")
    if is_remote(source):
        _download(source, target)
        return target
    path = Path(source).expanduser()
    if path.is_dir():
        shutil.copytree(path, target, dirs_exist_ok=True)
    elif path.is_file():
        shutil.copyfile(path, target)
    else:
        raise FetchError(f"{source}: found no file or folder; give an existing path or s3://")
    return target


def _download(source: str, target: Path) -> None:
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
            client.download_file(bucket, name, str(path))
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
