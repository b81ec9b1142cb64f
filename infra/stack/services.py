"""The servers of the stack: each on loopback, each with authentication on, each with the
secrets that it needs and no others."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx

from trimtab.infra.access import Access
from trimtab.infra.processes.environment import HUB_TOKENS
from trimtab.infra.processes.gpus import gpus_of_host
from trimtab.infra.processes.locks import try_folder_lock
from trimtab.infra.stack.postgres import database_url, postgres
from trimtab.infra.stack.programs import StackError, output_of, program, require_secrets
from trimtab.infra.stack.seaweedfs import BUCKET, seaweedfs
from trimtab.infra.stack.supervisor import (
    LOOPBACK,
    POLL_SECONDS,
    START_SECONDS,
    Service,
    Supervisor,
    answers,
    stop_flow_runs,
)

POOL = "trimtab"
# It serves at the socket that it inherits. `prefect server start` and `mlflow server` would put
# another process between, which a kill leaves behind.
_UVICORN = [sys.executable, "-P", "-m", "uvicorn", "--factory", "--fd", "0"]
_OF_S3 = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
_OF_MLFLOW = ("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD")
_OF_RUNS = (*_OF_S3, *_OF_MLFLOW, "PREFECT_API_AUTH_STRING")


@dataclass(frozen=True)
class Ports:
    """Where on loopback the servers listen; SeaweedFS takes seven from `weed` on for itself."""

    prefect: int = 4200
    mlflow: int = 5000
    s3: int = 8333
    weed: int = 18081


def _wait_for(servers: Sequence[Service]) -> None:
    """Wait until servers that another process starts are ready; StackError after three minutes."""
    end = time.monotonic() + START_SECONDS
    for server in servers:
        while not server.is_ready():
            if time.monotonic() > end:
                raise StackError(f"the stack is up, but its {server.name} does not answer")
            time.sleep(POLL_SECONDS)


def default_limit() -> int:
    """Flow runs at once: two for each core, as each waits now and then, or one for each GPU."""
    return max(2 * len(os.sched_getaffinity(0)), len(gpus_of_host(os.environ)))


@dataclass(frozen=True)
class Stack:
    """A stack whose data lie below one folder. limit: flow runs at once, of all its workers."""

    folder: Path
    ports: Ports = Ports()
    limit: int = field(default_factory=default_limit)

    @property
    def client_environment(self) -> dict[str, str]:
        """Variables that a client needs besides the secrets."""
        return {
            "PREFECT_API_URL": f"http://{LOOPBACK}:{self.ports.prefect}/api",
            "MLFLOW_TRACKING_URI": f"http://{LOOPBACK}:{self.ports.mlflow}",
            "TRIMTAB_STORE": f"s3://{BUCKET}/artifacts",
            "AWS_ENDPOINT_URL_S3": f"http://{LOOPBACK}:{self.ports.s3}",
            "AWS_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    @property
    def databases(self) -> Path:
        """The folder of PostgreSQL's data and socket."""
        return self.folder / "postgres"

    def services(self) -> list[Service]:
        """All, the last to be stopped first; StackError names the secrets that are not set."""
        require_secrets()
        return [
            postgres(self.databases),
            seaweedfs(self.folder / "seaweedfs", self.ports.s3, self.ports.weed),
            self._mlflow(),
            self._prefect(),
            self._reconciler(),
            self.worker("worker-1"),
        ]

    @contextmanager
    def storage(self, *, is_new: bool = False) -> Iterator[None]:
        """PostgreSQL and S3: those of the stack if it is up, or else started for as long.

        StackError where the folder is no stack's; one that `is_new` is made.
        """
        servers = self.services()[:2]
        if not is_new and not all((self.folder / server.name).is_dir() for server in servers):
            raise StackError(f"{self.folder} is no stack's folder")
        with try_folder_lock(self.folder) as is_down:
            if is_down:
                with Supervisor(servers, self.folder / "logs"):
                    yield
            else:
                _wait_for(servers)
                yield

    def upgrade(self) -> None:
        """Bring MLflow's database to the installed version; StackError with what it says if not.

        Prefect and MLflow's users do so themselves when they start, MLflow refuses to.
        """
        with self.storage():
            command = [program("mlflow"), "db", "upgrade"]
            output_of([*command, database_url(self.databases, "mlflow")])

    def worker(self, name: str) -> Service:
        """A worker of the pool `trimtab`, which runs each flow run as a process of its own.

        Prefect gives each of its processes another name, by which the reconciler knows which one
        took a run.
        """
        folder = self.folder / name
        return Service(
            name,
            [program("prefect"), *f"worker start --pool {POOL} --type process".split()],
            is_ready=lambda: self._has_worker() and self._has_limit(),
            after=["prefect", "mlflow", "seaweedfs"],
            env={
                **self.client_environment,
                "PREFECT_HOME": str(folder / "prefect"),
                # The pool's command is `python`, and this one has Trimtab.
                "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
                "PREFECT_WORKER_QUERY_SECONDS": "1",
                # A run whose heartbeats stay away is taken for dead (infra/prefect/reconciler.py).
                "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30",
                "PREFECT_LOGGING_EXTRA_LOGGERS": "trimtab",
                "TRIMTAB_HOME": str(folder),
                "TOKENIZERS_PARALLELISM": "false",
                "DO_NOT_TRACK": "1",
            },
            secrets=_OF_RUNS + HUB_TOKENS + Access.from_env(os.environ).keys,
            folder=folder,
            after_stop_signal=stop_flow_runs,  # the worker takes no new runs, and waits for its own
            stop_seconds=30.0,
        )

    def _mlflow(self) -> Service:
        folder = self.folder / "mlflow"
        users = folder / "users.ini"

        def prepare() -> None:
            database = database_url(self.databases, "mlflow_users").replace("%", "%%")
            users.write_text(
                "[mlflow]\n"
                "default_permission = READ\n"
                f"database_uri = {database}\n"
                "authorization_function = mlflow.server.auth:authenticate_request_basic_auth\n"
                "grant_default_workspace_access = false\n"
                # A password is hashed once a minute, not for each of a run's thousand requests.
                "auth_cache_ttl_seconds = 60\n"
            )

        server = mlflow_server(
            (LOOPBACK, self.ports.mlflow),
            database_url(self.databases, "mlflow"),
            f"s3://{BUCKET}/mlflow",
            app="create_app",
        )
        return replace(
            server,
            after=["postgres"],
            env={
                **server.env,
                "MLFLOW_AUTH_CONFIG_PATH": str(users),
                "MLFLOW_AUTH_ADMIN_USERNAME": os.environ["MLFLOW_TRACKING_USERNAME"],
                "MLFLOW_AUTH_ADMIN_PASSWORD": os.environ["MLFLOW_TRACKING_PASSWORD"],
                "MLFLOW_S3_ENDPOINT_URL": self.client_environment["AWS_ENDPOINT_URL_S3"],
                "AWS_REGION": "us-east-1",
            },
            secrets=(*_OF_S3, "PGPASSWORD", "MLFLOW_FLASK_SERVER_SECRET_KEY"),
            folder=folder,
            prepare=prepare,
        )

    def _prefect(self) -> Service:
        folder = self.folder / "prefect"
        server = prefect_server((LOOPBACK, self.ports.prefect))
        return replace(
            server,
            after=["postgres"],
            env={
                **server.env,
                "PREFECT_HOME": str(folder),
                "PREFECT_SERVER_API_AUTH_STRING": os.environ["PREFECT_API_AUTH_STRING"],
                "PREFECT_SERVER_DATABASE_CONNECTION_URL": database_url(
                    self.databases, "prefect", "+asyncpg"
                ),
                # Started again, it must know whose GPU slots to free and what it has heard.
                "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": (
                    "prefect.server.concurrency.lease_storage.filesystem"
                ),
                "PREFECT_SERVER_EVENTS_CAUSAL_ORDERING": "trimtab.infra.prefect.event_order",
                # How long a stage that found no GPU slot may wait before it asks again.
                "PREFECT_SERVER_CONCURRENCY_MAXIMUM_CONCURRENCY_SLOT_WAIT_SECONDS": "2",
            },
            secrets=("PGPASSWORD", "PREFECT_API_AUTH_STRING"),
            folder=folder,
        )

    def _reconciler(self) -> Service:
        folder = self.folder / "reconciler"
        return Service(
            "reconciler",
            [sys.executable, "-P", "-m", "trimtab.infra.prefect.reconciler"],
            is_ready=lambda: True,
            after=["prefect"],
            env={
                "PREFECT_API_URL": self.client_environment["PREFECT_API_URL"],
                "PREFECT_HOME": str(folder),
                "DO_NOT_TRACK": "1",
            },
            secrets=("PREFECT_API_AUTH_STRING",),
            folder=folder,
        )

    def _has_worker(self) -> bool:
        online = {"workers": {"status": {"any_": ["ONLINE"]}}}
        return bool(self._ask_prefect(f"work_pools/{POOL}/workers/filter", online))

    def _has_limit(self) -> bool:
        """Set the pool's limit.

        A worker with a limit (`--limit`) ends where it gets a run that it still has: one that was
        silent, counts as dead, and is started again.
        """
        limit = {"concurrency_limit": self.limit}
        return self._ask_prefect(f"work_pools/{POOL}", limit, "PATCH") is not None

    def _ask_prefect(self, path: str, body: object, method: str = "POST") -> Any:
        """The answer of Prefect's API; None while there is none."""
        name, _, password = os.environ["PREFECT_API_AUTH_STRING"].partition(":")
        address = f"{self.client_environment['PREFECT_API_URL']}/{path}"
        try:
            answer = httpx.request(method, address, json=body, auth=(name, password), timeout=5)
            answer.raise_for_status()
        except httpx.HTTPError:
            return None
        return answer.json() if answer.content else {}


