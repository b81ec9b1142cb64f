"""The store, over a local folder and a real S3 server: whole or absent, checked, first wins."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest

from infra.manifest import CorruptArtifactError, InvalidArtifactError, Manifest
from infra.objects import LocalObjects
from infra.storage import Store, StoreUrlError, open_store

KEY = "k" * 64


def _publish(store: Store, folder: Path, key: str = KEY) -> Manifest:
    parents = {"policy": {"stage": "sft", "key": "p", "digest": "d"}}
    return store.publish(
        "toy", key, folder, config={"lr": 0.1}, parents=parents, versions={"python": "3"},
        seconds=1.5, summary={"loss": 0.5},
    )  # fmt: skip


def _contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def _object(store: Store, manifest: Manifest, name: str) -> str:
    return f"artifacts/{manifest.stage}/{manifest.key}/{manifest.content[:16]}/{name}"


def _overwrite(store: Store, name: str, data: bytes) -> None:
    """Alter an object behind the store's back."""
    if isinstance(store.objects, LocalObjects):
        os.chmod(store.objects.root / name, 0o644)
        (store.objects.root / name).write_bytes(data)
    else:
        store.objects.put_bytes(name, data)


def test_published_artifact_is_found_and_materialised(
    store: Store, store_url: str, folder: Path, tmp_path: Path
) -> None:
    assert store.find("toy", KEY) is None
    manifest = _publish(store, folder)
    found = open_store(store_url).find("toy", KEY)
    assert found == manifest
    assert found is not None
    assert (found.config, found.summary) == ({"lr": 0.1}, {"loss": 0.5})
    assert found.parents["policy"]["stage"] == "sft"
    target = tmp_path / "copy"
    store.materialise(found, target)
    assert _contents(target) == _contents(folder)
    assert all(not path.stat().st_mode & 0o222 for path in target.rglob("*") if path.is_file())
    assert not any(path.is_symlink() for path in target.rglob("*"))


def test_digest_follows_from_names_and_contents_but_not_from_telemetry(
    store: Store, folder: Path
) -> None:
    first = _publish(store, folder, "a")
    (folder / "metrics.jsonl").write_text('{"time": 1}\n')
    with_telemetry = _publish(store, folder, "b")
    (folder / "summary.json").rename(folder / "final.json")
    renamed = _publish(store, folder, "c")
    assert with_telemetry.digest == first.digest
    assert with_telemetry.content != first.content
    assert renamed.digest != first.digest


def test_later_publisher_gets_the_winners_manifest_and_leaves_nothing(
    store: Store, folder: Path, tmp_path: Path
) -> None:
    winner = _publish(store, folder)
    (folder / "summary.json").write_text('{"loss": 0.4}')
    assert _publish(store, folder) == winner
    names = store.objects.list("artifacts")
    assert len(names) == len(winner.files) + 1
    store.materialise(winner, tmp_path / "copy")
    assert json.loads((tmp_path / "copy" / "summary.json").read_text()) == {"loss": 0.5}


