"""Run a trainer as a child process, so that a crash of it cannot end the orchestrator.

The fork server (trimtab.infra.processes.fork_server), one for this process, has torch loaded and
forks it. The trainer leads its own process group, in which it may fork ranks, dies with the
orchestrator, logs to `<workdir>/trainer.log` and reports its progress through
`<workdir>/metrics.jsonl`, which the caller reads (`LineTail`).
"""

from __future__ import annotations

import atexit
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from trimtab.infra.processes import locks
from trimtab.infra.processes.environment import child_env, trainer_env

ENTRY = "trimtab.models.training.entry"
PRELOAD = "trimtab.models.training.preload"
EXIT_STOPPED = 75  # EX_TEMPFAIL: the trainer was asked to stop, and left a checkpoint
LOG_NAME = "trainer.log"
METRICS_NAME = "metrics.jsonl"
# What a trainer has to write its checkpoint once it is asked to stop. Whatever stops flow runs
# (pods, units, containers, the stack) waits longer: tests/infra/test_manifests.py has them all.
DRAIN_SECONDS = 300.0

_POLL_SECONDS = 0.1
_SECONDS_BETWEEN_REPORTS = 1.0
_LOG_LINES = 60
_TRACEBACK = "Traceback (most recent call last):"
_MAX_BYTES = 1 << 18  # of one reading


class TrainerError(Exception):
    """A trainer failed; the message has its exception, or else how it ended and its last lines."""


class TrainerKilledError(TrainerError):
    """A trainer, or the fork server that it was a child of, was killed; a retry may succeed."""


class TrainerStoppedError(TrainerError):
    """A trainer was asked to stop (SIGTERM) and did; the same stage run again continues."""


def launch(
    job_path: Path,
    *,
    entry: str = ENTRY,
    preload: str | None = PRELOAD,
    num_threads: int = 1,
    on_report: Callable[[], None] = lambda: None,
    env: Mapping[str, str] | None = None,
    drain_seconds: float = DRAIN_SECONDS,
) -> float:
    """Run `entry.main(job_path)` in a child process and wait for it; returns seconds taken.

    The child has this process's environment without secrets, and `env`.

    `on_report` is called once a second, and once more when the child has ended, in this thread: it
    may read what the child has reported. Any exception in this thread (its own, KeyboardInterrupt,
    a cancellation) kills the child. While `stop_trainers_on_sigterm` has a SIGTERM in hand the
    child gets it too, and has `drain_seconds` to save its state.

    Raises TrainerError: as TrainerKilledError where it was killed, as TrainerStoppedError after a
    SIGTERM.
    """
    workdir = job_path.resolve().parent
    log = workdir / LOG_NAME
    log_start = log.stat().st_size if log.exists() else 0
    started = time.monotonic()
    child = {**trainer_env(child_env(_thread_env(num_threads))), **(env or {})}
    with stop_trainers_on_sigterm():
        _stop_if_asked()
        job = running_fork_server(preload).run(entry, job_path.resolve(), log, child)
        try:
            _wait(job, on_report, drain_seconds)
        finally:
            _kill(job)
        _check(job, log, log_start)
    return time.monotonic() - started


def warm_up() -> None:
    """Start the fork server now, so that its imports run while the caller does other things."""
    running_fork_server(PRELOAD)


class _Drain:
    """Whether a SIGTERM is in hand: a plain flag, as a signal handler may not take locks."""

    requested = False
    depth = 0

    def handle(self, _number: int, _frame: FrameType | None) -> None:
        self.requested = True


_drain = _Drain()


@contextmanager
def stop_trainers_on_sigterm() -> Iterator[None]:
    """Meanwhile, SIGTERM asks the running trainers to save and stop instead of ending this process.

    Every `launch` in any thread passes it on and raises TrainerStoppedError once its trainer has
    stopped. When the outermost block is left the signal takes its ordinary effect; launches that
    other threads are still in, or come to, are stopped all the same. `launch` itself enters it; a
    program that launches from worker threads enters it in its main thread (elsewhere it does
    nothing: Python handles signals in the main thread only).
    """
    if threading.current_thread() is not threading.main_thread() or _drain.depth:
        yield
        return
    _drain.requested = False
    previous = signal.signal(signal.SIGTERM, _drain.handle)
    _drain.depth = 1
    try:
        yield
    finally:
        _drain.depth = 0
        signal.signal(signal.SIGTERM, signal.SIG_DFL if previous is None else previous)
        if _drain.requested:
            signal.raise_signal(signal.SIGTERM)


