"""Files that people give a run: brought into the store under their content."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from trimtab.infra.store.fetch import FetchError, digest_of, fetch, is_stored
from trimtab.infra.store.manifest import Provenance
from trimtab.models.data.files import KINDS, SUFFIXES
from trimtab.models.data.records import ArtifactRef
from trimtab.models.judge.constitutions import PACKAGED, load_constitution
from trimtab.tasks.access import access_of_run
from trimtab.tasks.context import base_context


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
        return publish_file(copy)


def publish_file(path: Path) -> ArtifactRef:
    """Publish a file or folder that is alone in its folder, once."""
    store, key = base_context().store, digest_of(path)
    manifest = store.find("raw", key) or store.publish(
        "raw", key, path.parent, Provenance(config={"name": path.name})
    )
    return ArtifactRef(manifest.stage, manifest.key, manifest.digest)


def import_review(source: str) -> ArtifactRef:
    """A review's file as an artifact, also one that the store has already (`raw:`).

    Raises what `import_source` raises; FetchError where the store does not have it.
    """
    if not is_stored(source):
        return import_source(source)
    store, key = base_context().store, source.removeprefix("raw:").partition("/")[0]
    manifest = store.find("raw", key)
    if manifest is None:
        raise FetchError(f"{source}: found no such file in the store {store.url}")
    return ArtifactRef(manifest.stage, manifest.key, manifest.digest)


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
