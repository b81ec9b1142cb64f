"""Launching trainers: warm forks, failures told well, nobody left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra import launch as launch_module
from infra.launch import TrainerError, TrainerStoppedError, drain_on_sigterm, launch
from infra.warm_client import child_env, close_servers, warm_server

HERE = str(Path(__file__).parent)


@pytest.fixture(autouse=True, scope="module")
def toys() -> Iterator[None]:
    """The toy modules can be imported by the servers and their children."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", HERE)
        close_servers()
        yield
        close_servers()


def _job(workdir: Path, do: str) -> Path:
    workdir.mkdir(parents=True, exist_ok=True)
    path = workdir / "job.json"
    path.write_text(json.dumps({"do": do}))
    return path


def _launch(workdir: Path, do: str, **options: object) -> float:
    return launch(_job(workdir, do), entry="toy_entry", preload="toy_preload", **options)  # type: ignore[arg-type]


def _wait_for(path: Path, seconds: float = 10) -> str:
    deadline = time.monotonic() + seconds
    while not path.exists() or not path.read_text():
        assert time.monotonic() < deadline, f"{path} did not appear"
        time.sleep(0.01)
    return path.read_text()


def _assert_gone(pids: str, seconds: float = 5) -> None:
    deadline = time.monotonic() + seconds
    for pid in map(int, pids.split()):
        while _running(pid):
            assert time.monotonic() < deadline, f"process {pid} was left behind"
            time.sleep(0.02)


def _running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def test_child_is_a_fork_of_the_warm_server_and_an_ordinary_process(tmp_path: Path) -> None:
    lines: list[str] = []
    _launch(tmp_path, "report", num_threads=3, on_lines=lines.extend, env={"TOY_EXTRA": "yes"})
    seen = json.loads((tmp_path / "seen.json").read_text())
    assert seen["preloaded_in"] == warm_server("toy_preload").pid
    assert seen["pid"] == seen["group"] == seen["session"]
    assert (seen["threads"], seen["extra"], seen["stdin"]) == ("3", "yes", "")
    assert seen["descriptors"][:3] == ["0", "1", "2"]
    assert len(seen["descriptors"]) == 4  # the fourth is the listing's own
    assert (tmp_path / "trainer.log").read_text() == "printed to the log\n"
    assert [json.loads(line)["step"] for line in lines] == [0, 1, 2]


def test_second_job_uses_the_same_server_and_costs_little(tmp_path: Path) -> None:
    _launch(tmp_path / "a", "report")
    seconds = _launch(tmp_path / "b", "report")
    first, second = (json.loads((tmp_path / n / "seen.json").read_text()) for n in "ab")
    assert first["preloaded_in"] == second["preloaded_in"]
    assert first["pid"] != second["pid"]
    assert seconds < 1.0


@pytest.mark.parametrize(
    ("do", "message"),
    [
        ("fail", "exit code 1"),
        ("leave", "exit code 3"),
        ("crash", "killed by SIGSEGV"),
        ("killed", "killed by SIGKILL.*out-of-memory.*batch size"),
    ],
)
def test_failures_say_how_and_the_next_job_runs(tmp_path: Path, do: str, message: str) -> None:
    with pytest.raises(TrainerError, match=message):
        _launch(tmp_path / do, do)
    _launch(tmp_path / "next", "report")


def test_failure_shows_the_last_thirty_lines_of_this_attempt(tmp_path: Path) -> None:
    (tmp_path / "trainer.log").write_text("an older attempt\n")
    with pytest.raises(TrainerError) as caught:
        _launch(tmp_path, "fail")
    message = str(caught.value)
    assert "ValueError: learning rate is negative" in message
    assert str(tmp_path / "trainer.log") in message
    assert "line 39\n" in message
    assert "line 1\n" not in message
    with pytest.raises(TrainerError) as caught:
        _launch(tmp_path, "leave")
    assert "older attempt" not in str(caught.value)
    assert "negative" not in str(caught.value)


