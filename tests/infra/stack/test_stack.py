"""The stack's supervisor with toy servers, and its secrets."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from threading import Thread

import pytest

from tests.ports import free_ports
from tests.thief import thief
from trimtab.infra.processes.locks import try_folder_lock
from trimtab.infra.stack import programs, supervisor
from trimtab.infra.stack.__main__ import _up, temporary_folder
from trimtab.infra.stack.postgres import postgres
from trimtab.infra.stack.programs import StackError, require_reachable
from trimtab.infra.stack.services import Stack
from trimtab.infra.stack.supervisor import Service, Supervisor, rotate

TOY = """
import os, signal, sys, time
open(sys.argv[1] + ".new", "w").write(str(os.getpid()))
os.rename(sys.argv[1] + ".new", sys.argv[1])
time.sleep(600)
"""

FLOW_RUN = """
import pathlib, signal, sys, time
def save(*_):
    pathlib.Path(sys.argv[1] + ".saved").touch()
    sys.exit()
signal.signal(signal.SIGTERM, save)
pathlib.Path(sys.argv[1] + ".began").touch()
time.sleep(600)
"""

WORKER = f"""
import os, subprocess, sys, time
began = sys.argv[1] + ".began"
if os.path.exists(began):
    os.remove(began)
run = [sys.executable, "-c", {FLOW_RUN!r}, sys.argv[1], "prefect.engine"]
process = subprocess.Popen(run, start_new_session=True)
open(sys.argv[1] + ".run", "w").write(str(process.pid))
while not os.path.exists(began):
    time.sleep(0.01)
{TOY}
"""

WATCH = """
import sys
from pathlib import Path
from tests.infra.stack.test_stack import toy, toy_worker
from trimtab.infra.stack import supervisor
from trimtab.infra.stack.supervisor import Supervisor
folder = Path(sys.argv[1])
supervisor.adopt_orphans()
services = [toy(folder, "a"), toy(folder, "b"), toy_worker(folder)]
with Supervisor(services, folder / "logs") as supervisor:
    print("up", flush=True)
    supervisor.watch()
"""


def toy(folder: Path, name: str) -> Service:
    """A server that is ready once it has written its process id."""
    mark = folder / name
    return Service(
        name,
        [sys.executable, "-c", TOY, str(mark)],
        is_ready=mark.exists,
        folder=folder,
    )


def toy_worker(folder: Path) -> Service:
    """A worker with one flow run, which saves its state at SIGTERM."""
    mark = folder / "worker"
    return Service(
        "worker",
        [sys.executable, "-c", WORKER, str(mark)],
        is_ready=mark.exists,
        after_stop_signal=supervisor.stop_flow_runs,
    )


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _pid(path: Path) -> int:
    return int(path.read_text())


@pytest.fixture
def watching(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", WATCH, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    yield process
    process.kill()
    process.wait()
    with suppress(ProcessLookupError):  # nothing ends flow runs with a killed stack
        os.kill(_pid(tmp_path / "worker.run"), signal.SIGKILL)


@pytest.mark.slow
def test_all_start_at_once_but_those_that_need_another(tmp_path: Path) -> None:
    first, needy, other = (toy(tmp_path, name) for name in ("first", "needy", "other"))
    marks = {name: tmp_path / name for name in ("first", "needy", "other")}
    # One after the other they would never be ready: `first` is so only once `other` has started.
    first = replace(first, is_ready=lambda: marks["first"].exists() and marks["other"].exists())
    needy = replace(needy, after=["first"])
    with Supervisor([needy, first, other], tmp_path / "logs"):
        started = {name: mark.stat().st_mtime_ns for name, mark in marks.items()}
    assert started["needy"] > max(started["first"], started["other"])


@pytest.mark.slow
def test_a_server_that_dies_is_started_again(
    watching: subprocess.Popen[str], tmp_path: Path
) -> None:
    first, other = _pid(tmp_path / "a"), _pid(tmp_path / "b")
    os.kill(first, signal.SIGKILL)
    _until(lambda: _pid(tmp_path / "a") != first)
    second = _pid(tmp_path / "a")
    assert _pid(tmp_path / "b") == other
    watching.send_signal(signal.SIGINT)
    watching.wait(timeout=20)
    assert not _is_alive(second)
    assert not _is_alive(other)


def test_no_server_outlives_a_killed_supervisor(
    watching: subprocess.Popen[str], tmp_path: Path
) -> None:
    pids = [_pid(tmp_path / "a"), _pid(tmp_path / "b")]
    watching.kill()
    watching.wait()
    _until(lambda: not any(map(_is_alive, pids)))


@pytest.mark.slow
def test_a_flow_run_outlives_its_worker_but_not_the_stack(
    watching: subprocess.Popen[str], tmp_path: Path
) -> None:
    worker, run = _pid(tmp_path / "worker"), _pid(tmp_path / "worker.run")
    os.kill(worker, signal.SIGKILL)
    _until(lambda: _pid(tmp_path / "worker") != worker)
    assert _is_alive(run)
    second = _pid(tmp_path / "worker.run")
    os.kill(run, signal.SIGKILL)
    _until(lambda: not Path(f"/proc/{run}").exists())  # nor is it left as a zombie
    watching.send_signal(signal.SIGINT)
    watching.wait(timeout=20)
    assert (tmp_path / "worker.saved").exists()
    assert not _is_alive(second)


def test_temporary_files_go_with_the_stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of processes that were killed, and of an earlier stack."""
    monkeypatch.setenv("TMPDIR", "/nowhere")
    killed = tmp_path / "tmp-killed"
    (killed / "run").mkdir(parents=True)
    with temporary_folder(tmp_path) as first:
        assert not killed.exists()
        assert os.environ["TMPDIR"] == str(first)
        assert first.stat().st_mode & 0o077 == 0
        (first / "left").touch()
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_cannot_start_says_why_and_stops_the_others(tmp_path: Path) -> None:
    broken = Service(
        "broken", [sys.executable, "-c", "raise SystemExit('no disk')"], is_ready=lambda: False
    )
    with (
        pytest.raises(StackError, match="broken ended; .*broken.log ends with:\nno disk"),
        Supervisor([toy(tmp_path, "a"), broken], tmp_path / "logs"),
    ):
        pass
    assert not _is_alive(_pid(tmp_path / "a"))


