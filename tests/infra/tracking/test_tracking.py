"""MLflow runs over the embedded SQLite default; and what happens when MLflow is not there."""

from __future__ import annotations

import errno
import json
import logging
import resource
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from io import FileIO
from pathlib import Path
from typing import Any

import pytest
from boto3.exceptions import S3UploadFailedError
from mlflow.protos.databricks_pb2 import INVALID_PARAMETER_VALUE

from trimtab.infra.processes.launch import (
    LineTail,
    TrainerStoppedError,
    _last_lines,
    final_exception,
)
from trimtab.infra.processes.locks import file_lock
from trimtab.infra.settings import Settings, SettingsError
from trimtab.infra.tracking.mlflow_calls import follow_move
from trimtab.infra.tracking.outbox import take_over_files
from trimtab.infra.tracking.registry import Registry
from trimtab.infra.tracking.runs import Input, TrackedRun, Tracking


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """One database for the module: making its tables takes seconds."""
    return Settings.from_env({"TRIMTAB_HOME": str(tmp_path_factory.mktemp("home"))})


@pytest.fixture
def tracking(settings: Settings) -> Tracking:
    return Tracking.from_settings(settings, "toy")


def _client(settings: Settings) -> Any:
    from mlflow.tracking import MlflowClient

    return MlflowClient(tracking_uri=settings.mlflow_uri, registry_uri=settings.mlflow_uri)


def _line(step: int, **metrics: float) -> str:
    return json.dumps({"step": step, "time": 100.0 + step, "metrics": metrics}) + "\n"


@pytest.mark.slow
def test_runs_nest_and_end_with_the_right_status(settings: Settings, tracking: Tracking) -> None:
    parent = tracking.start_run("flow")
    with tracking.start_run("good", parent=parent, tags={"trimtab.stage": "sft"}) as good:
        good.log(params={"lr": 0.1, "optimiser": {"betas": [0.9, 0.95]}, "long": "x" * 9000})
        good.log_inputs([Input("policy", "d" * 64, "s3://b/x", "sft")])
    with pytest.raises(ValueError, match="oops"), tracking.start_run("bad", parent=parent) as bad:
        raise ValueError("oops")
    with (
        pytest.raises(TrainerStoppedError),
        tracking.start_run("stopped", parent=parent) as stopped,
    ):
        raise TrainerStoppedError("asked")
    client = _client(settings)
    run = client.get_run(good.run_id)
    assert run.data.tags["mlflow.parentRunId"] == parent.run_id
    assert run.data.tags["trimtab.stage"] == "sft"
    assert run.data.params["optimiser.betas"] == "[0.9, 0.95]"
    assert len(run.data.params["long"]) == 6000
    assert run.inputs.dataset_inputs[0].dataset.digest == "d" * 36
    statuses = [client.get_run(each.run_id).info.status for each in (good, bad, stopped)]
    assert statuses == ["FINISHED", "FAILED", "KILLED"]


def test_a_folder_is_logged_with_its_folders(
    settings: Settings, tracking: Tracking, tmp_path: Path
) -> None:
    (tmp_path / "plots" / "curves").mkdir(parents=True)
    for name in ("report.html", "plots/a.svg", "plots/curves/b.svg"):
        (tmp_path / name).write_text(name)
    run = tracking.start_run("report")
    run.log_artifacts(tmp_path)
    client = _client(settings)
    for folder, names in (
        (None, ["plots", "report.html"]),
        ("plots", ["plots/a.svg", "plots/curves"]),
        ("plots/curves", ["plots/curves/b.svg"]),
    ):
        assert [file.path for file in client.list_artifacts(run.run_id, folder)] == names


def test_every_line_s_metrics_are_sent_once_in_batches(
    settings: Settings, tracking: Tracking, tmp_path: Path
) -> None:
    path = tmp_path / "metrics.jsonl"
    run = tracking.start_run("metrics")
    tail = LineTail(path)
    run.log_lines(tail.read())  # no file yet
    path.write_text("".join(_line(step, loss=step / 10, kl=0.5) for step in range(1500)))
    run.log_lines(tail.read())
    with path.open("a") as stream:
        stream.write('{"progress": [1, 2], "time": 1.0}\nnot json\n' + _line(1500, loss=7.0)[:-5])
        stream.flush()
        run.log_lines(tail.read())
        stream.write(_line(1500, loss=7.0)[-5:])
    run.log_lines(tail.read())
    assert not run.has_unsent
    history = _client(settings).get_metric_history(run.run_id, "loss")
    assert sorted(metric.step for metric in history) == list(range(1501))
    last = max(history, key=lambda metric: metric.step)
    assert (last.value, last.timestamp) == (7.0, 1_600_000)


