"""Content-addressed artifacts and checkpoints, in a local folder or in S3.

Layout below the root:

    artifacts/<stage>/<key>/manifest.json                 written last; its presence is the artifact
    artifacts/<stage>/<key>/<content[:16]>/<file name>    the objects
    checkpoints/<key>/<step>/...                          the same, one checkpoint a step

The folder of the objects is named after their contents: two publishers of one key whose results
differ (a trainer on a GPU is not bit-reproducible) never write over each other's objects, and the
manifest decides which of them count.
"""

from __future__ import annotations

import functools
import logging
import os
import shutil
import uuid
from collections.abc import Callable, Collection
from pathlib import Path
from urllib.parse import unquote, urlsplit

from trimtab.infra.store.manifest import (
    MANIFEST_NAME,
    NO_PROVENANCE,
    CorruptArtifactError,
    FileEntry,
    MalformedManifestError,
    Manifest,
    Provenance,
    StorageError,
    build_manifest,
    check_part,
    has_exactly,
    hash_file,
    scan_folder,
)
from trimtab.infra.store.objects import LocalObjects, ObjectStore

logger = logging.getLogger(__name__)

Fetch = Callable[[Path], None]


class StoreUrlError(StorageError, ValueError):
    """A store URL of a form that is not known."""


class Store:
    """Artifacts by (stage, key) and checkpoints by key, over one place that keeps objects."""

    def __init__(self, objects: ObjectStore, url: str) -> None:
        self.objects = objects
        self.url = url

    # ---- artifacts

    def find(self, stage: str, key: str) -> Manifest | None:
        """The artifact's manifest, or None if there is no whole artifact under that key."""
        return self._read(_artifact(stage, key), stage, key)

    def publish(
        self, stage: str, key: str, folder: Path, provenance: Provenance = NO_PROVENANCE
    ) -> Manifest:
        """Make `folder` the artifact under (stage, key): objects first, the manifest last.

        The first publisher wins; whoever comes later gets the winner's manifest back, and its own
        objects are removed. Raises OSError or a boto3 error when storing fails, and then there is
        no artifact.
        """
        root = _artifact(stage, key)
        manifest = build_manifest(stage, key, scan_folder(folder), provenance)
        data = manifest.to_bytes()
        while True:
            winner = self.find(stage, key)
            if winner is None:
                self._put_objects(root, manifest, folder, link=False)
                # What stands there now is absent or malformed: replace exactly that, or nothing.
                present = self.objects.get_bytes(f"{root}/{MANIFEST_NAME}")
                if self.find(stage, key) is None and self.objects.swap_bytes(
                    f"{root}/{MANIFEST_NAME}", data, present
                ):
                    return manifest
                continue
            if winner.full_digest != manifest.full_digest:
                self._delete_folder(f"{root}/{manifest.full_digest[:16]}")
            return winner

    def materialise(
        self, manifest: Manifest, folder: Path, is_wanted: Callable[[str], bool] = lambda _: True
    ) -> None:
        """Bring the files whose names are wanted to `folder`, read-only, sha256 checked.

        A folder that has them already stays, any other is replaced. CorruptArtifactError names
        what is missing.
        """
        files = [entry for entry in manifest.files if is_wanted(entry.name)]
        if not has_exactly(folder, files):
            self._fetch(_artifact(manifest.stage, manifest.key), manifest, folder, files=files)

    def put_beside(self, manifest: Manifest, folder: Path, place: str) -> None:
        """Put the files of `folder` beside those of an artifact, into its folder `place`.

        They are no part of the artifact: whoever reads it does not get them, and they go with it.
        """
        root = f"{_artifact(manifest.stage, manifest.key)}/{manifest.full_digest[:16]}"
        for entry in scan_folder(folder):
            path = folder / entry.name
            self.objects.put_file(f"{root}/{place}/{entry.name}", path, entry.sha256)

    def delete(self, stage: str, key: str) -> None:
        """Remove an artifact."""
        self._delete_manifest_first(_artifact(stage, key))

    # ---- checkpoints

    def save_checkpoint(self, key: str, step: int, folder: Path, *, keep: int = 2) -> Manifest:
        """Store a checkpoint folder, then drop all but the newest `keep` of that key."""
        root = _checkpoint(key, step)
        manifest = build_manifest("checkpoint", key, scan_folder(folder))
        self._put_objects(root, manifest, folder, link=True)
        self.objects.put_bytes(f"{root}/{MANIFEST_NAME}", manifest.to_bytes())
        for old in sorted(self._steps(key))[:-keep]:
            self._delete_manifest_first(_checkpoint(key, old))
        return manifest

    def newest_checkpoint(self, key: str, before: int | None = None) -> tuple[int, Fetch] | None:
        """The newest whole checkpoint (older than step `before`), or None.

        The function returned brings it to a folder; it raises CorruptArtifactError as
        `materialise` does, and then `before=step` finds the next older one.
        """
        for step in sorted(self._steps(key), reverse=True):
            if before is not None and step >= before:
                continue
            root = _checkpoint(key, step)
            manifest = self._read(root, "checkpoint", key)
            if manifest is not None:
                return step, functools.partial(self._fetch, root, manifest, files=manifest.files)
        return None

    def delete_checkpoints(self, key: str) -> None:
        """Remove all checkpoints of a key."""
        self._delete_folder(f"checkpoints/{check_part(key, 'key')}")

    # ---- shared

    def _steps(self, key: str) -> set[int]:
        root = f"checkpoints/{check_part(key, 'key')}"
        parts = (name[len(root) + 1 :].split("/")[0] for name in self.objects.list(root))
        return {int(part) for part in parts if part.isdecimal()}

    def _read(self, root: str, stage: str, key: str) -> Manifest | None:
        name = f"{root}/{MANIFEST_NAME}"
        data = self.objects.get_bytes(name)
        if data is None:
            return None
        try:
            manifest = Manifest.from_bytes(data)
            if (manifest.stage, manifest.key) != (stage, key):
                raise MalformedManifestError(f"it is of {manifest.stage}/{manifest.key}")
            infos = self.objects.list(f"{root}/{manifest.full_digest[:16]}")
            for entry in manifest.files:
                info = infos.get(_object(root, manifest, entry))
                size = info.size if info else None
                if size != entry.size:
                    raise MalformedManifestError(f"{entry.name} is {size}, not {entry.size} bytes")
        except MalformedManifestError as error:
            logger.warning("%s/%s is not a whole artifact: %s", self.url, name, error)
            return None
        return manifest

    def _put_objects(self, root: str, manifest: Manifest, folder: Path, *, link: bool) -> None:
        for entry in manifest.files:
            name = _object(root, manifest, entry)
            self.objects.put_file(name, folder / entry.name, entry.sha256, link=link)

    def _fetch(
        self, root: str, manifest: Manifest, folder: Path, *, files: Collection[FileEntry]
    ) -> None:
        temp = folder.parent / f".{folder.name}.{uuid.uuid4().hex[:8]}"
        try:
            temp.mkdir(parents=True)
            for entry in files:
                path = temp / entry.name
                path.parent.mkdir(parents=True, exist_ok=True)
                self._fetch_file(_object(root, manifest, entry), entry, path)
            if folder.exists():
                shutil.rmtree(folder)
            os.replace(temp, folder)
        finally:
            shutil.rmtree(temp, ignore_errors=True)

    def _fetch_file(self, name: str, entry: FileEntry, path: Path) -> None:
        try:
            self.objects.get_file(name, path)
        except KeyError as error:
            raise CorruptArtifactError(f"{self.url}/{name} is missing") from error
        size, sha256 = path.stat().st_size, hash_file(path)
        if (size, sha256) != (entry.size, entry.sha256):
            raise CorruptArtifactError(
                f"{self.url}/{name} is corrupt: {size} bytes, sha256 {sha256}; its manifest says "
                f"{entry.size} bytes, sha256 {entry.sha256}. Delete the artifact to compute it anew"
            )

    def _delete_manifest_first(self, root: str) -> None:
        """In this order no reader takes what is left for whole."""
        self.objects.delete(f"{root}/{MANIFEST_NAME}")
        self._delete_folder(root)

    def address(self, manifest: Manifest) -> str:
        """Folder or s3:// address of an artifact's files."""
        root = _artifact(manifest.stage, manifest.key)
        return f"{self.url}/{root}/{manifest.full_digest[:16]}"

    def _delete_folder(self, root: str) -> None:
        for name in self.objects.list(root):
            self.objects.delete(name)


