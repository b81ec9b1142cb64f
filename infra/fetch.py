"""Bringing a user's data file or folder from where they keep it: a path or s3://."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any


class FetchError(ValueError):
    """A source that is not there."""


def is_remote(source: str) -> bool:
    """Whether a source lies in object storage."""
    return source.startswith("s3://")


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

    bucket, _, key = source.removeprefix("s3://").partition("/")
    client: Any = boto3.client("s3")
    pages = client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=key)
    keys = [item["Key"] for page in pages for item in page.get("Contents", [])]
    if key in keys:
        client.download_file(bucket, key, str(target))
        return
    below = [name for name in keys if name.startswith(key.rstrip("/") + "/")]
    if not below:
        raise FetchError(f"{source}: found no object and no prefix of that name")
    for name in below:
        path = target / name[len(key.rstrip("/")) + 1 :]
        path.parent.mkdir(parents=True, exist_ok=True)
        client.download_file(bucket, name, str(path))
