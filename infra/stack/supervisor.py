"""Keep a few servers running as children: each started once those it needs are ready, started again
when it dies, stopped in reverse order. None outlives this process, not even one killed with -9.

Clients send their logins to whoever listens at a server's address. So the supervisor itself opens
the addresses, before it starts anything, and keeps them open over deaths and restarts: a server
inherits its listening socket. Where a server can only open a port itself, the supervisor checks
that the server's process listens there.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import shutil
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import psutil

from trimtab.infra.processes.environment import drop_secrets
from trimtab.infra.processes.launch import DRAIN_SECONDS
from trimtab.infra.stack.programs import SECRETS, StackError, run_as_user

logger = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"
START_SECONDS = 180.0
POLL_SECONDS = 0.2
_LOG_LINES = 15
_LOG_BYTES = 16 << 20
_OLD_LOGS = 3
_PORT_SECONDS = 3.0  # what servers of a stack that was killed left open closes by itself
_BACKLOG = 2048
# A server that keeps dying is started again after 1, 2, 4 ... 30 s; one that held a minute at once.
_LONGEST_PAUSE = 30.0
_HEALTHY_SECONDS = 60.0
_PR_SET_CHILD_SUBREAPER = 36
# Of a flow run: that of its trainers, then what its own end takes.
WAIT_SECONDS = DRAIN_SECONDS + 30
# Prefect prepares a flow run's workspace as the first of these, which becomes the second.
_MODULES = {"prefect.runner._workspace_supervisor", "prefect.engine"}


@dataclass(frozen=True)
class Service:
    """One server: how to start it, when it is ready, and how it wants to be stopped.

    It starts in `folder`, which is made, once the services named in `after` are ready. Its
    descriptor 0 is a socket that listens at `address`, a host and a port; `ports` of loopback it
    opens itself. `is_ready` sends no secret. `prepare` runs before every start, `once_ready` after
    the first, `after_stop_signal` after `stop_signal` was sent. Where this process is root, the
    service runs as `user`. Its environment is this process's without secrets, plus the secrets
    named in `secrets`, plus `env`. It inherits the files of `descriptors`. Only its user can read
    what it writes.
    """

    name: str
    command: Sequence[str]
    is_ready: Callable[[], bool]
    after: Sequence[str] = ()
    address: tuple[str, int] | None = None
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
    is_dead: bool = False

    @property
    def restart_at(self) -> float:
        """When to start it again, in seconds of the monotonic clock."""
        return self.started + min(2.0**self.deaths, _LONGEST_PAUSE)


class Supervisor:
    """Runs services for as long as it is open, a context of the main thread."""

    def __init__(self, services: Sequence[Service], logs: Path) -> None:
        self.services, self.logs = list(services), logs
        self._sockets: dict[str, socket.socket] = {}
        self._children: dict[str, _Child] = {}
        self._unkept: set[Path] = set()

    def __enter__(self) -> Supervisor:
        """Start all services and wait until they are ready; raises StackError, and none is left."""
        self.logs.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.logs.chmod(0o700)
        ready: set[str] = set()
        try:
            self._listen()
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
            if service.name in self._sockets:
                self._sockets.pop(service.name).close()

    def watch(self) -> None:
        """Start again what ends, until interrupted."""
        while True:
            time.sleep(POLL_SECONDS)
            reap_orphans(but={child.process.pid for child in self._children.values()})
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

    def _listen(self) -> None:
        """Open all addresses; StackError where one is taken, or a port that a server will open."""
        for service in self.services:
            if service.address is not None:
                self._sockets[service.name] = _open(service, service.address, _PORT_SECONDS)
            for port in service.ports:
                _open(service, (LOOPBACK, port), _PORT_SECONDS).close()

    def _revive(self, service: Service, child: _Child) -> None:
        """Start it again if it has ended; what forbids that now, such as a full disk, may pass."""
        status, now = child.process.poll(), time.monotonic()
        if status is None:
            return
        if not child.is_dead:
            _kill_group(child.process)
            child.is_dead = True
            child.deaths = 0 if now - child.started > _HEALTHY_SECONDS else child.deaths
        if now < child.restart_at:
            return
        logger.warning("%s ended (%s): starting it again", service.name, status)
        child.started, child.deaths = now, child.deaths + 1
        try:
            child.process, child.is_dead = self._start(service), False
        except (OSError, StackError) as error:
            logger.warning(
                "%s cannot be started: %s. The other servers go on; next try in %.0f s",
                *(service.name, error, child.restart_at - now),
            )

    def _start(self, service: Service) -> subprocess.Popen[bytes]:
        if service.folder is not None:
            service.folder.mkdir(parents=True, exist_ok=True)
            service.folder.chmod(0o700)
        service.prepare()
        for port in service.ports:
            _open(service, (LOOPBACK, port)).close()
        path = self.logs / f"{service.name}.log"
        path.touch(mode=0o600)
        path.chmod(0o600)
        listener = self._sockets.get(service.name)
        with path.open("ab") as log:
            return subprocess.Popen(
                [*run_as_user(service.user), *service.command],
                cwd=service.folder,
                stdin=listener.fileno() if listener else subprocess.DEVNULL,
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
        if _listens(child.process.pid, service.ports) and service.is_ready():
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

    Its server has it open, so that it is copied and emptied, as by logrotate's `copytruncate`. What
    is written during the copy is copied too, last of all: a line is lost only if it comes in the
    microseconds between that and the emptying.
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
    with path.open("rb") as log, old[0].open("ab") as kept:
        log.seek(kept.tell())
        shutil.copyfileobj(log, kept)
        kept.flush()
        os.truncate(path, 0)


def _environment(service: Service) -> dict[str, str]:
    """This process's without secrets, but with those of the service."""
    others = SECRETS.keys() - set(service.secrets)  # also those that do not look like secrets
    environment = drop_secrets(os.environ, but=service.secrets)
    return {name: value for name, value in environment.items() if name not in others}