def open_store(url: str) -> Store:
    """A store at a folder path, `file:///folder`, or `s3://bucket/prefix`.

    Raises StoreUrlError for any other form, and s3.StoreLocationError for a bucket out of reach.
    """
    parts = urlsplit(url)
    if parts.scheme == "s3" and parts.netloc:
        from trimtab.infra.store.s3 import S3Objects  # boto3 takes half a second to load

        return Store(S3Objects(parts.netloc, parts.path), url.rstrip("/"))
    if parts.scheme == "file" and parts.netloc in ("", "localhost") and parts.path:
        return Store(LocalObjects(Path(unquote(parts.path))), url.rstrip("/"))
    if "://" not in url and url:
        return Store(LocalObjects(Path(url)), str(Path(url).resolve()))
    raise StoreUrlError(
        f"store is {url!r}; allowed: a folder, file:///folder or s3://bucket/prefix"
    )


def _artifact(stage: str, key: str) -> str:
    return f"artifacts/{check_part(stage, 'stage')}/{check_part(key, 'key')}"


def _checkpoint(key: str, step: int) -> str:
    return f"checkpoints/{check_part(key, 'key')}/{step}"


def _object(root: str, manifest: Manifest, entry: FileEntry) -> str:
    return f"{root}/{manifest.full_digest[:16]}/{entry.name}"
