"""The orchestrator's side of the fork server: one server a process, jobs on it."""

from __future__ import annotations

import atexit
import itertools
import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import trimtab
from trimtab.infra.processes.environment import trainer_env

ROOT = Path(trimtab.__file__).parents[1]


class ServerGoneError(Exception):
    """The fork server could not start, or died with the job; the message has the reason."""


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
        """Fork, import `entry`, call its `main(job_path)`; ServerGoneError where it cannot."""
        job = Job(self, str(next(self._numbers)))
        with self._lock:
            if self._closed:
                raise ServerGoneError(self._reason())
            self._jobs[job.id] = job
        request = {"op": "run", "id": job.id, "entry": entry, "job": str(job_path)}
        self.request({**request, "log": str(log), "env": dict(env)})
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


def child_env(extra: Mapping[str, str]) -> dict[str, str]:
    """This process's environment, with the project importable by name from any folder."""
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    # PYTHONSAFEPATH: a file called datasets.py in the current folder must shadow nothing.
    safe = {"PYTHONPATH": os.pathsep.join(paths), "PYTHONSAFEPATH": "1"}
    # How long a thread spins for the others before it sleeps. SFT of the default recipe, two
    # threads on two cores: 8.6 steps/s without spinning, 16.8 with this, 14.5 with libgomp's own
    # 300,000, and 11.9 with one thread; beside a busy neighbour 10.7 without, 3.4 with this.
    waiting = {"GOMP_SPINCOUNT": "10000"}
    return {**waiting, **os.environ, **safe, **extra}


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
