"""Trainers that are stopped, killed or orphaned: the reason is told and nobody left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.infra.toy_launch import assert_gone, launch_toy, wait_for, write_job
from trimtab.infra.processes import launch as launch_module
from trimtab.infra.processes.environment import child_env
from trimtab.infra.processes.launch import (
    TrainerError,
    TrainerStoppedError,
    running_fork_server,
    stop_trainers_on_sigterm,
)

pytestmark = pytest.mark.usefixtures("toys")


def test_exception_in_the_waiting_thread_kills_the_child_and_its_children(tmp_path: Path) -> None:
    def interrupt() -> None:
        wait_for(tmp_path / "pids")
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        launch_toy(tmp_path, "sleep")
    assert_gone((tmp_path / "pids").read_text())


def test_callback_that_raises_kills_the_child(tmp_path: Path) -> None:
    def callback() -> None:
        wait_for(tmp_path / "pids")
        raise RuntimeError("cancelled")

    with pytest.raises(RuntimeError, match="cancelled"):
        launch_toy(tmp_path, "sleep", on_report=callback)
    assert_gone((tmp_path / "pids").read_text())


_ORCHESTRATOR = """
import sys
from pathlib import Path
from trimtab.infra.processes.launch import launch
launch(Path(sys.argv[1]), entry="toy_entry", preload="toy_preload")
"""


def _orchestrator(workdir: Path, do: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", _ORCHESTRATOR, str(write_job(workdir, do))]
    return subprocess.Popen(command, env=child_env({}), stderr=subprocess.PIPE)


def test_killed_orchestrator_takes_server_trainer_and_grandchildren_along(tmp_path: Path) -> None:
    process = _orchestrator(tmp_path, "sleep")
    pids = wait_for(tmp_path / "pids")
    process.kill()
    process.communicate()
    assert_gone(pids)


def test_sigterm_to_the_orchestrator_drains_the_trainer(tmp_path: Path) -> None:
    process = _orchestrator(tmp_path, "drain")
    pids = wait_for(tmp_path / "pids")
    process.terminate()
    process.communicate(timeout=10)
    assert (tmp_path / "saved").exists()
    assert process.returncode == -signal.SIGTERM
    assert_gone(pids)


@pytest.mark.parametrize("waits", [True, False])
def test_sigterm_reaches_launches_in_all_threads(tmp_path: Path, waits: bool) -> None:
    """Also where the main thread leaves at once, as a flow does at its first stage that stops."""
    errors: list[BaseException] = []

    def work(index: int) -> None:
        try:
            launch_toy(tmp_path / str(index), "drain")
        except TrainerStoppedError as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    received: list[int] = []
    previous = signal.signal(signal.SIGTERM, lambda number, _: received.append(number))
    try:
        with stop_trainers_on_sigterm():
            for thread in threads:
                thread.start()
            for index in range(2):
                wait_for(tmp_path / str(index) / "pids")
            os.kill(os.getpid(), signal.SIGTERM)
            with pytest.raises(TrainerStoppedError, match="not started"):
                launch_toy(tmp_path / "late", "report")
            if waits:
                _join(threads)
            assert received == []
        assert received == [signal.SIGTERM]  # then the signal takes its ordinary effect
        _join(threads)
        assert len(errors) == 2
        launch_toy(tmp_path / "next", "report")  # a block of its own, which nobody has stopped
    finally:
        signal.signal(signal.SIGTERM, previous)


def _join(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "the trainer was not told to stop"


@pytest.fixture
def drain(monkeypatch: pytest.MonkeyPatch) -> Iterator[launch_module._Drain]:
    """The flag that a SIGTERM raises, without the signal."""
    monkeypatch.setattr(launch_module._drain, "depth", 1)
    yield launch_module._drain
    launch_module._drain.requested = False


def test_trainer_that_does_not_stop_is_killed_in_the_end(
    tmp_path: Path, drain: launch_module._Drain
) -> None:
    def terminate() -> None:
        wait_for(tmp_path / "pids")
        drain.requested = True

    threading.Thread(target=terminate).start()
    with pytest.raises(TrainerStoppedError, match="SIGKILL"):
        launch_toy(tmp_path, "stubborn", drain_seconds=0.3)
    assert_gone((tmp_path / "pids").read_text())


def test_killed_server_is_reported_and_replaced(tmp_path: Path) -> None:
    def kill_server() -> None:
        wait_for(tmp_path / "pids")
        os.kill(running_fork_server("toy_preload").pid, signal.SIGKILL)

    threading.Thread(target=kill_server).start()
    with pytest.raises(TrainerError, match=r"fork server .* is gone, exit -9"):
        launch_toy(tmp_path, "sleep")
    assert_gone((tmp_path / "pids").read_text().split()[0])
    os.kill(int((tmp_path / "pids").read_text().split()[1]), signal.SIGKILL)
    launch_toy(tmp_path / "next", "report")