def test_outage_warns_once_and_loses_no_metric(
    settings: Settings,
    tracking: Tracking,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    run = tracking.start_run("outage")
    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
        patch.setattr(tracking._client, "log_batch", _refuse)
        run.log_lines([_line(0, loss=1.0)])
        for _ in range(3):
            assert not run.send_waiting()
            tracking._down_until = 0.0  # as if the pause were over
    assert len([r for r in caplog.records if "Training continues" in r.message]) == 1
    run.log_lines([_line(1, loss=0.5)])
    assert run.send_waiting()
    history = _client(settings).get_metric_history(run.run_id, "loss")
    assert sorted((m.step, m.value) for m in history) == [(0, 1.0), (1, 0.5)]
    run.end()


def _refuse(*_: Any, **__: Any) -> None:
    raise ConnectionRefusedError("nobody listens")


def test_server_that_was_never_there_costs_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    tracking = Tracking("http://127.0.0.1:9", "toy")
    with caplog.at_level(logging.WARNING), tracking.start_run("lost") as run:
        assert run.run_id is None
        run.log(params={"a": 1}, metrics={"a": 1.0})
    assert len([r for r in caplog.records if "127.0.0.1:9" in r.message]) == 1
    tracking._unsent.clear()  # its thread would try again while other tests read the log


def test_refused_metric_does_not_block_those_that_follow(
    settings: Settings, tracking: Tracking
) -> None:
    run = tracking.start_run("refused")
    run.log_lines([_line(0, **{"bad?name": 1.0})])
    run.log_lines([_line(1, good=1.0)])
    assert not run.has_unsent
    assert _client(settings).get_run(run.run_id).data.metrics == {"good": 1.0}


def test_two_connections_at_once_make_one_experiment(settings: Settings) -> None:
    runs: list[str | None] = []

    def start() -> None:
        runs.append(Tracking.from_settings(settings, "shared").start_run("x").run_id)

    threads = [threading.Thread(target=start) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    client = _client(settings)
    assert len({client.get_run(run).info.experiment_id for run in runs}) == 1


def test_tables_are_made_by_one_process_at_a_time(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Making a client makes the tables of a new database: two at once would spoil it."""
    lock, made = settings.home / ".mlflow.lock", []

    def refuse_to_wait() -> None:
        raise InterruptedError

    def client_under_the_lock(uri: str) -> Any:
        with pytest.raises(InterruptedError), file_lock(lock, refuse_to_wait):
            raise AssertionError("the lock was free")
        made.append(uri)
        return _client(settings)

    monkeypatch.setattr("trimtab.infra.tracking.runs.new_client", client_under_the_lock)
    Tracking.from_settings(settings, "toy").connect()
    assert made == [settings.mlflow_uri]


def test_tracking_without_a_uri_is_off() -> None:
    with Tracking("", "").start_run("x") as run:
        run.log(params={"a": 1})
        assert run.run_id is None


def test_tail_starts_again_when_the_file_is_made_anew(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_text("one\ntwo\n")
    tail = LineTail(path)
    assert tail.read() == ["one", "two"]
    path.write_text("x\n")
    assert tail.read() == ["x"]
    longer = tmp_path / "longer"
    longer.write_text("a longer line\nand another\n")
    longer.replace(path)
    assert tail.read() == ["a longer line", "and another"]
    assert _last_lines(path, 1) == "and another"
    assert _last_lines(tmp_path / "nothing", 5) == ""


def test_what_a_process_died_of_is_found_below_its_traceback() -> None:
    traceback = 'Traceback (most recent call last):\n  File "a.py", line 1\n    f()\n    ^^^\n'
    assert final_exception(
        f"some output\n{traceback}package.errors.BadRow: row 3\n  found 1\nfix it\n"
    ) == ("BadRow: row 3\n  found 1\nfix it")
    both = f"{traceback}KeyError: 'a'\n\nDuring handling ...:\n\n{traceback}ValueError: b"
    assert final_exception(both) == "ValueError: b"
    assert final_exception(f"{traceback}AssertionError\n") == "AssertionError"
    assert final_exception(traceback) is None
    assert final_exception("no trouble\n") is None


def test_settings_have_defaults_below_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    settings = Settings.from_env({"TRIMTAB_STORE": ""})
    assert settings.home == tmp_path / ".trimtab"
    assert settings.store_url == str(tmp_path / ".trimtab" / "store")
    assert settings.mlflow_uri == f"sqlite:///{tmp_path}/.trimtab/mlflow.db"
    assert settings.embedded_mlflow
    assert settings.max_parallel >= 1
    given = Settings.from_env({"TRIMTAB_MAX_PARALLEL": "3", "MLFLOW_TRACKING_URI": "http://x"})
    assert (given.max_parallel, given.embedded_mlflow) == (3, False)
    with pytest.raises(SettingsError, match="'0'"):
        Settings.from_env({"TRIMTAB_MAX_PARALLEL": "0"})


def _written_by(client: Any, run_id: str, folder: Path) -> str:
    """The text of note.txt in the run's artifacts, copied into a folder."""
    folder.mkdir()
    return Path(client.download_artifacts(run_id, "note.txt", str(folder))).read_text()


@pytest.mark.slow
@pytest.mark.parametrize("moves", [True, False], ids=["moved", "copied"])
def test_a_home_that_was_moved_or_copied_has_its_artifacts_where_it_is(
    tmp_path: Path, moves: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Old artifacts are found in it, and new runs write nothing into the folder it came from."""
    first, second = (
        Settings.from_env({"TRIMTAB_HOME": str(tmp_path / name)}) for name in ("a home", "b_ho%me")
    )
    note = tmp_path / "note.txt"
    note.write_text("old")
    tracking = Tracking.from_settings(first, "toy")
    old = tracking.start_run("old")
    source = f"{first.home}/store/artifacts/sft/{'d' * 64}"
    old.log_inputs([Input("policy", "d" * 64, source, "sft")])
    tracking.connect().log_artifact(old.run_id, str(note))
    Registry(tracking).register(
        old, "toy-model", partial(_folder_with, note), identity={"key": "k"}
    )
    other = _client(first).create_experiment("elsewhere", f"file://{tmp_path}/own")
    (shutil.move if moves else shutil.copytree)(first.home, second.home)
    before = _files_below(first.home)

    tracking = Tracking.from_settings(second, "toy")
    new = tracking.start_run("new")
    tracking.connect().log_artifact(new.run_id, str(note))
    Registry(tracking).register(
        new, "toy-model", partial(_folder_with, note), identity={"key": "other"}
    )
    assert _files_below(first.home) == before
    assert any("MLflow's artifacts were in" in record.message for record in caplog.records)
    if not moves:
        shutil.rmtree(first.home)
    client = _client(second)
    for number, run in enumerate((old, new), 1):
        assert _written_by(client, str(run.run_id), tmp_path / str(number)) == "old"
        where = client.get_model_version_download_uri("toy-model", str(number))
        assert where.startswith((second.home / "mlartifacts").as_uri() + "/")
    (dataset,) = client.get_run(old.run_id).inputs.dataset_inputs
    moved = source.replace(str(first.home), str(second.home))
    assert json.loads(dataset.dataset.source) == {"uri": moved}
    assert client.get_experiment(other).artifact_location == f"file://{tmp_path}/own"


def _files_below(folder: Path) -> dict[str, float]:
    return {str(path): path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


def _folder_with(path: Path) -> Path:
    folder = Path(tempfile.mkdtemp(dir=path.parent))
    shutil.copy(path, folder)
    return folder


def test_a_move_that_cannot_be_noted_is_one_error_with_the_file(tmp_path: Path) -> None:
    (tmp_path / "mlflow.db").write_text("no database" * 99)
    with pytest.raises(OSError, match=r"mlflow\.db: cannot note that it was moved: file is not a"):
        follow_move(tmp_path / "mlartifacts")


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
    ended = _client(settings).get_run(run.run_id)
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
    ended = _client(settings).get_run(run.run_id)
    assert (ended.info.status, ended.data.metrics) == ("FINISHED", {"loss": 1.0})


def test_what_mlflow_has_after_an_outage_is_in_no_file(settings: Settings) -> None:
    """Neither that a run was created nor any metric is sent a second time."""
    tracking = Tracking.from_settings(settings, "toy")
    tracking._down_until = time.monotonic() + 60
    run = tracking.start_run("created later")
    for step in range(100):
        run.log_lines([_line(step, loss=1.0)])
    path = _file_of(run)
    assert path.read_text().count("loss") == 100
    tracking.flush()
    assert path.read_text().count("\n") == 1 and "loss" not in path.read_text()
    _next_process(settings, run)
    killed = _client(settings).get_run(run.run_id)
    assert (killed.info.status, killed.data.metrics) == ("KILLED", {"loss": 1.0})
    assert len(tracking.search(_client(settings), run.tags)) == 1


def test_a_run_that_a_user_has_deleted_is_not_created_again(settings: Settings) -> None:
    tracking = Tracking.from_settings(settings, "toy")
    run = tracking.start_run("deleted")
    _client(settings).delete_run(run.run_id)
    _next_process(settings, run)
    assert tracking.search(_client(settings), run.tags) == []


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
    assert _client(settings).get_run(run.run_id).info.status == "KILLED"
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
    assert _client(settings).get_run(run.run_id).info.status == "FINISHED"
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
    names = {file.path for file in _client(settings).list_artifacts(run.run_id)}
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
    assert _client(settings).get_run(run.run_id).info.status == "FINISHED"


def _refuse_to_write(*_: Any, **__: Any) -> None:
    raise OSError(errno.EROFS, "the file system is read-only")
