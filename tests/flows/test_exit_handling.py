"""How commands end: by Ctrl-C and SIGTERM, without a home to write to, with a port taken."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.ports import free_ports
from trimtab.flows.cli.cli import main
from trimtab.flows.runs.exit_handling import WAITING

# As while trainers are stopped at a checkpoint: SIGTERM is in hand. Sleeps are short, as a signal
# just before one does not end it.
DRAINING = """
import signal, sys, time
from trimtab.flows.runs.exit_handling import exit_on_signals
with exit_on_signals("; it goes on"):
    if "drain" in sys.argv:
        signal.signal(signal.SIGTERM, lambda *_: print("draining", flush=True))
    print("ready", flush=True)
    for _ in range(6000):
        time.sleep(0.1)
"""
# As a library that is loaded and makes an exception of its own of any.
LOADING = """
import signal
from trimtab.flows.runs.exit_handling import exit_on_signals
with exit_on_signals("; it goes on"):
    with exit_on_signals("; it goes on", at_once=True):
        try:
            signal.raise_signal(getattr(signal, __import__("sys").argv[1]))
        except BaseException as error:
            raise ValueError("PydanticSerializationError") from error
"""
# As if a signal came while a server was being started.
INTERRUPTED = """
import signal, subprocess, sys
from pathlib import Path
from trimtab.flows.runs.exit_handling import exit_on_signals
from trimtab.infra.stack.supervisor import Service, Supervisor
class Popen(subprocess.Popen):
    def _execute_child(self, *arguments):
        super()._execute_child(*arguments)
        signal.raise_signal(signal.SIGTERM)
subprocess.Popen = Popen
sleeps = ["sh", "-c", f"echo $$ > {sys.argv[1]}/pid; exec sleep 600"]
with exit_on_signals(), Supervisor([Service("sleep", sleeps, lambda: False)], Path(sys.argv[1])):
    pass
"""


def _start(code: str, *arguments: str, **keywords: object) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, **keywords)  # type: ignore[call-overload,no-any-return]


def _signalled(process: subprocess.Popen[str], numbers: Sequence[signal.Signals]) -> str:
    """What it says on stderr, after a signal behind each of its lines."""
    assert process.stdout is not None
    for number in numbers:
        assert process.stdout.readline()
        process.send_signal(number)
    return process.communicate(timeout=60)[1]


@pytest.mark.parametrize(
    ("number", "name", "status"), [(signal.SIGINT, "Ctrl-C", 130), (signal.SIGTERM, "SIGTERM", 143)]
)
def test_a_signal_ends_it_with_a_line(number: signal.Signals, name: str, status: int) -> None:
    process = _start(DRAINING)
    assert _signalled(process, [number]) == f"trimtab: stopped by {name}; it goes on\n"
    assert process.returncode == status


@pytest.mark.parametrize(("number", "status"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_a_signal_while_libraries_are_loaded_ends_it_with_a_line(number: str, status: int) -> None:
    process = _start(LOADING, number)
    said = process.communicate(timeout=60)[1]
    name = "Ctrl-C" if number == "SIGINT" else number
    assert said == f"trimtab: stopped by {name}; it goes on\n"
    assert process.returncode == status


def test_a_second_ctrl_c_ends_it_at_once() -> None:
    process = _start(DRAINING, "drain")
    assert _signalled(process, [signal.SIGINT, signal.SIGINT]) == f"{WAITING}\n"  # at once
    assert process.returncode == 130


def test_a_ctrl_c_that_is_ignored_stays_so() -> None:
    """As a shell has it for what a script starts with `&`."""
    process = _start(DRAINING, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN))
    assert process.stdout is not None and process.stdout.readline()
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 143


@pytest.mark.parametrize("command", [["run", "smoke"], ["ui"], ["clean"], ["rounds", "smoke"]])
def test_a_home_that_cannot_be_made_is_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: list[str],
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("TRIMTAB_HOME", str(tmp_path / "file" / "home"))
    assert main(command) == 2
    said = capsys.readouterr().err
    assert said.startswith(
        f"trimtab: TRIMTAB_HOME is {tmp_path}/file/home, which cannot be written"
    )
    assert said.count("\n") == 1


@pytest.mark.parametrize("command", [["run", "smoke", "--print-config"], ["report"], ["papers"]])
def test_what_only_prints_makes_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    monkeypatch.setenv("TRIMTAB_HOME", str(tmp_path / "home"))
    main(command)
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize(
    ("option", "other"), [("--port", "--mlflow-port"), ("--mlflow-port", "--port")]
)
def test_a_port_that_is_taken_is_one_line_and_nothing_starts(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    option: str,
    other: str,
) -> None:
    monkeypatch.setenv("TRIMTAB_HOME", str(tmp_path))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert main(["ui", option, str(port), other, str(free_ports(1))]) == 1
    said = capsys.readouterr()
    name = "prefect" if option == "--port" else "mlflow"
    assert said.err == (
        f"trimtab: port {port} of 127.0.0.1, which {name} needs, is in use: stop what uses it, or "
        "choose another\n"
    )
    assert said.out == ""
    assert list((tmp_path / "logs").iterdir()) == []


@pytest.mark.slow
def test_the_pages_are_served_until_ctrl_c(tmp_path: Path) -> None:
    """By one process a server; the sockets are there before the servers are, and go with them."""
    port = free_ports(2)
    process = subprocess.Popen(
        [
            *(sys.executable, "-P", "-m", "trimtab", "ui"),
            *("--port", str(port), "--mlflow-port", str(port + 1)),
        ],
        env={**os.environ, "TRIMTAB_HOME": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline().startswith(f"Prefect: http://127.0.0.1:{port}   MLflow: ")
    children = psutil.Process(process.pid).children(recursive=True)
    assert len(children) == 2
    for number, page in {port: "api/health", port + 1: "health"}.items():
        with urllib.request.urlopen(f"http://127.0.0.1:{number}/{page}", timeout=30) as answer:
            assert answer.status == 200
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=60)[1].endswith("trimtab: stopped by Ctrl-C\n")
    assert process.returncode == 130
    assert not any(child.is_running() for child in children)


def test_a_signal_while_servers_start_leaves_none(tmp_path: Path) -> None:
    process = _start(INTERRUPTED, str(tmp_path))
    said = process.communicate(timeout=60)[1]
    assert said == "trimtab: stopped by SIGTERM\n"
    assert process.returncode == 143
    with suppress(FileNotFoundError, psutil.NoSuchProcess):  # killed before or after it wrote that
        psutil.Process(int((tmp_path / "pid").read_text())).wait(10)
