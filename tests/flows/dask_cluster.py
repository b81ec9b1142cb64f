"""A Dask cluster on loopback whose nodes share nothing but the stack."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.flows.running_stack import Running
from tests.ports import free_ports
from trimtab.infra.stack.programs import program


@dataclass(frozen=True)
class Node:
    """A host of the cluster: a worker for tasks of both kinds, its nanny and trainers."""

    home: Path
    process: subprocess.Popen[bytes]

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    @property
    def stages(self) -> set[str]:
        """The stages that have begun here."""
        return {path.stem.rpartition("-")[0] for path in self.home.glob("work/.locks/*-*.lock")}


@contextmanager
def dask_cluster(running: Running, number: int) -> Iterator[tuple[dict[str, str], list[Node]]]:
    """The environment that has a flow use it, and nodes with a GPU each. All of it speaks TLS."""
    port = free_ports(1)
    address = f"tls://127.0.0.1:{port}"
    folder = running.stack.folder / "dask"
    folder.mkdir()
    encrypted = _encrypted(folder)
    local = ("--host", "127.0.0.1", "--no-dashboard")

    def start(name: str, *command: str) -> subprocess.Popen[bytes]:
        with (folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                [program("dask"), *command, *local],
                env={
                    **running.environment,
                    **encrypted,
                    "TRIMTAB_HOME": str(folder / name),
                    "DASK_DISTRIBUTED__SCHEDULER__UNKNOWN_TASK_DURATION": "1h",
                },
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    scheduler = start(
        "scheduler", "scheduler", "--protocol", "tls", "--port", str(port), "--no-show"
    )
    nodes = []
    try:
        for index in range(number):
            name = f"node-{index}"
            has = ("--nworkers", "1", "--nthreads", "2", "--resources", "GPU=1 CPU=1")
            nodes.append(Node(folder / name, start(name, "worker", address, *has)))
        _wait_for(folder / "scheduler.log", "Register worker", number)
        yield {**encrypted, "TRIMTAB_DASK": address}, nodes
    finally:
        for node in nodes:
            node.kill()
        scheduler.kill()
        scheduler.wait()


def _encrypted(folder: Path) -> dict[str, str]:
    """Dask's settings for a certificate of the cluster's own, as docs/how-to/scale.md makes it."""
    key, certificate = str(folder / "dask.key"), str(folder / "dask.crt")
    subject = ("-x509", "-newkey", "rsa:2048", "-nodes", "-days", "365", "-subj", "/CN=trimtab")
    command = ["openssl", "req", *subject, "-keyout", key, "-out", certificate]
    subprocess.run(command, check=True, capture_output=True)
    tls = "DASK_DISTRIBUTED__COMM__TLS__"
    parts = [f"{tls}{part}__" for part in ("SCHEDULER", "WORKER", "CLIENT")]
    return {
        "DASK_DISTRIBUTED__COMM__REQUIRE_ENCRYPTION": "true",
        f"{tls}CA_FILE": certificate,
        **{f"{part}CERT": certificate for part in parts},
        **{f"{part}KEY": key for part in parts},
    }


def _wait_for(log: Path, words: str, times: int) -> None:
    deadline = time.monotonic() + 60
    while log.read_text().count(words) < times:
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.1)
