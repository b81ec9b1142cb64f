"""`trimtab ui`: Prefect's and MLflow's own servers on the embedded files, until interrupted."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path

from trimtab.flows.errors import CommandError
from trimtab.infra.settings import Settings
from trimtab.infra.tracking.mlflow_calls import VIEW, follow_move

_STOP_SECONDS = 10.0
_STOPPING = (signal.SIGINT, signal.SIGTERM)


def serve_pages(settings: Settings, host: str, port: int, mlflow_port: int) -> int:
    """Run both servers; 1 where one of them ends, which ends the other too.

    Raises CommandError where a port is taken, and then starts neither.
    """
    for option, wanted in {"--port": port, "--mlflow-port": mlflow_port}.items():
        if not _is_free(host, wanted) or port == mlflow_port:
            raise CommandError(
                f"port {wanted} of {host} is in use: stop what uses it, or choose another with "
                f"{option}"
            )
    if settings.embedded_mlflow:
        try:
            follow_move(settings.home / "mlartifacts")
        except OSError as error:
            raise CommandError(str(error)) from error
    scripts = Path(sys.executable).parent
    commands = {
        "Prefect": [
            *(str(scripts / "prefect"), "server", "start"),
            *("--host", host, "--port", str(port)),
        ],
        "MLflow": [
            *(str(scripts / "mlflow"), "server"),
            *("--host", host, "--port", str(mlflow_port)),
            *("--backend-store-uri", settings.mlflow_uri),
            *("--artifacts-destination", str(settings.home / "mlartifacts")),
        ],
    }
    print(
        f"Prefect: http://{host}:{port}   "
        f"MLflow: http://{host}:{mlflow_port}/#/experiments{VIEW}   Ctrl-C stops both",
        flush=True,
    )
    return _serve(commands)


def _serve(commands: dict[str, list[str]]) -> int:
    """Until one of the servers ends by itself, which ends the other too."""
    running: dict[str, subprocess.Popen[bytes]] = {}
    try:
        # Signals wait until both servers are known, and so are sure to be stopped.
        signal.pthread_sigmask(signal.SIG_BLOCK, _STOPPING)
        for name, command in commands.items():
            # A session of its own: Ctrl-C is for this process, which then stops them.
            # PYTHONSAFEPATH: no file of the current folder stands in for a module of theirs.
            running[name] = subprocess.Popen(
                command,
                env={**os.environ, "PYTHONSAFEPATH": "1"},
                start_new_session=True,
                preexec_fn=partial(signal.pthread_sigmask, signal.SIG_UNBLOCK, _STOPPING),
            )
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPPING)
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
        ended = {name: server.poll() for name, server in running.items()}
        first = next(name for name, status in ended.items() if status is not None)
        print(
            f"trimtab: {first}'s server ended with status {ended[first]}; its messages are above",
            file=sys.stderr,
        )
        return 1
    finally:
        for server in running.values():
            _signal_group(server, signal.SIGTERM)
        for server in running.values():
            with suppress(subprocess.TimeoutExpired):
                server.wait(_STOP_SECONDS)
            _signal_group(server, signal.SIGKILL)
            server.wait()


def _signal_group(server: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(server.pid, number)


def _is_free(host: str, port: int) -> bool:
    """Whether a server may listen there; a name that is none is left to the server to say."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM
        )[0]
    except OSError:
        return True
    with socket.socket(family, kind, protocol) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
        except OSError:
            return False
    return True