def _stop_if_asked() -> None:
    if _drain.requested:
        raise TrainerStoppedError(
            "a stage was not started: this process was asked to stop (SIGTERM)"
        )


def wait_unless_stopped() -> None:
    """Pause between two tries for a lock; TrainerStoppedError once a SIGTERM has arrived."""
    _stop_if_asked()
    locks.pause()


def _wait(job: Job, on_report: Callable[[], None], drain_seconds: float) -> None:
    deadline: float | None = None
    reported_at = 0.0
    done = False
    while not done:
        done = job.wait(_POLL_SECONDS)
        if done or time.monotonic() - reported_at >= _SECONDS_BETWEEN_REPORTS:
            on_report()
            reported_at = time.monotonic()
        if _drain.requested and deadline is None:
            job.send_signal(signal.SIGTERM)
            deadline = time.monotonic() + drain_seconds
        if deadline is not None and time.monotonic() > deadline:
            job.send_signal(signal.SIGKILL)


def _kill(job: Job) -> None:
    """Leave nothing running that still writes into the work folder."""
    while not job.wait(0):
        job.send_signal(signal.SIGKILL)
        job.wait(1.0)


def _check(job: Job, log: Path, log_start: int) -> None:
    if job.code == 0:
        return
    tail = _last_lines(log, _LOG_LINES, log_start)
    if job.code == 1 and not _drain.requested and (error := final_exception(tail)):
        raise TrainerError(f"{error}\ntraceback: {log}")
    report = f"\nlog: {log}" + (f", its last lines:\n{tail}" if tail else ", empty")
    if job.error is not None:
        raise TrainerKilledError(job.error + report)
    if job.code == EXIT_STOPPED or _drain.requested:
        raise TrainerStoppedError(f"the trainer was asked to stop; {_outcome(job)}" + report)
    if job.signal == signal.SIGKILL:
        raise TrainerKilledError(
            f"the trainer failed: {_outcome(job)}. Trimtab did not send it: most likely the "
            "kernel's out-of-memory killer did. Lower the batch size or the sequence length, run "
            "fewer trainers at once (TRIMTAB_MAX_PARALLEL), or use a machine with more memory"
            + report
        )
    raise TrainerError(f"the trainer failed: {_outcome(job)}" + report)


def _outcome(job: Job) -> str:
    if job.signal is not None:
        return f"killed by {signal.Signals(job.signal).name}"
    return f"exit code {job.code}"


def _thread_env(num_threads: int) -> dict[str, str]:
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    return {**dict.fromkeys(names, str(num_threads)), "TOKENIZERS_PARALLELISM": "false"}


class LineTail:
    """Hands out the whole lines that were added since the last call.

    A last line without its newline is still being written and is left for later. A file that got
    shorter, or that another took the place of, is read from its beginning.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = 0
        self._inode = 0

    def read(self) -> list[str]:
        """New whole lines, at most 256 KiB of them; [] if there is nothing new."""
        try:
            with self.path.open("rb") as stream:
                inode = os.fstat(stream.fileno()).st_ino
                if inode != self._inode or stream.seek(0, 2) < self._offset:
                    self._inode, self._offset = inode, 0
                stream.seek(self._offset)
                data = stream.read(_MAX_BYTES)
        except FileNotFoundError:
            return []
        lines = data[: data.rfind(b"\n") + 1]
        self._offset += len(lines)
        return lines.decode(errors="replace").splitlines()


def _last_lines(path: Path, count: int, start: int = 0) -> str:
    """The last `count` lines written after byte `start`; "" if there are none."""
    try:
        with path.open("rb") as stream:
            end = stream.seek(0, 2)
            stream.seek(max(start, end - (1 << 16)))
            lines = stream.read().decode(errors="replace").splitlines()
    except FileNotFoundError:
        return ""
    return "\n".join(lines[-count:])


def final_exception(log: str) -> str | None:
    """The exception that ended a Python process, by its log: `Error: message`, all its lines.

    None where the log does not end in a traceback. The class comes without its module.
    """
    lines = log.splitlines()
    starts = [place for place, line in enumerate(lines) if line == _TRACEBACK]
    if not starts:
        return None
    after = lines[starts[-1] + 1 :]
    message = next((p for p, line in enumerate(after) if line and not line[0].isspace()), None)
    if message is None:
        return None
    kind, colon, rest = after[message].partition(":")
    return "\n".join([kind.rpartition(".")[2] + colon + rest, *after[message + 1 :]])


class Job:
    """A child of the server. Exactly one of `code`, `signal`, `error` is set once it is done."""

    def __init__(self, server: ForkServer, job_id: str) -> None:
        self._server = server
        self.id = job_id
        self.pid: int | None = None
        self.code: int | None = None
        self.signal: int | None = None
        self.error: str | None = None
        self._done = threading.Event()

    def wait(self, timeout: float) -> bool:
        """Wait up to `timeout` seconds; True once the child has exited."""
        return self._done.wait(timeout)

    def send_signal(self, number: int) -> None:
        """Signal the child's process group; nothing happens if it is gone already."""
        if not self._done.is_set():
            self._server.request({"op": "signal", "id": self.id, "signal": int(number)})

    def finish(self, code: int | None, number: int | None, error: str | None = None) -> None:
        """Called by the server's reader, once."""
        self.code, self.signal, self.error = code, number, error
        self._done.set()