def test_root_is_told_of_a_folder_that_postgresql_cannot_enter(tmp_path: Path) -> None:
    """Only root's stack runs it as another user."""
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    require_reachable("nobody", [Path("/"), Path("/usr/bin/env"), Path("/not/there")])
    if os.geteuid() == 0:
        with pytest.raises(StackError, match=r"which nobody cannot enter; allowed: .*chmod o\+x /"):
            require_reachable("nobody", [closed])
    else:
        require_reachable("nobody", [closed])


def test_a_folder_too_deep_for_postgresql_s_socket_is_refused() -> None:
    deep = Path("/", "d" * (106 - len("/.s.PGSQL.5432")))
    postgres(deep)
    with pytest.raises(StackError, match=f"^{deep}e: found a path .* 108 bytes; allowed: 107"):
        postgres(deep.with_name(f"{deep.name}e"))


def test_where_a_log_cannot_be_kept_the_old_ones_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a full disk, which must not end the stack either."""
    log = tmp_path / "a.log"
    log.write_text("x" * 9)
    log.with_name("a.log.1").write_text("old")

    def fail(*_: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(shutil, "copyfile", fail)
    with pytest.raises(OSError, match="No space"):
        rotate(log, 8, 3)
    assert {path.name for path in tmp_path.iterdir()} == {"a.log", "a.log.1"}
    assert (log.read_text(), log.with_name("a.log.1").read_text()) == ("x" * 9, "old")
    running = Supervisor([], tmp_path)
    monkeypatch.setattr("trimtab.infra.stack.supervisor.rotate", fail)
    running._rotate(log)


def test_one_folder_has_one_stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stack = Stack(tmp_path)
    with try_folder_lock(tmp_path) as is_ours:
        assert is_ours
        with pytest.raises(StackError, match="is in use: a stack is up there"):
            _up(stack)
    with try_folder_lock(tmp_path) as is_ours:
        assert is_ours
    for name, value in programs.new_secrets().items():
        monkeypatch.setenv(name, value)
    with pytest.raises(StackError, match="is no stack's folder"):
        stack.upgrade()


TALKER = """
import sys, time
for number in range(400):
    print(f"{number:04}" + "." * 95, flush=True)
    time.sleep(0.002)
open(sys.argv[1], "w").close()
time.sleep(600)
"""


def test_a_line_that_comes_while_a_log_is_rotated_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its server writes on while older logs are renamed, which takes long beside what is left."""
    log, replace = tmp_path / "server.log", Path.replace

    def write_and_replace(old: Path, new: Path) -> Path:
        with log.open("a") as server:
            server.write("meanwhile\n")
        return replace(old, new)

    monkeypatch.setattr(Path, "replace", write_and_replace)
    for number in range(3):
        log.write_text(f"{number}\n" * 10)
        rotate(log, max_bytes=10, num_old=2)
    kept = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert kept == {
        "server.log": "",
        "server.log.1": "2\n" * 10 + "meanwhile\n" * 2,
        "server.log.2": "1\n" * 10 + "meanwhile\n" * 2,
    }


