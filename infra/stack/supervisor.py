"""Keep a few servers running as children: each started once those it needs are ready, started again
when it dies, stopped in reverse order. None outlives this process, not even one killed with -9.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from trimtab.infra.processes.environment import without_secrets
from trimtab.infra.stack import flow_runs
from trimtab.infra.stack.programs import StackError, as_user
from trimtab.infra.stack.secrets import SECRETS

logger = logging.getLogger(__name__)

START_SECONDS = 180.0
POLL_SECONDS = 0.2
_LOG_LINES = 15
_LOG_BYTES = 16 << 20
_OLD_LOGS = 3
_PORT_SECONDS = 10.0  # what a server that died left open closes by itself
# A server that keeps dying is started again after 1, 2, 4 ... 30 s; one that held a minute at once.
_LONGEST_PAUSE = 30.0
_HEALTHY_SECONDS = 60.0


@dataclass(frozen=True)
class Service:
    """One server: how to start it, when it is ready, and how it wants to be stopped.

    It starts in `folder`, which is made, once the services named in `after` are ready; its `ports`
    on loopback must be free by then. `prepare` runs before every start, `once_ready` after the
    first, `after_stop_signal` after `stop_signal` was sent. Where this process is root, the service
    runs as `user`. Its environment is this process's without secrets, plus the secrets named in
    `secrets`, plus `env`. It inherits the files of `descriptors`. Only its user can read what it
    writes.
    """

    name: str
    command: Sequence[str]
    is_ready: Callable[[], bool]
    after: Sequence[str] = ()
    ports: Sequence[int] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    secrets: Collection[str] = ()
    descriptors: Sequence[int] = ()
    folder: Path | None = None
    prepare: Callable[[], None] = lambda: None
    once_ready: Callable[[], None] = lambda: None
    after_stop_signal: Callable[[], None] = lambda: None
    stop_signal: signal.Signals = signal.SIGTERM
    stop_seconds: float = 10.0
    user: str | None = None


@dataclass
class _Child:
    process: subprocess.Popen[bytes]
    started: float
    deaths: int = 0

    @property
    def restart_at(self) -> float:
        """When to start it again, in seconds of the monotonic clock."""
        return self.started + min(2.0**self.deaths, _LONGEST_PAUSE)


class Supervisor:
    """Runs services for as long as it is open, a context of the main thread."""

    def __init__(self, services: Sequence[Service], logs: Path) -> None:
        self.services, self.logs = list(services), logs
        self._children: dict[str, _Child] = {}
        self._unkept: set[Path] = set()

    def __enter__(self) -> Supervisor:
        """Start all services and wait until they are ready; raises StackError, and none is left."""
        self.logs.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.logs.chmod(0o700)
        ready: set[str] = set()
        try:
            while len(ready) < len(self.services):
                for service in self.services:
                    self._bring_up(service, ready)
                time.sleep(POLL_SECONDS)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Stop all, the last started first."""
        for service in reversed(self.services):
            child = self._children.pop(service.name, None)
            if child is not None:
                _stop(child.process, service)

    def watch(self) -> None:
        """Start again what ends, until interrupted."""
        while True:
            time.sleep(POLL_SECONDS)
            flow_runs.reap_orphans(but={child.process.pid for child in self._children.values()})
            for service in self.services:
                self._revive(service, self._children[service.name])
                self._rotate(self.logs / f"{service.name}.log")

    def _rotate(self, log: Path) -> None:
        """A log that cannot be kept, as on a full disk, goes on growing; that is said once."""
        try:
            rotate(log)
        except OSError as error:
            if log not in self._unkept:
                logger.warning("%s cannot be rotated: %s", log, error)
            self._unkept.add(log)

    def pid(self, name: str) -> int:
        """The process of a service, which leads a process group of its own."""
        return self._children[name].process.pid

    def _revive(self, service: Service, child: _Child) -> None:
        status = child.process.poll()
        if status is None:
            return
        now = time.monotonic()
        if now - child.started > _HEALTHY_SECONDS:
            child.deaths = 0
        elif now < child.restart_at:
            return
        _kill_group(child.process)
        logger.warning("%s ended (%s): starting it again", service.name, status)
        child.started, child.deaths = now, child.deaths + 1
        child.process = self._start(service)

    def _start(self, service: Service) -> subprocess.Popen[bytes]:
        if service.folder is not None:
            service.folder.mkdir(parents=True, exist_ok=True)
            service.folder.chmod(0o700)
        service.prepare()
        for port in service.ports:
            _wait_until_free(port, service.name)
        path = self.logs / f"{service.name}.log"
        path.touch(mode=0o600)
        path.chmod(0o600)
        with path.open("ab") as log:
            return subprocess.Popen(
                [*as_user(service.user), *service.command],
                cwd=service.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # PYTHONSAFEPATH: for the Python processes that a server starts in its turn.
                env={**_environment(service), "PYTHONSAFEPATH": "1", **service.env},
                pass_fds=service.descriptors,
                umask=0o077,
                start_new_session=True,
            )

    def _bring_up(self, service: Service, ready: set[str]) -> None:
        """Start it if what it needs is `ready`, or find that it has come to be so itself."""
        child = self._children.get(service.name)
        if child is None and ready.issuperset(service.after):
            now = time.monotonic()
            self._children[service.name] = _Child(self._start(service), now)
        elif child is not None and service.name not in ready and self._is_up(service, child):
            service.once_ready()
            ready.add(service.name)
            logger.info("%s is ready after %.1f s", service.name, time.monotonic() - child.started)

    def _is_up(self, service: Service, child: _Child) -> bool:
        if service.is_ready():
            return True
        has_ended = child.process.poll() is not None
        if has_ended or time.monotonic() > child.started + START_SECONDS:
            how = "ended" if has_ended else "does not answer"
            log = self.logs / f"{service.name}.log"
            last = "\n".join(log.read_text(errors="replace").splitlines()[-_LOG_LINES:])
            raise StackError(f"{service.name} {how}; {log} ends with:\n{last}")
        return False


