"""Task `preferences`: bring people's preference files into the store, then read and split them."""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path

from prefect import task

from infra.fetch import fetch, is_remote
from models.config import PreferencesConfig
from models.records import ArtifactRef
from tasks.kinds import CPU
from tasks.perform import base_context, perform
from tasks.stage import StageResult


@task(name="preferences", task_run_name="{label}", **CPU)
def preferences(config: PreferencesConfig, label: str = "preferences") -> StageResult:
    """Pairs, prompts and demonstrations from files; hub data sets are read by the stage itself.

    A file enters the store under its content, so that a run never depends on a path again and a
    changed file is new work.
    """
    inputs = {
        f"source_{index}": _import_source(source)
        for index, source in enumerate(config.sources)
        if is_remote(source) or Path(source).expanduser().exists()
    }
    return perform("preferences", config, inputs, label)


def _import_source(source: str) -> ArtifactRef:
    """Publish a source's bytes as an artifact of stage `raw`, once."""
    store = base_context().store
    with tempfile.TemporaryDirectory(prefix="trimtab-") as scratch:
        folder = Path(scratch)
        fetch(source, folder)
        key = _digest(folder)
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


def _digest(folder: Path) -> str:
    """sha256 over the names and contents of a folder's files."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            with path.open("rb") as stream:
                content = hashlib.file_digest(stream, "sha256").hexdigest()
            digest.update(f"{path.relative_to(folder)}\0{content}\n".encode())
    return digest.hexdigest()
