"""Files that people give a run: brought into the store under their content."""

from __future__ import annotations

import tempfile
from pathlib import Path

from infra.fetch import digest_of, fetch
from models.judging.constitutions import PACKAGED
from models.records import ArtifactRef
from tasks.perform import base_context


def import_source(source: str) -> ArtifactRef:
    """Publish a source's bytes as an artifact of stage `raw`, once.

    Raises infra.fetch.FetchError where nothing is there.
    """
    store = base_context().store
    with tempfile.TemporaryDirectory(prefix="trimtab-") as scratch:
        folder = Path(scratch)
        key = digest_of(fetch(source, folder))
        manifest = store.find("raw", key) or store.publish(
            "raw",
            key,
            folder,
            config={"name": source.rstrip("/").rpartition("/")[2]},
            parents={},
            versions={},
            seconds=0.0,
            summary={},
        )
    return ArtifactRef(manifest.stage, manifest.key, manifest.digest)


def import_constitution(name: str | None) -> dict[str, ArtifactRef]:
    """A constitution of one's own under the name of the input it is; no input for a packaged one.

    Raises infra.fetch.FetchError as above.
    """
    return {} if name is None or name in PACKAGED else {"constitution": import_source(name)}
