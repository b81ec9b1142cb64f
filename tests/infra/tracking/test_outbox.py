"""Data that MLflow has not received yet: on a full disk, after an outage, after a kill."""

from __future__ import annotations

import errno
import json
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from typing import Any

import pytest
from boto3.exceptions import S3UploadFailedError
from mlflow.protos.databricks_pb2 import INVALID_PARAMETER_VALUE

from tests.infra.tracking.conftest import client_of, line_of
from trimtab.infra.settings import Settings
from trimtab.infra.tracking.outbox import take_over_files
from trimtab.infra.tracking.runs import TrackedRun, Tracking


@contextmanager
def _full_disk(path: Path) -> Iterator[None]:
    """Files of this process may grow to a few bytes more than this one has."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 5, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def _file_of(run: TrackedRun) -> Path:
    assert run.tracking.outbox is not None
    (path,) = run.tracking.outbox.glob(f"*-{run.tags['trimtab.run']}.jsonl")
    return path


def _next_process(settings: Settings, run: TrackedRun) -> None:
    """As if the process of a run were gone: another one sends what it has left."""
    path = _file_of(run)
    assert run._outbox._stream is not None
    run._outbox._stream.close()
    tracking = Tracking.from_settings(settings, "toy")
    tracking.connect()
    tracking.flush()
    assert not path.exists()


def test_a_full_disk_leaves_no_file_by_which_a_finished_run_is_killed(
    settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    tracking = Tracking.from_settings(settings, "toy")
    run = tracking.start_run("full")
    path = _file_of(run)
    tracking._down_until = time.monotonic() + 60
    with _full_disk(path):
        run.log(metrics={"loss": 1.0})
        run.log(metrics={"loss": 2.0})
    assert len([r for r in caplog.records if "in memory only" in r.message]) == 1
    run._outbox._stream = FileIO("/dev/full", "w")
    run.end()
    tracking.flush()
    assert not path.exists()  # or the next process would end the run as KILLED
    ended = client_of(settings).get_run(run.run_id)
    assert (ended.info.status, ended.data.metrics) == ("FINISHED", {"loss": 2.0})


@pytest.mark.parametrize("by", ["the next record", "the next try"])
def test_what_a_full_disk_refused_is_written_when_it_has_space_again(
    settings: Settings, by: str
) -> None:
    tracking = Tracking.from_settings(settings, "toy")
    run = tracking.start_run("full for a while")
    tracking._down_until = time.monotonic() + 60
    with _full_disk(_file_of(run)):
        run.log(metrics={"loss": 1.0})
        if by == "the next try":
            run.end()
    run.end() if by == "the next record" else run.send_waiting()
    _next_process(settings, run)
    ended = client_of(settings).get_run(run.run_id)
    assert (ended.info.status, ended.data.metrics) == ("FINISHED", {"loss": 1.0})


def test_what_mlflow_has_after_an_outage_is_in_no_file(settings: Settings) -> None:
    """Neither that a run was created nor any metric is sent a second time."""
    tracking = Tracking.from_settings(settings, "toy")
    tracking._down_until = time.monotonic() + 60
    run = tracking.start_run("created later")
    for step in range(100):
        run.log_lines([line_of(step, loss=1.0)])
    path = _file_of(run)
    assert path.read_text().count("loss") == 100
    tracking.flush()
    assert path.read_text().count("\n") == 1 and "loss" not in path.read_text()
    _next_process(settings, run)
    killed = client_of(settings).get_run(run.run_id)
    assert (killed.info.status, killed.data.metrics) == ("KILLED", {"loss": 1.0})
    assert len(tracking.search(client_of(settings), run.tags)) == 1


def test_a_run_that_a_user_has_deleted_is_not_created_again(settings: Settings) -> None:
    tracking = Tracking.from_settings(settings, "toy")
    run = tracking.start_run("deleted")
    client_of(settings).delete_run(run.run_id)
    _next_process(settings, run)
    assert tracking.search(client_of(settings), run.tags) == []


def test_a_file_that_cannot_be_read_keeps_no_other_from_being_sent(
    settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    tracking = Tracking.from_settings(settings, "toy")
    run = tracking.start_run("left")
    unreadable = _file_of(run).with_name("0.jsonl")
    unreadable.mkdir()
    try:
        _next_process(settings, run)
    finally:
        unreadable.rmdir()
    assert client_of(settings).get_run(run.run_id).info.status == "KILLED"
    assert [r for r in caplog.records if "0.jsonl" in r.message and "Is a directory" in r.message]


def test_an_error_of_no_known_kind_holds_up_no_other_record(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tracking = Tracking.from_settings(settings, "toy")
    run = tracking.start_run("unknown error")
    with monkeypatch.context() as patch:
        patch.setattr(tracking._client, "log_batch", _fail)
        with pytest.raises(RuntimeError, match="not foreseen"):
            run.log(metrics={"lost": 1.0})
        tracking._down_until = time.monotonic() + 60
        run.log(metrics={"lost too": 1.0})
        run.end()
        tracking.flush()
    assert not run.has_unsent
    assert client_of(settings).get_run(run.run_id).info.status == "FINISHED"
    assert [r for r in caplog.records if "lacks a record" in r.message]


def _fail(*_: Any, **__: Any) -> None:
    raise RuntimeError("not foreseen")


def test_an_artifact_that_is_refused_takes_no_other_with_it(
    settings: Settings, tracking: Tracking, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow.exceptions import MlflowException

    for number in range(12):
        (tmp_path / f"a{number}").write_text("")
    run = tracking.start_run("artifacts")
    log, states = tracking._client.log_artifact, {"a3": "away", "a7": "refused"}

    def log_or_fail(run_id: str, path: str, inner: str | None) -> None:
        match states.get(Path(path).name):
            case "away":
                raise S3UploadFailedError("the bucket cannot be reached")
            case "refused":
                raise MlflowException("no such name", error_code=INVALID_PARAMETER_VALUE)
        log(run_id, path, inner)

    monkeypatch.setattr(tracking._client, "log_artifact", log_or_fail)
    run.log_artifacts(tmp_path)
    assert run.has_unsent
    del states["a3"]
    tracking.flush()
    assert not run.has_unsent
    names = {file.path for file in client_of(settings).list_artifacts(run.run_id)}
    assert names == {f"a{number}" for number in range(12)} - {"a7"}


def test_a_line_in_pieces_is_cut_off_before_the_run_s_end_is_written(settings: Settings) -> None:
    tracking = Tracking.from_settings(settings, "toy")
    run = tracking.start_run("torn")
    path = _file_of(run)
    first = path.read_bytes()
    path.write_bytes(first + b'{"batch": {"met')
    assert run._outbox._stream is not None
    run._outbox._stream.close()
    for _ in range(2):  # the first of the two dies before MLflow is back
        (outbox,) = (box for box in take_over_files(path.parent) if box._path == path)
        lines = path.read_bytes().splitlines(keepends=True)
        assert lines[0] == first and len(lines) == 2
        assert json.loads(lines[1])["end"] == "KILLED"
        assert outbox._stream is not None
        outbox._stream.close()
    path.unlink()


@pytest.mark.parametrize("disk_is_full", [False, True])
def test_a_file_that_cannot_be_removed_ends_no_finished_run_as_killed(
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    disk_is_full: bool,
) -> None:
    tracking = Tracking.from_settings(settings, "toy")
    run = tracking.start_run("cannot be removed")
    path = _file_of(run)
    if disk_is_full:  # nor does the file say that the run has ended
        run._outbox._stream = FileIO("/dev/full", "w")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", _refuse_to_write)
        run.end()
    assert path.exists()
    assert any(path.name in record.message for record in caplog.records)
    _next_process(settings, run)
    assert client_of(settings).get_run(run.run_id).info.status == "FINISHED"


def _refuse_to_write(*_: Any, **__: Any) -> None:
    raise OSError(errno.EROFS, "the file system is read-only")