@pytest.mark.slow
def test_logs_stay_below_a_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """40 kB are written; what is kept are the newest lines, each whole."""
    said, limit, num_old = tmp_path / "said", 4000, 3
    talker = Service("talker", [sys.executable, "-c", TALKER, str(said)], is_ready=lambda: True)
    log = tmp_path / "logs" / "talker.log"
    with Supervisor([talker], log.parent):
        while not said.exists():
            rotate(log, limit, num_old)
            time.sleep(0.001)
    kept = sorted(log.parent.iterdir(), key=lambda path: path.name, reverse=True)
    assert [path.name for path in kept] == [f"talker.log.{n}" for n in (3, 2, 1)] + ["talker.log"]
    assert all(path.stat().st_mode & 0o077 == 0 for path in kept)
    assert sum(path.stat().st_size for path in kept) < 2 * (num_old + 1) * limit
    lines = [line for path in kept for line in path.read_text().splitlines()]
    numbers = [int(line[:4]) for line in lines]
    assert {len(line) for line in lines} == {99}
    assert numbers == sorted(numbers) and numbers[-1] == 399 and len(numbers) > 80


# A server that takes its time to import, then answers from its descriptor 0.
SLOW = """
import os, socket, sys, time
time.sleep(1)
open(sys.argv[1], "a").write(f"{os.getpid()}\\n")
listener = socket.socket(fileno=0)
while True:
    connection, _ = listener.accept()
    connection.sendall(b"server")
    connection.close()
"""


def _asked(port: int) -> bytes:
    with socket.create_connection(("127.0.0.1", port), 20) as connection:
        return connection.recv(9)