def test_jobs_run_side_by_side(tmp_path: Path) -> None:
    threads = [
        threading.Thread(target=_launch, args=(tmp_path / str(i), "report")) for i in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    pids = {json.loads((tmp_path / str(i) / "seen.json").read_text())["pid"] for i in range(6)}
    assert len(pids) == 6


def test_exception_in_the_waiting_thread_kills_the_child_and_its_children(tmp_path: Path) -> None:
    def interrupt() -> None:
        _wait_for(tmp_path / "pids")
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        _launch(tmp_path, "sleep")
    _assert_gone((tmp_path / "pids").read_text())


def test_callback_that_raises_kills_the_child(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text("{}\n")

    def callback(lines: list[str]) -> None:
        _wait_for(tmp_path / "pids")
        raise RuntimeError("cancelled")

    with pytest.raises(RuntimeError, match="cancelled"):
        _launch(tmp_path, "sleep", on_lines=callback)
    _assert_gone((tmp_path / "pids").read_text())


_ORCHESTRATOR = """
import sys
from pathlib import Path
from infra.launch import launch
launch(Path(sys.argv[1]), entry="toy_entry", preload="toy_preload")
"""


def _orchestrator(workdir: Path, do: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", _ORCHESTRATOR, str(_job(workdir, do))]
    return subprocess.Popen(command, env=child_env({}), stderr=subprocess.PIPE)


def test_killed_orchestrator_takes_server_trainer_and_grandchildren_along(tmp_path: Path) -> None:
    process = _orchestrator(tmp_path, "sleep")
    pids = _wait_for(tmp_path / "pids")
    process.kill()
    process.communicate()
    _assert_gone(pids)


def test_sigterm_to_the_orchestrator_drains_the_trainer(tmp_path: Path) -> None:
    process = _orchestrator(tmp_path, "drain")
    pids = _wait_for(tmp_path / "pids")
    process.terminate()
    process.communicate(timeout=10)
    assert (tmp_path / "saved").exists()
    assert process.returncode == -signal.SIGTERM
    _assert_gone(pids)


def test_sigterm_reaches_launches_in_all_threads(tmp_path: Path) -> None:
    errors: list[BaseException] = []

    def work(index: int) -> None:
        try:
            _launch(tmp_path / str(index), "drain")
        except TrainerStoppedError as error:
            errors.append(error)

    received: list[int] = []
    previous = signal.signal(signal.SIGTERM, lambda number, _: received.append(number))
    try:
        with drain_on_sigterm():
            threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
            for thread in threads:
                thread.start()
            for index in range(2):
                _wait_for(tmp_path / str(index) / "pids")
            os.kill(os.getpid(), signal.SIGTERM)
            for thread in threads:
                thread.join()
            assert len(errors) == 2
            assert received == []
            with pytest.raises(TrainerStoppedError, match="not started"):
                _launch(tmp_path / "late", "report")
        assert received == [signal.SIGTERM]  # then the signal takes its ordinary effect
    finally:
        signal.signal(signal.SIGTERM, previous)


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
        _wait_for(tmp_path / "pids")
        drain.requested = True

    threading.Thread(target=terminate).start()
    with pytest.raises(TrainerStoppedError, match="SIGKILL"):
        _launch(tmp_path, "stubborn", drain_seconds=0.3)
    _assert_gone((tmp_path / "pids").read_text())


def test_two_ranks_are_drained(tmp_path: Path, drain: launch_module._Drain) -> None:
    def terminate() -> None:
        for rank in (0, 1):
            _wait_for(tmp_path / f"pids{rank}", 60)
        drain.requested = True

    threading.Thread(target=terminate).start()
    with pytest.raises(TrainerStoppedError):
        _launch(tmp_path, "drain", num_ranks=2)
    for rank in (0, 1):
        assert (tmp_path / f"saved{rank}").exists()
        _assert_gone((tmp_path / f"pids{rank}").read_text())


def test_killed_server_is_reported_and_replaced(tmp_path: Path) -> None:
    def kill_server() -> None:
        _wait_for(tmp_path / "pids")
        os.kill(warm_server("toy_preload").pid, signal.SIGKILL)

    threading.Thread(target=kill_server).start()
    with pytest.raises(TrainerError, match=r"fork server .* is gone, exit -9"):
        _launch(tmp_path, "sleep")
    _assert_gone((tmp_path / "pids").read_text().split()[0])
    os.kill(int((tmp_path / "pids").read_text().split()[1]), signal.SIGKILL)
    _launch(tmp_path / "next", "report")


def test_preload_that_fails_says_why(tmp_path: Path) -> None:
    with pytest.raises(TrainerError, match="No module named 'no_such_module'"):
        launch(_job(tmp_path, "report"), entry="toy_entry", preload="no_such_module")


def test_entry_that_does_not_exist_says_why(tmp_path: Path) -> None:
    with pytest.raises(TrainerError, match="No module named 'no_such_entry'"):
        launch(_job(tmp_path, "report"), entry="no_such_entry", preload="toy_preload")


def test_two_ranks_run_under_torchrun(tmp_path: Path) -> None:
    _launch(tmp_path, "report", num_ranks=2, num_threads=2)
    ranks = [json.loads((tmp_path / f"seen{rank}.json").read_text()) for rank in (0, 1)]
    assert [rank["rank"] for rank in ranks] == ["0", "1"]
    assert [rank["threads"] for rank in ranks] == ["2", "2"]
