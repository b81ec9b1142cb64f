"""The manifest: the one file whose presence makes a folder of objects an artifact.

A manifest lists every file with its size and sha256, and where the artifact came from (config,
parents, versions). It is written last; a manifest that does not parse, or whose digest does not
follow from its files, is no artifact.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Any

MANIFEST_NAME = "manifest.json"

# Telemetry carries wall-clock times. It is stored and checked like any other file, but two runs
# that computed the same weights are the same artifact, so it takes no part in the digest.
TELEMETRY_FILES = frozenset({"metrics.jsonl", "trainer.log"})

_SAFE_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+=-]*")


class StorageError(Exception):
    """Base of everything the store raises on its own account."""


class CorruptArtifactError(StorageError):
    """A stored object is missing, truncated or altered."""


class StoreUnavailableError(StorageError):
    """The object store failed a request in spite of all retries."""


class InvalidArtifactError(StorageError, ValueError):
    """A folder, stage name or key that cannot be stored as it is."""


class MalformedManifestError(StorageError, ValueError):
    """Bytes that are not a whole manifest."""


@dataclass(frozen=True)
class FileEntry:
    """One file: POSIX name relative to the folder, size in bytes, sha256 in hex."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True)
class Provenance:
    """Where an artifact came from: what it was computed with and from, how long, its summary.

    parents: of each input its stage, key and digest. versions: of the code and of libraries.
    seconds: of the trainer. summary: final numbers.
    """

    config: Mapping[str, Any] = field(default_factory=dict)
    parents: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    summary: Mapping[str, Any] = field(default_factory=dict)


NO_PROVENANCE = Provenance()


@dataclass(frozen=True, kw_only=True)
class Manifest(Provenance):
    """Everything known about one artifact (or, with fewer fields filled, one checkpoint)."""

    stage: str
    key: str
    digest: str
    files: tuple[FileEntry, ...]
    created: str

    @property
    def full_digest(self) -> str:
        """sha256 over all files, telemetry included; names the folder of the objects."""
        return _hash_entries(self.files)

    @property
    def size(self) -> int:
        """Bytes of all files together."""
        return sum(entry.size for entry in self.files)

    def to_bytes(self) -> bytes:
        """Canonical JSON. Raises ValueError where config or summary hold NaN or non-JSON values."""
        text = json.dumps(asdict(self), sort_keys=True, indent=1, allow_nan=False)
        return text.encode() + b"\n"

    @classmethod
    def from_bytes(cls, data: bytes) -> Manifest:
        """Parse and cross-check. Raises MalformedManifestError saying what is wrong."""
        try:
            raw = json.loads(data)
            files = tuple(
                FileEntry(str(f["name"]), int(f["size"]), str(f["sha256"])) for f in raw["files"]
            )
            for entry in files:
                check_name(entry.name)
            manifest = cls(
                **{**{field.name: raw[field.name] for field in fields(cls)}, "files": files}
            )
        except (ValueError, KeyError, TypeError) as error:
            raise MalformedManifestError(f"not a manifest: {error!r}") from error
        if manifest.digest != digest_files(files):
            raise MalformedManifestError(
                f"digest {manifest.digest!r} does not follow from the {len(files)} files listed"
            )
        return manifest


def has_exactly(folder: Path, files: Collection[FileEntry]) -> bool:
    """Whether `folder` holds exactly these files, unaltered."""
    if not folder.is_dir():
        return False
    present = {p.relative_to(folder).as_posix(): p for p in folder.rglob("*") if not p.is_dir()}
    return present.keys() == {entry.name for entry in files} and all(
        present[entry.name].stat().st_size == entry.size
        and hash_file(present[entry.name]) == entry.sha256
        for entry in files
    )


def build_manifest(
    stage: str, key: str, files: tuple[FileEntry, ...], provenance: Provenance = NO_PROVENANCE
) -> Manifest:
    """A manifest of `files`, dated now, with its digest computed."""
    return Manifest(
        **{**asdict(provenance), "seconds": round(provenance.seconds, 3)},
        stage=stage,
        key=key,
        digest=digest_files(files),
        files=files,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def hash_file(path: Path) -> str:
    """sha256 of a file's bytes, in hex."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def scan_folder(folder: Path) -> tuple[FileEntry, ...]:
    """All regular files under `folder`, sorted by name.

    Raises InvalidArtifactError for symbolic links and special files (they would be lost in object
    storage), for an empty folder, and for a top-level file that takes the manifest's name.
    Raises FileNotFoundError for a file that disappears while it is read (a rotated checkpoint).
    """
    entries = []
    for path in folder.rglob("*"):
        name = path.relative_to(folder).as_posix()
        if not os.path.lexists(path):  # a checkpoint that was rotated away meanwhile
            raise FileNotFoundError(f"{path} is gone")
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            raise InvalidArtifactError(
                f"{path} is a link or a special file; an artifact holds regular files only: "
                "write a copy there instead"
            )
        if path.is_file():
            check_name(name)
            entries.append(FileEntry(name, path.stat().st_size, hash_file(path)))
    if not entries:
        raise InvalidArtifactError(f"{folder} holds no files: there is nothing to store")
    return tuple(sorted(entries, key=lambda entry: entry.name))


def digest_files(files: Iterable[FileEntry]) -> str:
    """sha256 over the sorted (name, sha256) of the files, telemetry left out."""
    return _hash_entries(entry for entry in files if entry.name not in TELEMETRY_FILES)


def check_part(part: str, kind: str) -> str:
    """Return `part` if it is safe as one path component, else raise InvalidArtifactError."""
    if not _SAFE_PART.fullmatch(part):
        raise InvalidArtifactError(
            f"{kind} {part!r} cannot be stored; allowed are letters, digits and _.+=-, "
            "beginning with a letter, a digit or _"
        )
    return part


def check_name(name: str) -> str:
    """`name` if it is a plain relative POSIX path, else InvalidArtifactError."""
    parts = PurePosixPath(name).parts
    bad = not parts or name.startswith("/") or "\\" in name or "\0" in name
    if bad or ".." in parts or PurePosixPath(name).as_posix() != name:
        raise InvalidArtifactError(
            f"file name {name!r} is not a plain relative path; rename the file"
        )
    if name == MANIFEST_NAME:
        raise InvalidArtifactError(f"the name {name!r} is kept for the manifest; rename the file")
    return name


def _hash_entries(files: Iterable[FileEntry]) -> str:
    pairs = sorted((entry.name, entry.sha256) for entry in files)
    return hashlib.sha256(json.dumps(pairs, separators=(",", ":")).encode()).hexdigest()
