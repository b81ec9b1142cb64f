"""The command that people use, with a home of its own, as a process, or many of them in one."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Timer

# Prefect's database with its tables and no rows, which take a server three seconds to make. Set by
# the fixture `tables`.
TABLES: list[Path] = []
# The process that runs commands, inside `one_process`.
ONE_PROCESS: list[subprocess.Popen[str]] = []
# Machines differ threefold in speed; on a fast one the longest takes two minutes and a half.
SECONDS = 1200


def give_tables(folder: Path) -> None:
    """Put a copy of TABLES into a PREFECT_HOME that has no database yet."""
    if TABLES and not (folder / "prefect.db").exists():
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(TABLES[0], folder / "prefect.db")


def start(home: Path, *arguments: str, module: str = "trimtab") -> subprocess.Popen[str]:
    """Start the command; its output is one text."""
    give_tables(home / "prefect")
    return subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        env={**os.environ, "TRIMTAB_HOME": str(home)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


@contextmanager
def one_process() -> Iterator[None]:
    """Inside, `trimtab` runs its commands one after another in one process, which saves seconds.

    All of them have the PREFECT_HOME and PREFECT_API_URL of the first.
    """
    ONE_PROCESS.append(
        subprocess.Popen(
            [sys.executable, "-m", "tests.flows.command_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
    )
    try:
        yield
    finally:
        process = ONE_PROCESS.pop()
        _output(process)
    assert process.returncode == 0


def trimtab(home: Path, *arguments: str, status: int = 0) -> str:
    """Run the command to its end, which must have this exit status; returns its output.

    A command that starts a Prefect server is a process of its own: Prefect is loaded after that.
    """
    if ONE_PROCESS and "PREFECT_API_URL" in os.environ:
        ended_with, output = _run_in(ONE_PROCESS[-1], home, arguments)
    else:
        process = start(home, *arguments)
        output = _output(process)
        ended_with = process.returncode
    assert ended_with == status, output
    return output


def _run_in(
    process: subprocess.Popen[str], home: Path, arguments: tuple[str, ...]
) -> tuple[int, str]:
    """The exit status and output of a command that a process of `one_process` runs."""
    assert process.stdin is not None and process.stdout is not None
    with tempfile.NamedTemporaryFile("r") as output:
        command = {
            "arguments": arguments,
            "environment": {**os.environ, "TRIMTAB_HOME": str(home)},
            "output": output.name,
        }
        watch = Timer(SECONDS, os.killpg, (process.pid, signal.SIGKILL))
        watch.start()
        try:
            print(json.dumps(command), file=process.stdin, flush=True)
            answer = process.stdout.readline()
        finally:
            watch.cancel()
        text = output.read()
    assert answer, text
    return int(answer), text


def _output(process: subprocess.Popen[str]) -> str:
    """What a command printed. One that takes too long is killed, and leaves nothing behind."""
    try:
        return process.communicate(timeout=SECONDS)[0]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # it leads a session; its trainers die with it
        raise


def ended(home: Path, number: signal.Signals, stage: str, step: int, *arguments: str) -> str:
    """Run the command until a trainer of the stage has done so many steps: then it gets the signal.

    Returns its output.
    """
    when = (number.name, stage, str(step))
    process = start(home, *when, *arguments, module="tests.flows.signalled_command")
    output = _output(process)
    # Nobody answers to SIGKILL; to SIGTERM the command does, as a shell would say it.
    status = -number if number == signal.SIGKILL else 128 + number
    assert process.returncode == status, output
    return output


def digests(home: Path) -> dict[str, str]:
    """Key -> digest of every artifact but reports, which hold durations."""
    manifests = [json.loads(p.read_text()) for p in home.rglob("store/artifacts/**/manifest.json")]
    return {m["key"]: m["digest"] for m in manifests if m["stage"] != "report"}


def from_store(output: str) -> tuple[int, int]:
    """How many stages a run found in the store, of how many."""
    counts = re.search(r"(\d+) of (\d+) stages before the report were found in the store", output)
    assert counts, output
    return int(counts[1]), int(counts[2])
