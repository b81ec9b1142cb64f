"""The store, over a local folder and a real S3 server: whole or absent, the first one wins."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest

from tests.infra.conftest import KEY, publish
from trimtab.infra.store.manifest import InvalidArtifactError, Manifest, Provenance
from trimtab.infra.store.store import Store, StoreUrlError, open_store


def _contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_published_artifact_is_found_and_materialised(
    store: Store, store_url: str, folder: Path, tmp_path: Path
) -> None:
    assert store.find("toy", KEY) is None
    manifest = publish(store, folder)
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
    first = publish(store, folder, "a")
    (folder / "metrics.jsonl").write_text('{"time": 1}\n')
    with_telemetry = publish(store, folder, "b")
    (folder / "summary.json").rename(folder / "final.json")
    renamed = publish(store, folder, "c")
    assert with_telemetry.digest == first.digest
    assert with_telemetry.full_digest != first.full_digest
    assert renamed.digest != first.digest


def test_later_publisher_gets_the_winners_manifest_and_leaves_nothing(
    store: Store, folder: Path, tmp_path: Path
) -> None:
    winner = publish(store, folder)
    (folder / "summary.json").write_text('{"loss": 0.4}')
    assert publish(store, folder) == winner
    names = store.objects.list("artifacts")
    assert len(names) == len(winner.files) + 1
    store.materialise(winner, tmp_path / "copy")
    assert json.loads((tmp_path / "copy" / "summary.json").read_text()) == {"loss": 0.5}


def test_concurrent_publishers_with_different_results_agree_on_one(
    store: Store, tmp_path: Path
) -> None:
    results: list[Manifest] = []
    barrier = threading.Barrier(4)

    def publish_own(index: int) -> None:
        source = tmp_path / str(index)
        source.mkdir()
        for name in "abc":
            (source / name).write_text(f"{name} of {index}")
        barrier.wait()
        results.append(publish(store, source))

    threads = [threading.Thread(target=publish_own, args=(index,)) for index in range(4)]
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


def test_materialise_keeps_a_whole_folder_and_replaces_any_other(
    store: Store, folder: Path, tmp_path: Path
) -> None:
    manifest = publish(store, folder)
    target = tmp_path / "copy"
    store.materialise(manifest, target)
    before = target.stat().st_ino
    store.materialise(manifest, target)
    assert target.stat().st_ino == before
    (target / "extra").write_text("left over")
    store.materialise(manifest, target)
    assert _contents(target) == _contents(folder)


def test_folders_that_are_not_read_are_not_brought(
    store: Store, folder: Path, tmp_path: Path
) -> None:
    (folder / "model").mkdir(exist_ok=True)
    (folder / "model" / "weights").write_text("many")
    manifest = publish(store, folder)
    target = tmp_path / "copy"
    store.materialise(manifest, target, lambda name: not name.startswith(("model/", "critic/")))
    wanted = {k: v for k, v in _contents(folder).items() if not k.startswith("model/")}
    assert 0 < len(wanted) < len(_contents(folder))
    assert _contents(target) == wanted
    store.materialise(manifest, target)  # part of it is not whole
    assert _contents(target) == _contents(folder)


def test_delete_removes_everything(store: Store, folder: Path) -> None:
    publish(store, folder)
    store.delete("toy", KEY)
    assert store.find("toy", KEY) is None
    assert store.objects.list("artifacts") == {}


@pytest.mark.slow
def test_large_object_in_parts(store: Store, tmp_path: Path) -> None:
    source = tmp_path / "large"
    source.mkdir()
    (source / "weights").write_bytes(os.urandom(40 << 20))  # more than two parts of 16 MiB
    manifest = publish(store, source)
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
        publish(store, tmp_path / "void")
    with pytest.raises(InvalidArtifactError, match=r"'\.\./up'"):
        store.find("toy", "../up")
    with pytest.raises(ValueError, match="Out of range float"):
        store.publish("toy", KEY, folder, Provenance(summary={"loss": float("nan")}))
    (folder / "manifest.json").write_text("{}")
    with pytest.raises(InvalidArtifactError, match="kept for the manifest"):
        publish(store, folder)
    (folder / "manifest.json").unlink()
    (folder / "link").symlink_to("summary.json")
    with pytest.raises(InvalidArtifactError, match="link is a link"):
        publish(store, folder)
    assert store.objects.list("artifacts") == {}


@pytest.mark.parametrize("url", ["", "http://x/y", "s3:///prefix", "gs://bucket", "file://host/x"])
def test_unknown_store_urls_are_refused(url: str) -> None:
    with pytest.raises(StoreUrlError, match="s3://bucket/prefix"):
        open_store(url)


def test_file_url_and_path_are_the_same_place(tmp_path: Path, folder: Path) -> None:
    manifest = publish(open_store(str(tmp_path / "a b")), folder)
    url = (tmp_path / "a b").as_uri()
    assert "%20" in url
    assert open_store(url).find("toy", KEY) == manifest