def test_concurrent_publishers_with_different_results_agree_on_one(
    store: Store, tmp_path: Path
) -> None:
    results: list[Manifest] = []
    barrier = threading.Barrier(4)

    def publish(index: int) -> None:
        source = tmp_path / str(index)
        source.mkdir()
        for name in "abc":
            (source / name).write_text(f"{name} of {index}")
        barrier.wait()
        results.append(_publish(store, source))

    threads = [threading.Thread(target=publish, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4
    assert len({manifest.digest for manifest in results}) == 1
    found = store.find("toy", KEY)
    assert found == results[0]
    assert found is not None
    store.materialise(found, tmp_path / "copy")  # nobody wrote over the winner's objects
    assert len({(tmp_path / "copy" / n).read_text()[-1] for n in "abc"}) == 1


@pytest.mark.parametrize("damage", ["altered", "truncated", "missing"])
def test_damaged_object_is_an_error_that_names_it(
    store: Store, folder: Path, tmp_path: Path, damage: str
) -> None:
    manifest = _publish(store, folder)
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
    manifest = _publish(store, folder)
    name = _object(store, manifest, "model/model.safetensors")
    if damage == "truncated":
        _overwrite(store, name, b"short")
    else:
        store.objects.delete(name)
    assert store.find("toy", KEY) is None
    assert _publish(store, folder).digest == manifest.digest
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
    manifest = _publish(store, folder)
    assert store.find("toy", KEY) == manifest


def test_manifest_with_an_edited_file_list_or_of_another_key_is_no_artifact(
    store: Store, folder: Path
) -> None:
    manifest = _publish(store, folder)
    raw = json.loads(manifest.to_bytes())
    name = f"artifacts/toy/{KEY}/manifest.json"
    _overwrite(store, name, json.dumps({**raw, "files": raw["files"][1:]}).encode())
    assert store.find("toy", KEY) is None
    _overwrite(store, name, json.dumps({**raw, "key": "other"}).encode())
    assert store.find("toy", KEY) is None


def test_materialise_keeps_a_whole_folder_and_replaces_any_other(
    store: Store, folder: Path, tmp_path: Path
) -> None:
    manifest = _publish(store, folder)
    target = tmp_path / "copy"
    store.materialise(manifest, target)
    before = target.stat().st_ino
    store.materialise(manifest, target)
    assert target.stat().st_ino == before
    (target / "extra").write_text("left over")
    store.materialise(manifest, target)
    assert _contents(target) == _contents(folder)


def test_delete_removes_everything(store: Store, folder: Path) -> None:
    _publish(store, folder)
    store.delete("toy", KEY)
    assert store.find("toy", KEY) is None
    assert store.objects.list("artifacts") == {}


def test_swap_has_exactly_one_winner(store: Store) -> None:
    wins: list[int] = []
    barrier = threading.Barrier(8)

    def swap(index: int, expected: bytes | None) -> None:
        barrier.wait()
        if store.objects.swap_bytes("x", f"value {index}".encode(), expected):
            wins.append(index)

    for expected in (None, b"first"):
        wins.clear()
        if expected is not None:
            store.objects.put_bytes("x", expected)
        threads = [threading.Thread(target=swap, args=(i, expected)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(wins) == 1
        assert store.objects.get_bytes("x") == f"value {wins[0]}".encode()
    assert not store.objects.swap_bytes("x", b"late", None)
    assert not store.objects.swap_bytes("absent", b"late", b"something")


def test_objects_by_name(store: Store, tmp_path: Path) -> None:
    objects = store.objects
    objects.put_bytes("f/one", b"1")
    objects.put_bytes("f/g/two", b"22")
    objects.put_bytes("fg", b"not in the folder")
    assert objects.list("f") == {"f/one": 1, "f/g/two": 2}
    assert objects.exists("f/one")
    assert not objects.exists("f")
    assert objects.get_bytes("nothing") is None
    with pytest.raises(KeyError, match="nothing"):
        objects.get_file("nothing", tmp_path / "x")
    objects.delete("f/one")
    objects.delete("f/one")
    assert objects.list("f") == {"f/g/two": 2}


def test_large_object_in_parts(store: Store, tmp_path: Path) -> None:
    source = tmp_path / "large"
    source.mkdir()
    (source / "weights").write_bytes(os.urandom(40 << 20))  # more than two parts of 16 MiB
    manifest = _publish(store, source)
    store.materialise(manifest, tmp_path / "copy")


def test_checkpoints_newest_whole_one_wins(store: Store, folder: Path, tmp_path: Path) -> None:
    assert store.newest_checkpoint(KEY) is None
    for step in (5, 10, 20):
        (folder / "step").unlink(missing_ok=True)
        (folder / "step").write_text(str(step))
        store.save_checkpoint(KEY, step, folder)
    newest = store.newest_checkpoint(KEY)
    assert newest is not None
    assert newest[0] == 20
    newest[1](tmp_path / "20")
    assert (tmp_path / "20" / "step").read_text() == "20"
    older = store.newest_checkpoint(KEY, before=20)
    assert older is not None
    assert older[0] == 10
    assert store.newest_checkpoint(KEY, before=10) is None  # keep=2: step 5 is gone
    store.objects.delete(f"checkpoints/{KEY}/20/manifest.json")
    newest = store.newest_checkpoint(KEY)
    assert newest is not None
    assert newest[0] == 10
    store.delete_checkpoints(KEY)
    assert store.objects.list("checkpoints") == {}


def test_what_cannot_be_stored_is_refused(store: Store, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "void").mkdir()
    with pytest.raises(InvalidArtifactError, match="holds no files"):
        _publish(store, tmp_path / "void")
    with pytest.raises(InvalidArtifactError, match=r"'\.\./up'"):
        store.find("toy", "../up")
    with pytest.raises(ValueError, match="Out of range float"):
        store.publish("toy", KEY, folder, summary={"loss": float("nan")})
    (folder / "manifest.json").write_text("{}")
    with pytest.raises(InvalidArtifactError, match="kept for the manifest"):
        _publish(store, folder)
    (folder / "manifest.json").unlink()
    (folder / "link").symlink_to("summary.json")
    with pytest.raises(InvalidArtifactError, match="link is a link"):
        _publish(store, folder)
    assert store.objects.list("artifacts") == {}


@pytest.mark.parametrize("url", ["", "http://x/y", "s3:///prefix", "gs://bucket", "file://host/x"])
def test_unknown_store_urls_are_refused(url: str) -> None:
    with pytest.raises(StoreUrlError, match="s3://bucket/prefix"):
        open_store(url)


def test_file_url_and_path_are_the_same_place(tmp_path: Path, folder: Path) -> None:
    manifest = _publish(open_store(str(tmp_path / "a b")), folder)
    url = (tmp_path / "a b").as_uri()
    assert "%20" in url
    assert open_store(url).find("toy", KEY) == manifest
