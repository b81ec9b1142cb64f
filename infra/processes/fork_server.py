"""A fork server: it loads heavy modules once, then starts each trainer by forking.

    python -m trimtab.infra.processes.fork_server --preload MODULE

One JSON object a line, on stdin:
    {"op": "run", "id", "entry", "job", "log", "env", "folder"}
                                           fork, import `entry`, call main(job) in that folder
    {"op": "signal", "id", "signal"}       signal the child and its process group
and on stdout:
    {"event": "failed", "error"}           the preload
    {"event": "started", "id", "pid"}
    {"event": "exited", "id", "code", "signal"}
                                           exit code, or the number of the signal

A child has what MODULE imported, of Trimtab's own modules too, unless a file of the package has
changed since: then it reads all of them from disk, so that it runs the code that is there.

Each child leads its own session, writes to its log file and is killed when this process dies. This
process ends, and kills its children's groups, when its stdin closes or its parent is gone. It must
stay single-threaded: a fork copies only the calling thread, and whatever locks the others held.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import importlib
import json
import os
import selectors
import signal
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import trimtab
from trimtab.infra.imports import quick_imports

PACKAGE = Path(trimtab.__file__).parent
_PR_SET_PDEATHSIG = 1
_PARENT_POLL_SECONDS = 1.0
_DEFERRED = (signal.SIGINT, signal.SIGTERM)
# When a file last changed in any way, in ns (of its content, name or rights; no program can set it
# back), and its size in bytes.
State = tuple[int, int]


def file_states(folder: Path) -> dict[str, State]:
    """Each file below a folder, by its path, but for compiled modules; a millisecond for 400.

    Files that are gone by then, and links to nowhere, are left out.
    """
    states = {}
    folders = [str(folder)]
    for place in folders:
        for entry in os.scandir(place):
            if entry.is_dir():
                folders += [entry.path] if entry.name != "__pycache__" else []
                continue
            with contextlib.suppress(FileNotFoundError):
                status = entry.stat()
                states[entry.path] = (status.st_ctime_ns, status.st_size)
    return states


class Server:
    """The loop: requests in, events out, children reaped."""

    def __init__(self, requests: int, events: int) -> None:
        """`requests` and `events` are file descriptors."""
        self._files = file_states(PACKAGE)  # before the preload
        self._requests = requests
        self._events = events
        self._children: dict[int, str] = {}
        self._buffer = b""
        self._wakeup = os.pipe()

    def serve(self) -> None:
        """Serve until stdin closes or the parent is gone; then kill every child."""
        parent = os.getppid()
        for end in self._wakeup:
            os.set_blocking(end, False)
        signal.set_wakeup_fd(self._wakeup[1], warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        selector = selectors.PollSelector()  # has no descriptor that children would inherit
        selector.register(self._requests, selectors.EVENT_READ)
        selector.register(self._wakeup[0], selectors.EVENT_READ)
        try:
            while os.getppid() == parent:
                ready = [key.fd for key, _ in selector.select(_PARENT_POLL_SECONDS)]
                if self._wakeup[0] in ready:
                    os.read(self._wakeup[0], 4096)
                self._reap()
                if self._requests in ready and not self._read_requests():
                    break
        except BrokenPipeError:  # the parent is gone
            return
        finally:
            for pid in self._children:
                _kill_group(pid, signal.SIGKILL)

    def _read_requests(self) -> bool:
        data = os.read(self._requests, 1 << 16)
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        for line in lines:
            self._handle(json.loads(line))
        return bool(data)

    def _handle(self, request: dict[str, Any]) -> None:
        if request["op"] == "signal":
            for pid, job_id in self._children.items():
                if job_id == request["id"]:
                    _kill_group(pid, request["signal"])
            return
        server = os.getpid()
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            descriptors = (self._requests, self._events, *self._wakeup)
            _run_child(request, server, descriptors, self._files)
        self._children[pid] = request["id"]
        self._emit(event="started", id=request["id"], pid=pid)

    def _reap(self) -> None:
        for pid in list(self._children):
            # Look first, reap last: while the zombie holds its id no other process can take it, so
            # what the child left behind in its group can be killed safely.
            status = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if status is None:
                continue
            _kill_group(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            exited = status.si_code == os.CLD_EXITED
            self._emit(
                event="exited",
                id=self._children.pop(pid),
                code=status.si_status if exited else None,
                signal=None if exited else status.si_status,
            )

    def _emit(self, **event: Any) -> None:
        data = json.dumps(event).encode() + b"\n"
        while data:
            data = data[os.write(self._events, data) :]


def _forget_package() -> None:
    """Have the next import of any of its modules read it from disk."""
    for name in [name for name in sys.modules if name.partition(".")[0] == trimtab.__name__]:
        del sys.modules[name]
    importlib.invalidate_caches()


def _run_child(
    request: dict[str, Any], server: int, descriptors: tuple[int, ...], files: Mapping[str, State]
) -> NoReturn:
    """In the forked child: become an ordinary process, run the job, leave by os._exit.

    `files` are those of the package before the server imported it.
    """
    code = 1
    try:
        _detach(request["log"], server, descriptors)
        os.environ.clear()
        os.environ.update(request["env"])
        os.chdir(request["folder"])
        if file_states(PACKAGE) != files:
            _forget_package()
        importlib.import_module(request["entry"]).main(request["job"])
        code = 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        if stop.code is not None and not isinstance(stop.code, int):
            print(stop.code, file=sys.stderr)
    except BaseException:
        # The last frame of a process: whatever it was belongs in the log, and the code says so.
        # In one write, as it may have forked others that say theirs.
        sys.stderr.write(traceback.format_exc())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _detach(log: str, server: int, descriptors: tuple[int, ...]) -> None:
    os.setsid()
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != server:  # it died before the line above took effect
        os._exit(1)
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _DEFERRED)
    for descriptor in descriptors:
        os.close(descriptor)
    null = os.open(os.devnull, os.O_RDONLY)  # above 2: the server keeps 0 to 2 open
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for source, target in ((null, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    os.close(null)
    os.close(output)


def _kill_group(pid: int, number: int) -> None:
    try:
        os.killpg(pid, number)
    except ProcessLookupError:
        # Just forked, its setsid not yet done (then the process itself is there), or all gone.
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def main(argv: list[str] | None = None) -> int:
    """Preload, then serve. Exit code 1 if the preload fails."""
    parser = argparse.ArgumentParser(prog="python -m trimtab.infra.processes.fork_server")
    parser.add_argument("--preload", help="module to import before the first fork")
    options = parser.parse_args(argv)
    # Keep the two protocol streams to ourselves: nothing that is imported may print into them.
    requests, events = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    # The orchestrator decides when to end. Blocked rather than ignored: a signal sent to a child
    # that was forked just now waits until the child has its own handlers.
    signal.pthread_sigmask(signal.SIG_BLOCK, _DEFERRED)
    server = Server(requests, events)
    if options.preload:
        try:
            with quick_imports():  # it also keeps the collector off pages shared with children
                importlib.import_module(options.preload)
        except Exception:
            # Reported to the orchestrator, which raises it where the user sees it.
            server._emit(event="failed", error=traceback.format_exc())
            return 1
    server.serve()
    return 0


if __name__ == "__main__":
    sys.exit(main())
