"""No space, a kill, a dead or unwilling server: nothing half written is ever taken for whole."""

from __future__ import annotations

import errno
import http.server
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.infra.conftest import KEY
from trimtab.infra.processes.environment import child_env
from trimtab.infra.store import manifest
from trimtab.infra.store.objects import LocalObjects
from trimtab.infra.store.s3 import S3Objects, StoreLocationError, StoreUnavailableError
from trimtab.infra.store.store import Store, open_store

# Publishes three large files and says so after each, so that the test can kill it in between.
_PUBLISHER = """
import sys
from pathlib import Path
from trimtab.infra.store.store import open_store
store = open_store(sys.argv[1])
original = store.objects.put_file
def put_file(*args, **kwargs):
    original(*args, **kwargs)
    print("stored", flush=True)
    sys.stdin.readline()
store.objects.put_file = put_file
store.publish("toy", sys.argv[2], Path(sys.argv[3]))
"""


@pytest.mark.parametrize("stored", [1, 4])
def test_kill_in_the_middle_of_publish_leaves_no_artifact(
    store: Store, store_url: str, folder: Path, tmp_path: Path, stored: int
) -> None:
    command = [sys.executable, "-c", _PUBLISHER, store_url, KEY, str(folder)]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=child_env({})
    )
    assert process.stdin is not None
    assert process.stdout is not None
    for _ in range(stored - 1):
        process.stdout.readline()
        process.stdin.write(b"\n")
        process.stdin.flush()
    assert process.stdout.readline() == b"stored\n"
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert len(store.objects.list("artifacts")) == stored
    assert store.find("toy", KEY) is None
    manifest = store.publish("toy", KEY, folder)
    assert store.find("toy", KEY) == manifest
    store.materialise(manifest, tmp_path / "copy")


def _no_space(*_: Any, **__: Any) -> Any:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("where", ["shutil.copyfile", "os.fsync", "os.replace"])
def test_no_space_leaves_nothing_behind(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    store = open_store(str(tmp_path / "store"))
    with monkeypatch.context() as patch:
        patch.setattr(where, _no_space)
        with pytest.raises(OSError, match="No space left"):
            store.publish("toy", KEY, folder)
    assert store.find("toy", KEY) is None
    left = [path for path in (tmp_path / "store").rglob("*") if path.is_file()]
    assert left == []
    assert store.find("toy", KEY) is None
    assert store.publish("toy", KEY, folder) == store.find("toy", KEY)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
def test_full_file_system_leaves_no_artifact(folder: Path, tmp_path: Path) -> None:
    """The same on a real small file system, as the kernel reports it."""
    mount = tmp_path / "small"
    mount.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(mount)], check=True)
    try:
        store = open_store(str(mount / "store"))
        (folder / "model" / "big").write_bytes(os.urandom(200_000))
        with pytest.raises(OSError, match="No space left"):
            store.publish("toy", KEY, folder)
        assert store.find("toy", KEY) is None
        assert not list((mount / "store" / ".tmp").iterdir())
    finally:
        subprocess.run(["umount", str(mount)], check=True)


def test_no_space_while_materialising_leaves_no_folder(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(str(tmp_path / "store"))
    manifest = store.publish("toy", KEY, folder)
    monkeypatch.setattr(os, "link", _no_space)
    with pytest.raises(OSError, match="No space left"):
        store.materialise(manifest, tmp_path / "copy")
    assert not list(tmp_path.glob("*copy*"))


def test_copies_where_hard_links_are_not_possible(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def other_device(*_: Any, **__: Any) -> None:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    store = open_store(str(tmp_path / "store"))
    manifest = store.publish("toy", KEY, folder)
    monkeypatch.setattr(os, "link", other_device)
    store.materialise(manifest, tmp_path / "copy")
    assert (tmp_path / "copy" / "summary.json").stat().st_nlink == 1


def test_what_writers_that_died_left_is_swept_once_it_is_old(store: Store) -> None:
    """A temporary file of a folder; in S3 an upload in parts, which no listing shows."""
    objects = store.objects
    objects.put_bytes("whole", b"1")
    if isinstance(objects, LocalObjects):
        (objects.root / ".tmp" / "left").touch()
    else:
        objects._client.create_multipart_upload(Bucket=objects.bucket, Key=objects._key("left"))
    assert objects.drop_unfinished(time.time() - 60) == 0
    assert objects.drop_unfinished(time.time() + 60) == 1
    assert objects.drop_unfinished(time.time() + 60) == 0
    assert objects.get_bytes("whole") == b"1"


def test_a_store_opens_while_another_run_ends_a_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A temporary file has got its name between the listing and the look at it."""
    root = tmp_path / "store"
    LocalObjects(root).put_bytes("whole", b"1")
    listed = Path.iterdir

    def with_one_that_is_gone(folder: Path) -> Iterator[Path]:
        yield from listed(folder)
        yield folder / "gone"

    monkeypatch.setattr(Path, "iterdir", with_one_that_is_gone)
    assert LocalObjects(root).get_bytes("whole") == b"1"


def test_file_that_changes_while_it_is_published_is_noticed(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from trimtab.infra.store.manifest import CorruptArtifactError

    store = open_store(str(tmp_path / "store"))
    original = store.objects.put_file

    def put_file(name: str, path: Path, sha256: str, *, link: bool = False) -> None:
        path.write_bytes(b"still training")
        original(name, path, sha256, link=link)

    monkeypatch.setattr(store.objects, "put_file", put_file)
    with pytest.raises(CorruptArtifactError, match="changed while it was being stored"):
        store.publish("toy", KEY, folder)
    assert store.find("toy", KEY) is None


@pytest.mark.slow
def test_bucket_that_is_absent_and_wrong_keys_are_user_errors(
    s3_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(StoreLocationError, match=r"cannot use s3://no-such-bucket at http://127"):
        open_store("s3://no-such-bucket/x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(StoreLocationError, match="AWS_SECRET_ACCESS_KEY"):
        open_store(f"s3://{s3_server.bucket}")


class _FlakyS3(http.server.BaseHTTPRequestHandler):
    """Accepts every request except that the next `failures` PUTs are answered with 503."""

    protocol_version = "HTTP/1.1"  # answers "Expect: 100-continue", which boto3 waits for
    failures = 0
    puts = 0

    def do_HEAD(self) -> None:
        self._answer(200)

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        type(self).puts += 1
        type(self).failures -= 1
        self._answer(503 if type(self).failures >= 0 else 200)

    def _answer(self, status: int) -> None:
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Keep quiet."""


@pytest.mark.slow
def test_server_errors_are_retried_and_then_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _FlakyS3)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    try:
        objects = S3Objects("bucket", "prefix", max_attempts=2)
        _FlakyS3.failures, _FlakyS3.puts = 1, 0
        objects.put_bytes("x", b"data")
        assert _FlakyS3.puts == 2
        _FlakyS3.failures = 2
        with pytest.raises(StoreUnavailableError, match=r"s3://bucket/prefix/x: .*503"):
            objects.put_bytes("x", b"data")
    finally:
        server.shutdown()
        server.server_close()


def test_a_file_that_is_removed_while_its_folder_is_read_is_missing_and_no_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a trainer removes a checkpoint for a newer one: it is stored the next time."""
    for name in ("a", "b"):
        (tmp_path / name).write_text(name)

    def removing(path: Path) -> str:
        (tmp_path / "b").unlink()
        return "0" * 64

    monkeypatch.setattr(manifest, "hash_file", removing)
    with pytest.raises(FileNotFoundError):
        manifest.scan_folder(tmp_path)
