"""A real S3 server (SeaweedFS), a store over each place, an artifact for it, toy trainers."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.ports import free_ports
from trimtab.infra.processes.launch import close_servers
from trimtab.infra.stack.seaweedfs import BUCKET, NUM_INNER_PORTS, seaweedfs
from trimtab.infra.stack.supervisor import Supervisor
from trimtab.infra.store.manifest import Manifest, Provenance
from trimtab.infra.store.store import Store, open_store

KEY = "k" * 64
_ACCESS_KEY, _SECRET = "test-key", "test-secret"


@dataclass(frozen=True)
class S3Server:
    """Where the server listens, and its one bucket (SeaweedFS reserves volumes for each)."""

    endpoint: str
    bucket: str


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """The stack's SeaweedFS on free ports; its keys are put into this process's environment."""
    folder = tmp_path_factory.mktemp("weed")
    port = free_ports(1 + NUM_INNER_PORTS)
    endpoint = f"http://127.0.0.1:{port}"
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
        service = seaweedfs(folder / "data", port, port + 1)
        with Supervisor([service], folder / "logs"):
            yield S3Server(endpoint, BUCKET)
    for number in range(port, port + 1 + NUM_INNER_PORTS):  # whatever it is told of sockets
        for path in Path("/tmp").glob(f"seaweedfs-*-{number}.sock"):
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
    provenance = Provenance({"lr": 0.1}, parents, {"python": "3"}, 1.5, {"loss": 0.5})
    return store.publish("toy", key, folder, provenance)


@pytest.fixture(scope="module")
def toys() -> Iterator[None]:
    """The toy modules can be imported by the warm servers and their children."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parent))
        close_servers()
        yield
        close_servers()
