"""Files that people give a run: brought into the store under their content."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from trimtab.infra.access import AccessError
from trimtab.infra.store.fetch import FetchError, digest_of, fetch, is_stored
from trimtab.infra.store.manifest import Provenance
from trimtab.models.data.files import KINDS, SUFFIXES
from trimtab.models.data.records import ArtifactRef
from trimtab.models.judge.constitutions import PACKAGED, load_constitution
from trimtab.tasks.access import access_of_run
from trimtab.tasks.context import base_context

_IS_REVIEW = "is_review"  # in the provenance of a file


def import_source(source: str, check: Callable[[Path], object] | None = None) -> ArtifactRef:
    """Publish a source's bytes as an artifact of stage `raw`, once.

    Nothing is published but what the run may read (`trimtab.tasks.access`): of data, files of its
    kinds; of others what passes `check`, which takes the folder. Raises
    trimtab.infra.store.fetch.FetchError where nothing of the kind is there,
    trimtab.infra.access.AccessError, and what `check` raises.
    """
    with tempfile.TemporaryDirectory(prefix="trimtab-") as scratch:
        folder = Path(scratch)
        copy = fetch(source, folder, access_of_run(), is_data if check is None else lambda _: True)
        if check is not None:
            check(folder)
        elif copy.is_file() and not is_data(copy.name):
            raise FetchError(f"{source}: found {copy.suffix!r}; allowed: {KINDS}")
        return _publish(copy, digest_of(copy), {"name": copy.name})


def publish_digest(folder: Path) -> ArtifactRef:
    """Publish, once, the sha256 over what a folder holds, and nothing of the folder itself."""
    with tempfile.TemporaryDirectory(prefix="trimtab-") as scratch:
        path = Path(scratch) / "sha256"
        path.write_text(f"{digest_of(folder)}\n", "utf-8")
        return _publish(path, digest_of(path), {"name": path.name})


def publish_review(path: Path) -> ArtifactRef:
    """Publish a file or folder that has been checked to be a review, once: every run may read it.

    Its key is not that of the same file given as data, which has no such mark.
    """
    key = hashlib.sha256(f"review {digest_of(path)}".encode()).hexdigest()
    return _publish(path, key, {"name": path.name, _IS_REVIEW: True})


def _publish(path: Path, key: str, config: Mapping[str, Any]) -> ArtifactRef:
    """Publish a file or folder that is alone in its folder."""
    store = base_context().store
    manifest = store.find("raw", key) or store.publish(
        "raw", key, path.parent, Provenance(config=config)
    )
    return ArtifactRef(manifest.stage, manifest.key, manifest.digest)


def import_review(source: str) -> ArtifactRef:
    """A review's file as an artifact, also one that the store has already (`raw:`).

    Of those a worker's run may read what `publish_review` has published. Raises what
    `import_source` raises; FetchError where the store does not have it.
    """
    if not is_stored(source):
        return import_source(source)
    store, key = base_context().store, source.removeprefix("raw:").partition("/")[0]
    manifest = store.find("raw", key)
    if access_of_run() is not None and not (manifest and manifest.config.get(_IS_REVIEW)):
        raise AccessError(
            f"{source!r} may not be read; allowed are addresses of reviews that were given to a "
            "suspended run"
        )
    if manifest is None:
        raise FetchError(f"{source}: found no such file in the store {store.url}")
    return ArtifactRef(manifest.stage, manifest.key, manifest.digest)


def require_review(source: str | None) -> None:
    """Raise what `import_review` raises for a review that the store should have already."""
    if source is not None and is_stored(source):
        import_review(source)


def import_constitution(name: str | None) -> dict[str, ArtifactRef]:
    """The user's constitution as an input of the stage; no input for a packaged one.

    Raises trimtab.models.judge.constitutions.ConstitutionError, and as above.
    """
    if name is None or name in PACKAGED:
        return {}
    return {"constitution": import_source(name, lambda folder: load_constitution(name, folder))}


def is_data(name: str) -> bool:
    """Whether a file's name is one of data."""
    return name.lower().endswith(SUFFIXES)
