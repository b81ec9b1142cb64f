r"""Dask against Ray under one flow: ten stages that take a GPU, on two nodes with one each.

    pip install -e '.[dask]' prefect-ray==0.6.0 -c constraints.txt
    unshare --net --map-root-user bash -c \
        'ip link set lo up && python -m tests.tools.dask_against_ray'

Ray listens on all interfaces of its host whatever its options say; `unshare` isolates it. A stage
sleeps, after the imports that Trimtab's stages need. Prints a table, in seconds and MB.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any

import psutil

from tests.ports import free_ports
from trimtab.infra.prefect.server import local_prefect_server

STAGES, NODES, SECONDS = 10, 2, 3.0
COLUMNS = ("engine", "cluster up", "idle, MB", "stages", "beyond ideal", "at once", "node killed")


@dataclass(frozen=True)
class Engine:
    """How a cluster is started and reached, and how a task asks for a GPU."""

    name: str
    head: list[str]
    node: list[str]
    wait_for_nodes: Callable[[], None]
    runner: Callable[[], Any]
    gpu: Callable[[], AbstractContextManager[Any]]


def dask_engine() -> Engine:
    import dask
    from distributed import Client
    from prefect_dask import DaskTaskRunner

    port, program = free_ports(1), f"{sys.prefix}/bin/dask"
    address, local = f"tcp://127.0.0.1:{port}", ["--host", "127.0.0.1", "--no-dashboard"]

    def wait_for_nodes() -> None:
        with Client(address) as client:
            client.wait_for_workers(NODES)

    return Engine(
        "Dask",
        [program, "scheduler", "--port", str(port), "--no-show", *local],
        [program, "worker", address, "--nthreads", "1", "--resources", "GPU=1", *local],
        wait_for_nodes,
        lambda: DaskTaskRunner(address=address),
        lambda: dask.annotate(resources={"GPU": 1}),
    )


def ray_engine() -> Engine:
    import ray
    from prefect_ray import RayTaskRunner
    from prefect_ray.context import remote_options

    first = free_ports(2)
    address = f"ray://127.0.0.1:{first + 1}"
    start = [f"{sys.prefix}/bin/ray", "start", "--block", "--node-ip-address", "127.0.0.1"]
    ports = ["--port", str(first), "--ray-client-server-port", str(first + 1)]

    def wait_for_nodes() -> None:
        with ray.init(address, log_to_driver=False):
            while ray.cluster_resources().get("GPU", 0) < NODES:
                time.sleep(0.1)

    return Engine(
        "Ray",
        [*start, "--head", "--num-cpus", "0", "--include-dashboard", "false", *ports],
        [*start, "--address", f"127.0.0.1:{first}", "--num-cpus", "1", "--num-gpus", "1"],
        wait_for_nodes,
        lambda: RayTaskRunner(address=address, init_kwargs={"log_to_driver": False}),
        lambda: remote_options(num_gpus=1, num_cpus=0),
    )


def main() -> None:
    """Both engines, each undisturbed and with a node killed."""
    os.environ |= {
        "PREFECT_LOGGING_LEVEL": "ERROR",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DASK_DISTRIBUTED__SCHEDULER__UNKNOWN_TASK_DURATION": "1h",
        "RAY_AUTH_MODE": "disabled",  # nobody else is in this network
    }
    with tempfile.TemporaryDirectory() as home:
        os.environ["PREFECT_HOME"] = home
        with local_prefect_server() as wait_until_ready:
            wait_until_ready()
            print("| " + " | ".join(COLUMNS) + " |\n|" + "---|" * len(COLUMNS))
            for engine in (dask_engine(), ray_engine()):
                figures = " | ".join(measured(engine, Path(home)))
                print(f"| {engine.name} | {figures} |", flush=True)


def measured(engine: Engine, folder: Path) -> Iterator[str]:
    """The columns of an engine's row."""
    began = time.monotonic()
    with cluster(engine, folder) as nodes:
        engine.wait_for_nodes()
        yield f"{time.monotonic() - began:.1f}"
        yield f"{sum(process.memory_full_info().uss for process in descendants()) / 1e6:.0f}"
        seconds, starts = run(engine, folder / f"{engine.name}.jsonl")
        yield f"{seconds:.1f}"
        yield f"{seconds - STAGES * SECONDS / NODES:.1f}"
        yield str(max(sum(0 <= t - start < SECONDS for start in starts) for t in starts))
        seconds, _ = run(engine, folder / f"{engine.name}-killed.jsonl", victim=nodes[0])
        yield f"{seconds:.1f}"


@contextmanager
def cluster(engine: Engine, folder: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    """A head and its nodes, until the end of the block."""
    with (folder / f"{engine.name}.log").open("wb") as log:

        def started(command: list[str]) -> subprocess.Popen[bytes]:
            return subprocess.Popen(command, stdout=log, stderr=log)

        processes = [started(engine.head)]
        time.sleep(5)  # a node gives up where no head answers yet; in both engines' figures
        processes += [started(engine.node) for _ in range(NODES)]
        try:
            yield processes[1:]
        finally:
            for process in processes:
                kill(process)


def descendants() -> list[psutil.Process]:
    """What the engine runs: all children but Prefect's server."""
    children = psutil.Process().children(recursive=True)
    return [
        process for process in children if "trimtab.infra.prefect.server" not in process.cmdline()
    ]


def kill(process: subprocess.Popen[bytes]) -> None:
    """A host that goes down: all of its processes at once."""
    with suppress(psutil.NoSuchProcess):
        parent = psutil.Process(process.pid)
        for member in [parent, *parent.children(recursive=True)]:
            with suppress(psutil.NoSuchProcess):
                member.kill()
    process.wait()


def run(
    engine: Engine, notes: Path, victim: subprocess.Popen[bytes] | None = None
) -> tuple[float, list[float]]:
    """Seconds of a flow, and when its stages began. `victim` dies when four have begun."""
    notes.touch()
    if victim:
        Thread(target=kill_after, args=(4, notes, victim)).start()
    began = time.monotonic()
    flow_of_stages(engine)(str(notes))
    return time.monotonic() - began, [float(line) for line in notes.read_text().splitlines()]


def flow_of_stages(engine: Engine) -> Callable[[str], None]:
    """A flow whose stages note when they begin."""
    from prefect import flow, task

    @task(name="stage")
    def stage(notes: str) -> None:
        import trimtab.tasks.context  # noqa: F401

        with open(notes, "a") as file:
            file.write(f"{time.time()}\n")
        time.sleep(SECONDS)

    @flow(name=f"stages on {engine.name}", task_runner=engine.runner())
    def stages(notes: str) -> None:
        with engine.gpu():
            futures = [stage.submit(notes) for _ in range(STAGES)]
        for future in futures:
            future.result()

    return stages


def kill_after(count: int, notes: Path, victim: subprocess.Popen[bytes]) -> None:
    """Kill a node a second after so many stages have begun."""
    while len(notes.read_text().splitlines()) < count:
        time.sleep(0.05)
    time.sleep(1)
    kill(victim)


if __name__ == "__main__":
    main()