def _open(service: Service, address: tuple[str, int], seconds: float = 0.0) -> socket.socket:
    """A socket that listens at the address; StackError where that is not free within `seconds`."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            family = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)[0][0]
            listener = socket.create_server(address, family=family, backlog=_BACKLOG)
        except OSError as error:
            if time.monotonic() >= deadline:
                reason = "is in use" if error.errno == errno.EADDRINUSE else f"fails: {error}"
                raise StackError(
                    f"port {address[1]} of {address[0]}, which {service.name} needs, {reason}: "
                    "stop what uses it, or choose another"
                ) from error
            time.sleep(POLL_SECONDS)
        else:
            # Connections inherit it (Linux). asyncio, which takes the socket for a Unix one as
            # uvicorn says so, does not set it.
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return listener


def _listens(pid: int, ports: Sequence[int]) -> bool:
    """Whether this process, or one below it, and so nobody else, has these ports of loopback."""
    if not ports:
        return True
    with suppress(psutil.Error):
        process = psutil.Process(pid)
        addresses = {
            tuple(connection.laddr)
            for owner in [process, *process.children(recursive=True)]
            for connection in owner.net_connections("tcp")
            if connection.status == psutil.CONN_LISTEN
        }
        return addresses >= {(LOOPBACK, port) for port in ports}
    return False


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


def answers(address: str, refusal: int | None = None) -> bool:
    """Whether a server answers at an HTTP address: with success, or with the status `refusal`."""
    try:
        with urllib.request.urlopen(address, timeout=5):
            return True
    except OSError as error:
        return isinstance(error, urllib.error.HTTPError) and error.code == refusal


# Flow runs are processes of their own: each outlives the worker that started it, not the stack.


def adopt_orphans() -> None:
    """Become the parent of flow runs whose worker dies."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def reap_orphans(but: set[int]) -> None:
    """Reap adopted processes that have ended; `but` are children that the supervisor waits for."""
    while True:
        try:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if ended is None or ended.si_pid in but:
            return
        os.waitpid(ended.si_pid, 0)


def stop_flow_runs() -> None:
    """Have all flow runs stop at a checkpoint; they are resumed when the stack is up again."""
    runs = list(filter(_is_flow_run, psutil.Process().children(recursive=True)))
    for run in runs:
        with suppress(psutil.NoSuchProcess):
            run.terminate()
    _, left = psutil.wait_procs(runs, timeout=WAIT_SECONDS)
    for run in left:
        with suppress(psutil.NoSuchProcess):
            run.kill()


def _is_flow_run(process: psutil.Process) -> bool:
    try:
        return not _MODULES.isdisjoint(process.cmdline())
    except psutil.Error:
        return False