def prefect_server(address: tuple[str, int]) -> Service:
    """Prefect's pages and API."""
    host, port = address
    return Service(
        "prefect",
        [*_UVICORN, "trimtab.infra.prefect.app:create_app", "--timeout-keep-alive", "5"],
        is_ready=lambda: answers(f"{url(address)}/api/health"),
        address=address,
        env={
            "PREFECT_SERVER_API_HOST": host,
            "PREFECT_SERVER_API_PORT": str(port),
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "DO_NOT_TRACK": "1",
        },
    )


def mlflow_server(
    address: tuple[str, int], database: str, artifacts: str, app: str = "create_open_app"
) -> Service:
    """MLflow's pages and API. app: of `trimtab.infra.stack.mlflow_app`."""
    return Service(
        "mlflow",
        [*_UVICORN, f"trimtab.infra.stack.mlflow_app:{app}"],
        is_ready=lambda: answers(f"{url(address)}/health"),
        address=address,
        env={
            "MLFLOW_BACKEND_STORE_URI": database,
            "MLFLOW_ARTIFACTS_DESTINATION": artifacts,
            "MLFLOW_DISABLE_TELEMETRY": "true",
            # Its job runners are 1.9 GB of processes for evaluations that nobody asks for here.
            "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        },
    )


def url(address: tuple[str, int]) -> str:
    """The address of a server at this host and port."""
    host, port = address
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