def rotate(path: Path, max_bytes: int = _LOG_BYTES, num_old: int = _OLD_LOGS) -> None:
    """Keep a log that has grown beyond `max_bytes` as `<name>.1`, and older ones up to `num_old`.

    It is copied and emptied, as logrotate's `copytruncate` does, as its server has it open and
    appends to it: a line that comes between the two is lost.
    """
    if not path.exists() or path.stat().st_size <= max_bytes:
        return
    old = [path.with_name(f"{path.name}.{number}") for number in range(1, num_old + 1)]
    copy = path.with_name(f".{path.name}")
    try:
        copy.touch(mode=0o600)
        shutil.copyfile(path, copy)
        for newer, older in reversed(list(pairwise(old))):
            if newer.exists():
                newer.replace(older)
        copy.replace(old[0])
    finally:
        copy.unlink(missing_ok=True)
    os.truncate(path, 0)


def _environment(service: Service) -> dict[str, str]:
    """This process's without secrets, but with those of the service."""
    others = SECRETS.keys() - set(service.secrets)  # also those that do not look like secrets
    found = without_secrets(os.environ, but=service.secrets)
    return {name: value for name, value in found.items() if name not in others}


def _wait_until_free(port: int, name: str) -> None:
    deadline = time.monotonic() + _PORT_SECONDS
    while True:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError as error:
                if time.monotonic() > deadline:
                    raise StackError(
                        f"port {port} of 127.0.0.1, which {name} needs, is in use: stop what "
                        "uses it, or choose another with --port"
                    ) from error
            else:
                return
        time.sleep(POLL_SECONDS)


def _stop(process: subprocess.Popen[bytes], service: Service) -> None:
    if process.poll() is None:
        process.send_signal(service.stop_signal)
        service.after_stop_signal()
        try:
            process.wait(service.stop_seconds)
        except subprocess.TimeoutExpired:
            logger.info("%s did not stop in %.0f s: killed", service.name, service.stop_seconds)
    _kill_group(process)


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    """Whatever the service started goes with it."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
