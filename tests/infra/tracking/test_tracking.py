"""MLflow runs over the embedded SQLite default; and what happens when MLflow is not there."""

from __future__ import annotations

import json
import logging
import shutil
import tempfile
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.infra.tracking.conftest import client_of, line_of
from trimtab.infra.processes.launch import (
    LineTail,
    TrainerStoppedError,
    _last_lines,
    final_exception,
)
from trimtab.infra.processes.locks import file_lock
from trimtab.infra.settings import Settings, SettingsError
from trimtab.infra.tracking.mlflow_calls import follow_move
from trimtab.infra.tracking.registry import Registry
from trimtab.infra.tracking.runs import Input, Tracking


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
    client = client_of(settings)
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
    client = client_of(settings)
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
    path.write_text("".join(line_of(step, loss=step / 10, kl=0.5) for step in range(1500)))
    run.log_lines(tail.read())
    with path.open("a") as stream:
        stream.write('{"progress": [1, 2], "time": 1.0}\nnot json\n' + line_of(1500, loss=7.0)[:-5])
        stream.flush()
        run.log_lines(tail.read())
        stream.write(line_of(1500, loss=7.0)[-5:])
    run.log_lines(tail.read())
    assert not run.has_unsent
    history = client_of(settings).get_metric_history(run.run_id, "loss")
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
        run.log_lines([line_of(0, loss=1.0)])
        for _ in range(3):
            assert not run.send_waiting()
            tracking._down_until = 0.0  # as if the pause were over
    assert len([r for r in caplog.records if "Training continues" in r.message]) == 1
    run.log_lines([line_of(1, loss=0.5)])
    assert run.send_waiting()
    history = client_of(settings).get_metric_history(run.run_id, "loss")
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
    run.log_lines([line_of(0, **{"bad?name": 1.0})])
    run.log_lines([line_of(1, good=1.0)])
    assert not run.has_unsent
    assert client_of(settings).get_run(run.run_id).data.metrics == {"good": 1.0}


def test_two_connections_at_once_make_one_experiment(settings: Settings) -> None:
    runs: list[str | None] = []

    def start() -> None:
        runs.append(Tracking.from_settings(settings, "shared").start_run("x").run_id)

    threads = [threading.Thread(target=start) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    client = client_of(settings)
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
        return client_of(settings)

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
    other = client_of(first).create_experiment("elsewhere", f"file://{tmp_path}/own")
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
    client = client_of(second)
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