class ForkServer:
    """Starts `trimtab.infra.processes.fork_server` and dispatches its events. Thread-safe."""

    def __init__(self, preload: str | None) -> None:
        """Returns at once: requests wait in the pipe while the server loads `preload`."""
        arguments = [sys.executable, "-P", "-m", "trimtab.infra.processes.fork_server"]
        if preload:
            arguments += ["--preload", preload]
        self._process = subprocess.Popen(
            arguments,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            env=trainer_env(child_env({})),
            start_new_session=True,  # Ctrl-C in a terminal is for the orchestrator
        )
        self._lock = threading.Lock()
        self._jobs: dict[str, Job] = {}
        self._numbers = itertools.count(1)
        self._failure = ""
        self._closed = False
        self.owner = os.getpid()
        threading.Thread(target=self._read_events, name="fork-server", daemon=True).start()

    @property
    def alive(self) -> bool:
        """Whether it can take a job."""
        return not self._closed and self._process.poll() is None

    @property
    def pid(self) -> int:
        """Process id of the server."""
        return self._process.pid

    def run(self, entry: str, job_path: Path, log: Path, env: Mapping[str, str]) -> Job:
        """Fork, import `entry`, call its `main(job_path)`; TrainerKilledError without a server."""
        job = Job(self, str(next(self._numbers)))
        with self._lock:
            if self._closed:
                raise TrainerKilledError(self._reason())
            self._jobs[job.id] = job
        request = {"op": "run", "id": job.id, "entry": entry, "job": str(job_path)}
        self.request({**request, "log": str(log), "env": dict(env), "folder": os.getcwd()})
        return job

    def request(self, message: dict[str, Any]) -> None:
        """Send one line; a server that is gone has failed its jobs already."""
        data = json.dumps(message).encode() + b"\n"
        stdin = self._process.stdin
        assert stdin is not None
        with self._lock:
            try:
                while data:
                    data = data[stdin.write(data) or 0 :]
            except (BrokenPipeError, ValueError):  # the reader thread reports why
                return

    def close(self) -> None:
        """Close the server's stdin: it kills its children and ends."""
        stdin = self._process.stdin
        assert stdin is not None
        with self._lock:
            stdin.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:  # still inside a long import of the preload
            self._process.kill()
            self._process.wait()

    def _read_events(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            event = json.loads(line)
            if event["event"] == "failed":
                self._failure = event["error"]
            elif event["event"] == "started":
                self._jobs[event["id"]].pid = event["pid"]
            elif event["event"] == "exited":
                with self._lock:
                    job = self._jobs.pop(event["id"])
                job.finish(event["code"], event["signal"])
        self._process.wait()
        with self._lock:
            self._closed = True
            orphans = list(self._jobs.values())
            self._jobs.clear()
        for job in orphans:
            job.finish(None, None, self._reason())

    def _reason(self) -> str:
        if self._failure:
            return f"the fork server could not load its modules:\n{self._failure}"
        return f"the fork server (process {self.pid}) is gone, exit {self._process.returncode}"


_servers: dict[str | None, ForkServer] = {}
_servers_lock = threading.Lock()


def running_fork_server(preload: str | None) -> ForkServer:
    """This process's server for a preload module, started (again) where there is none alive."""
    with _servers_lock:
        server = _servers.get(preload)
        # After a fork the parent's server is still in this table, but it is not ours to use.
        if server is None or not server.alive or server.owner != os.getpid():
            server = _servers[preload] = ForkServer(preload)
        return server


def close_servers() -> None:
    """End all servers of this process, and with them every trainer they run."""
    with _servers_lock:
        for server in _servers.values():
            if server.owner == os.getpid():
                server.close()
        _servers.clear()


atexit.register(close_servers)