@pytest.mark.slow
def test_nobody_takes_a_server_s_port_while_it_starts_or_is_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed, or when it cannot be started again, which does not end the others."""
    port, pids = free_ports(1), tmp_path / "pids"
    full, enough = tmp_path / "full", tmp_path / "enough"
    said: list[str] = []
    with ExitStack() as stack:

        def prepare() -> None:
            if not pids.exists():
                stack.enter_context(thief(port))
            if full.exists():
                raise OSError(errno.ENOSPC, "No space left on device")

        def kill() -> int:
            numbers = pids.read_text().split()
            os.kill(int(numbers[-1]), signal.SIGKILL)
            _until(lambda: not _is_alive(int(numbers[-1])))
            return len(numbers)

        def end(_: Path) -> None:
            if enough.exists():
                raise EOFError

        def watch() -> None:
            with suppress(EOFError):
                running.watch()

        server = Service(
            "server",
            [sys.executable, "-c", SLOW, str(pids)],
            is_ready=lambda: _asked(port) == b"server",
            address=("127.0.0.1", port),
            prepare=prepare,
        )
        monkeypatch.setattr(supervisor.logger, "warning", lambda text, *_: said.append(text))
        monkeypatch.setattr(Supervisor, "_rotate", lambda _, log: end(log))
        with Supervisor([server, toy(tmp_path, "other")], tmp_path / "logs") as running:
            other = _pid(tmp_path / "other")
            watching = Thread(target=watch, daemon=True)
            watching.start()
            assert kill() == 1
            assert _asked(port) == b"server"  # the second, for which it waited
            full.touch()
            assert kill() == 2
            _until(lambda: sum("cannot be started" in text for text in said) >= 2)
            assert _is_alive(other)
            full.unlink()
            assert _asked(port) == b"server"
            assert kill() == 3
            enough.touch()
            watching.join(10)
            assert _is_alive(other)
            stack.close()  # while the supervisor has the port: afterwards it is anybody's


@pytest.mark.parametrize("opens", ["the supervisor", "the server"])
def test_where_a_port_is_taken_nothing_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opens: str
) -> None:
    monkeypatch.setattr("trimtab.infra.stack.supervisor._PORT_SECONDS", 0.1)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        of_service = {"address": ("127.0.0.1", port)} if "super" in opens else {"ports": [port]}
        first = toy(tmp_path, "first")
        service = Service("s3", ["true"], is_ready=lambda: True, **of_service)  # type: ignore[arg-type]
        with (
            pytest.raises(StackError, match=f"port {port} of 127.0.0.1, which s3 needs, is in use"),
            Supervisor([first, service], tmp_path / "logs"),
        ):
            pass
        taken.settimeout(0.1)
        with pytest.raises(TimeoutError):  # nobody came to whoever has the port
            taken.accept()
    assert not (tmp_path / "first").exists()


def test_a_port_is_ready_if_the_server_s_own_process_listens(tmp_path: Path) -> None:
    """Not if whoever was quicker does, whatever that one answers."""
    port, asked = free_ports(1), []
    late = Service(
        "late",
        [sys.executable, "-c", "import time; time.sleep(600)"],
        is_ready=lambda: asked.append(1) is None,
        ports=[port],
        prepare=lambda: time.sleep(0),
    )
    child = subprocess.Popen(late.command)
    with socket.create_server(("127.0.0.1", port)), Supervisor([], tmp_path) as running:
        assert not running._is_up(late, supervisor._Child(child, time.monotonic()))
        child.kill()
        child.wait()
        quick = "import socket, time; s = socket.create_server(('127.0.0.1', 0)); "
        quick += "print(s.getsockname()[1], flush=True); time.sleep(600)"
        server = subprocess.Popen([sys.executable, "-c", quick], stdout=subprocess.PIPE, text=True)
        assert server.stdout is not None
        ready = replace(late, ports=[int(server.stdout.readline())])
        assert running._is_up(ready, supervisor._Child(server, time.monotonic()))
        server.kill()
        server.wait()
    assert len(asked) == 1


def test_a_server_has_the_secrets_that_it_needs_and_writes_for_its_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in programs.SECRETS:
        monkeypatch.setenv(name, "secret")
    monkeypatch.setenv("GITHUB_TOKEN", "secret")
    folder = tmp_path / "of-its-own"
    show = "import os; print(*os.environ); open('x', 'w').close(); open('done', 'w').close()"
    service = Service(
        "shows",
        [sys.executable, "-c", f"{show}; import time; time.sleep(600)"],
        is_ready=(folder / "done").exists,
        secrets=["PGPASSWORD"],
        folder=folder,
    )
    with Supervisor([service], tmp_path / "logs"):
        pass
    log = tmp_path / "logs" / "shows.log"
    names = log.read_text().split()
    assert "PATH" in names
    assert {*programs.SECRETS, "GITHUB_TOKEN"} & set(names) == {"PGPASSWORD"}
    for path in (folder, folder / "x", log.parent, log):
        assert path.stat().st_mode & 0o077 == 0, path


def test_the_worker_has_the_judges_keys_and_no_other_server_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in programs.SECRETS:
        monkeypatch.setenv(name, "secret")
    monkeypatch.setenv("TRIMTAB_JUDGES", "https://judge.example/v1=JUDGE_KEY")
    with_it = {each.name for each in Stack(tmp_path).services() if "JUDGE_KEY" in each.secrets}
    assert with_it == {"worker-1"}


def test_no_server_of_seaweedfs_is_told_a_key_but_s3(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in programs.SECRETS:
        monkeypatch.setenv(name, "a-secret")
    (weed,) = (each for each in Stack(tmp_path).services() if each.name == "seaweedfs")
    assert weed.folder is not None
    weed.folder.mkdir()
    weed.prepare()
    key = weed.folder / "server.key"
    assert key.stat().st_mode & 0o077 == 0
    before = key.read_text()
    weed.prepare()
    assert key.read_text() != before
    security = tomllib.loads((weed.folder / "security.toml").read_text())
    assert security["https"]["client"]["enabled"] is True
    for protocol in ("https", "grpc"):
        for server in ("master", "volume", "filer"):
            assert security[protocol][server]["cert"] and security[protocol][server]["key"]
    assert security["grpc"]["ca"] and security["grpc"]["s3"]["key"]
    assert "a-secret" not in " ".join(weed.command) + str(security) + str(weed.env)


def test_secrets_come_from_the_environment_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in programs.SECRETS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PGPASSWORD", "mine")
    with pytest.raises(StackError) as error:
        Stack(tmp_path).services()
    for name in programs.SECRETS:
        assert (name in str(error.value)) == (name != "PGPASSWORD")
    made, again = programs.new_secrets(), programs.new_secrets()
    assert set(made) == set(programs.SECRETS) - {"PGPASSWORD"}
    assert all(made[name] != again[name] for name in made if name != "MLFLOW_TRACKING_USERNAME")
    assert programs.export_lines({"A": "it's"}) == "export A='it'\"'\"'s'"


def test_a_stack_has_a_limit_of_runs_at_once_and_its_worker_a_name_of_each_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in programs.SECRETS:
        monkeypatch.setenv(name, "secret")
    asked: list[object] = []
    monkeypatch.setattr(Stack, "_ask_prefect", lambda _, *sent: asked.append(sent) or {"": ""})
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(3))
    for gpus, given, limit in (("", {}, 6), ("0,1,2,3,4,5,6", {}, 7), ("", {"limit": 2}, 2)):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", gpus)
        *_, worker = Stack(tmp_path, **given).services()
        assert not {"--limit", "--name"} & set(worker.command)
        assert worker.is_ready()
        assert asked[-1] == ("work_pools/trimtab", {"concurrency_limit": limit}, "PATCH")
