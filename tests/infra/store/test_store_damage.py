"""Objects and manifests altered behind the store's back are found out, never taken for whole."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.infra.conftest import KEY, publish
from trimtab.infra.store.manifest import CorruptArtifactError, Manifest
from trimtab.infra.store.objects import LocalObjects
from trimtab.infra.store.store import Store


def _object(store: Store, manifest: Manifest, name: str) -> str:
    return f"artifacts/{manifest.stage}/{manifest.key}/{manifest.full_digest[:16]}/{name}"


def _overwrite(store: Store, name: str, data: bytes) -> None:
    """Alter an object behind the store's back."""
    if isinstance(store.objects, LocalObjects):
        os.chmod(store.objects.root / name, 0o644)
        (store.objects.root / name).write_bytes(data)
    else:
        store.objects.put_bytes(name, data)


@pytest.mark.parametrize("damage", ["altered", "truncated", "missing"])
def test_damaged_object_is_an_error_that_names_it(
    store: Store, folder: Path, tmp_path: Path, damage: str
) -> None:
    manifest = publish(store, folder)
    name = _object(store, manifest, "model/model.safetensors")
    if damage == "missing":
        store.objects.delete(name)
    else:
        data = bytes(range(256)) * 64
        _overwrite(store, name, data[:-1] + b"x" if damage == "altered" else data[:-1])
    with pytest.raises(CorruptArtifactError, match=r"model/model\.safetensors is"):
        store.materialise(manifest, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()
    assert not list(tmp_path.glob(".copy*"))


@pytest.mark.parametrize("damage", ["truncated", "missing"])
def test_incomplete_artifact_is_not_found_and_can_be_published_anew(
    store: Store, folder: Path, tmp_path: Path, damage: str
) -> None:
    manifest = publish(store, folder)
    name = _object(store, manifest, "model/model.safetensors")
    if damage == "truncated":
        _overwrite(store, name, b"short")
    else:
        store.objects.delete(name)
    assert store.find("toy", KEY) is None
    assert publish(store, folder).digest == manifest.digest
    store.materialise(manifest, tmp_path / "copy")


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"[]", b'{"stage": "toy"}', b'{"files": [{"name": "../x"}]}', b"\xff\xfe"],
)
def test_malformed_manifest_is_no_artifact_and_is_replaced(
    store: Store, folder: Path, data: bytes
) -> None:
    store.objects.put_bytes(f"artifacts/toy/{KEY}/manifest.json", data)
    assert store.find("toy", KEY) is None
    manifest = publish(store, folder)
    assert store.find("toy", KEY) == manifest


def test_manifest_with_an_edited_file_list_or_of_another_key_is_no_artifact(
    store: Store, folder: Path
) -> None:
    manifest = publish(store, folder)
    raw = json.loads(manifest.to_bytes())
    name = f"artifacts/toy/{KEY}/manifest.json"
    _overwrite(store, name, json.dumps({**raw, "files": raw["files"][1:]}).encode())
    assert store.find("toy", KEY) is None
    _overwrite(store, name, json.dumps({**raw, "key": "other"}).encode())
    assert store.find("toy", KEY) is None
