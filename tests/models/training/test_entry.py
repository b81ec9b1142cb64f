"""The real entry and the real preload: a fork with torch loaded computes, stops, reports."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from tests.infra.toy_launch import assert_gone
from tests.models.training import toy_stage
from trimtab.infra.processes import launch as launch_module
from trimtab.infra.processes.launch import TrainerError, TrainerStoppedError, launch
from trimtab.models.training import entry, signals


def _job(workdir: Path, num_ranks: int = 1, **config: Any) -> Path:
    content = {
        "stage": "toy",
        "config": config,
        "inputs": {"policy": "/p"},
        "workdir": str(workdir),
        "num_threads": 2,
        "num_ranks": num_ranks,
    }
    path = workdir / "job.json"
    path.write_text(json.dumps(content))
    return path


@pytest.mark.slow
def test_fork_has_torch_loaded_and_computes(tmp_path: Path) -> None:
    launch(_job(tmp_path, size=600), entry=toy_stage.__name__)
    assert json.loads((tmp_path / "seen.json").read_text()) == {
        "loaded_before": True,
        "threads": 2,
        "deterministic": True,
        "sum": 600 * 600 * 2.0,
        "inputs": {"policy": "/p"},
    }


@pytest.mark.slow
def test_unknown_config_key_is_in_the_error(tmp_path: Path) -> None:
    with pytest.raises(TrainerError, match=r"(?s)ValidationError: 1 .*sise"):
        launch(_job(tmp_path, size=2, sise=3), entry=toy_stage.__name__)


@pytest.mark.slow
@pytest.mark.parametrize(("size", "saves"), [(1, True), (3, False)])
def test_sigterm_saves_what_there_is_and_leaves_with_75(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, saves: bool
) -> None:
    monkeypatch.setattr(launch_module._drain, "depth", 1)
    monkeypatch.setattr(launch_module._drain, "requested", False)

    def terminate() -> None:
        while not (tmp_path / "seen.json").exists():
            time.sleep(0.01)
        launch_module._drain.requested = True

    threading.Thread(target=terminate).start()
    with pytest.raises(TrainerStoppedError, match="exit code 75"):
        launch(_job(tmp_path, size=size), entry=toy_stage.__name__, drain_seconds=20)
    assert (tmp_path / "saved").exists() == saves


def _wait_for_ranks(workdir: Path) -> list[int]:
    paths = [workdir / f"pid{rank}" for rank in (0, 1)]
    deadline = time.monotonic() + 60
    while not all(path.exists() and path.read_text() for path in paths):
        assert time.monotonic() < deadline, "the ranks did not start"
        time.sleep(0.02)
    return [int(path.read_text()) for path in paths]


@pytest.mark.slow
def test_ranks_die_with_the_trainer(tmp_path: Path) -> None:
    ranks: list[int] = []

    def cancel() -> None:
        ranks.extend(_wait_for_ranks(tmp_path))
        raise RuntimeError("cancelled")

    with pytest.raises(RuntimeError, match="cancelled"):
        launch(_job(tmp_path, 2, size=1), entry=toy_stage.__name__, on_report=cancel)
    assert_gone(" ".join(map(str, ranks)))


@pytest.mark.parametrize(
    ("job", "message"),
    [
        ("[]", "should be an object"),
        ('{"stage": "sft"}', "workdir\n  Field required"),
        (
            '{"stage": "a.b", "config": {}, "inputs": {}, "workdir": "/"}',
            "found stage 'a.b'; allowed",
        ),
    ],
)
def test_bad_job_files_are_refused(tmp_path: Path, job: str, message: str) -> None:
    (tmp_path / "job.json").write_text(job)
    previous = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(ValidationError, match=message):
            entry.main(str(tmp_path / "job.json"))
    finally:
        signal.signal(signal.SIGTERM, previous)


def test_flag_is_raised_by_sigterm_and_lowered_by_install() -> None:
    previous = signal.getsignal(signal.SIGTERM)
    try:
        signals.install()
        signals.defer()
        assert not signals.stop_requested()
        os.kill(os.getpid(), signal.SIGTERM)
        assert signals.stop_requested()
        with pytest.raises(SystemExit) as caught:
            signals.stop()
        assert caught.value.code == signals.EXIT_STOPPED == launch_module.EXIT_STOPPED
        signals.install()
        assert not signals.stop_requested()
        with pytest.raises(SystemExit):
            os.kill(os.getpid(), signal.SIGTERM)
    finally:
        signals.install()
        signal.signal(signal.SIGTERM, previous)
