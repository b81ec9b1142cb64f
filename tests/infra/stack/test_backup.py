"""Backups of a stack's PostgreSQL and SeaweedFS, without the servers that use them."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from mlflow.store.db.utils import _verify_schema
from sqlalchemy import create_engine

from tests.ports import free_ports
from trimtab.infra.processes.locks import try_folder_lock
from trimtab.infra.stack import programs
from trimtab.infra.stack.backup import _RESOLUTION, OBJECTS, SUMS, back_up, outdated, restore
from trimtab.infra.stack.postgres import DATABASES, client_options, database_url
from trimtab.infra.stack.programs import StackError, output_of, program
from trimtab.infra.stack.seaweedfs import BUCKET, NUM_INNER_PORTS
from trimtab.infra.stack.services import Ports, Stack
from trimtab.infra.stack.supervisor import Supervisor
from trimtab.infra.store.s3 import S3Objects

_PRIVATE = programs.SECRETS.keys() - {"MLFLOW_TRACKING_USERNAME"}  # which is `trimtab`
_MANIFEST = "artifacts/artifacts/sft/k/manifest.json"


@pytest.fixture
def stack(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stack]:
    folder = Path(tempfile.mkdtemp(prefix="backup-"))
    folder.chmod(0o755)  # PostgreSQL runs as another user where the tests run as root
    first = free_ports(3 + NUM_INNER_PORTS)
    stack = Stack(folder / "stack", Ports(first, first + 1, first + 2, first + 3))
    for name, value in {**programs.new_secrets(), **stack.client_environment}.items():
        monkeypatch.setenv(name, value)
    yield stack
    shutil.rmtree(folder)


@contextmanager
def _servers(stack: Stack) -> Iterator[None]:
    """The stack as far as a backup is concerned: it is up."""
    stack.folder.mkdir(exist_ok=True)
    with (
        try_folder_lock(stack.folder) as is_ours,
        Supervisor(stack.services()[:2], stack.folder / "logs"),
    ):
        assert is_ours
        yield


@pytest.mark.parametrize(
    ("num_others", "keep", "gone"),
    [
        (5, None, 0),
        (0, 1, 0),
        (1, 1, 1),
        (7, 14, 0),
        (12, 14, 0),
        (13, 14, 0),
        (14, 14, 1),
        (9, 2, 8),
    ],
)
def test_the_oldest_backups_beyond_those_to_keep_go(
    num_others: int, keep: int | None, gone: int
) -> None:
    others = [Path(f"{number:02}") for number in range(num_others)]
    assert list(outdated(others, keep)) == others[:gone]


def test_two_backups_into_one_folder_do_not_meet(stack: Stack, tmp_path: Path) -> None:
    with try_folder_lock(tmp_path), pytest.raises(StackError, match="another backup into"):
        back_up(stack, tmp_path)


def _sql(stack: Stack, database: str, query: str) -> str:
    options = [*client_options(stack.databases), "-d", database, "-tAc", query]
    return output_of([program("psql"), *options]).strip()


def _files(folder: Path) -> dict[str, bytes]:
    found = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}


def _fill(stack: Stack) -> dict[str, bytes]:
    """A row in each database, a GPU slot that is held, and objects, one of several parts."""
    for name in DATABASES:
        _sql(stack, name, f"create table kept as select 'of {name}' as word")
    _sql(stack, "prefect", "create table concurrency_limit_v2 as select 2 as active_slots")
    large = os.urandom(40 << 20)
    objects = {_MANIFEST: b"{}", "mlflow/1/report.html": b"<p>", "a/b c/ü.txt": b"", "big": large}
    for name, data in objects.items():
        S3Objects(BUCKET, "").put_bytes(name, data)
    return objects


@pytest.mark.slow
def test_what_a_wiped_stack_held_is_there_again(stack: Stack, tmp_path: Path) -> None:
    with _servers(stack):
        objects = _fill(stack)
        first = back_up(stack, tmp_path / "backups")
    assert _files(first / OBJECTS) == objects
    subprocess.run(["sha256sum", "--check", "--quiet", SUMS], cwd=first, check=True)
    assert all(path.stat().st_mode & 0o077 == 0 for path in (first, first / OBJECTS))
    written = b"".join(_files(first).values())
    assert [name for name in _PRIVATE if os.environ[name].encode() in written] == []

    shutil.rmtree(stack.folder)
    restore(stack, first)
    with _servers(stack):
        for name in DATABASES:
            assert _sql(stack, name, "select word from kept") == f"of {name}"
        assert _sql(stack, "prefect", "select active_slots from concurrency_limit_v2") == "0"
        there = S3Objects(BUCKET, "")
        assert {name: there.get_bytes(name) for name in there.list("")} == objects


@pytest.mark.slow
def test_a_later_backup_links_what_has_not_changed(stack: Stack, tmp_path: Path) -> None:
    with _servers(stack):
        _fill(stack)
        time.sleep(2 * _RESOLUTION)
        first = back_up(stack, tmp_path / "backups")
        objects = S3Objects(BUCKET, "")
        objects.delete("big")
        objects.put_bytes("new", b"new")
        objects.put_bytes("a/b c/ü.txt", b"x")
    # The stack is down: its PostgreSQL and SeaweedFS are started for it.
    second = back_up(stack, tmp_path / "backups")
    same = Path(OBJECTS, "mlflow/1/report.html")
    assert (first / same).stat().st_ino == (second / same).stat().st_ino
    found, earlier = _files(second / OBJECTS), _files(first / OBJECTS)
    assert (found["new"], found["a/b c/ü.txt"], earlier["a/b c/ü.txt"]) == (b"new", b"x", b"")
    assert "big" in earlier and "big" not in found
    third = back_up(stack, tmp_path / "backups", keep=2)
    assert sorted((tmp_path / "backups").iterdir()) == [second, third]
    subprocess.run(["sha256sum", "--check", "--quiet", SUMS], cwd=second, check=True)


@pytest.mark.slow
def test_an_upgrade_makes_mlflow_s_tables_those_of_the_installed_version(stack: Stack) -> None:
    with pytest.raises(StackError, match="is no stack's folder"):
        stack.upgrade()
    with _servers(stack):
        pass
    rules = stack.databases / "pg_hba.conf"  # of a version in which PostgreSQL had a port
    rules.write_text("host all trimtab 127.0.0.1/32 scram-sha-256\n")
    stack.upgrade()
    with _servers(stack):
        engine = create_engine(database_url(stack.databases, "mlflow"))
        _verify_schema(engine)  # as MLflow's server does when it starts
        engine.dispose()


@pytest.mark.slow
def test_a_manifest_that_comes_meanwhile_is_left_out(
    stack: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files may have been written behind the listing."""
    late = "artifacts/artifacts/ppo/k/manifest.json"
    first_call = []

    def dump(command: list[str]) -> str:
        if not first_call:
            first_call.append(command)
            for name in (late, "artifacts/artifacts/ppo/k/d/model"):
                S3Objects(BUCKET, "").put_bytes(name, b"{}")
        return output_of(command)

    with _servers(stack):
        _fill(stack)
        monkeypatch.setattr("trimtab.infra.stack.backup.output_of", dump)
        backup = back_up(stack, tmp_path / "backups")
    names = _files(backup / OBJECTS)
    assert _MANIFEST in names and late not in names


def test_a_backup_that_is_not_whole_is_refused(stack: Stack, tmp_path: Path) -> None:
    with pytest.raises(StackError, match="is no stack's folder"):
        back_up(stack, tmp_path / "backups")
    assert list((tmp_path / "backups").iterdir()) == []
    with pytest.raises(StackError, match=f"is no backup: it has no {SUMS}"):
        restore(stack, tmp_path)
    backup = tmp_path / "a-backup"
    backup.mkdir()
    (backup / SUMS).write_text(f"{'0' * 64}  {OBJECTS}/gone\n")
    with pytest.raises(StackError, match=r"5 files are missing or not as written: backup\.json"):
        restore(stack, backup)
    assert not stack.folder.exists()


def test_a_folder_with_data_is_not_overwritten(
    stack: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trimtab.infra.stack.backup._checked", lambda source: {})
    stack.folder.mkdir()
    (stack.folder / "mine").touch()
    with pytest.raises(StackError, match="holds data; a backup is restored into an empty folder"):
        restore(stack, tmp_path)
    assert (stack.folder / "mine").exists()
