"""MLflow as the stack serves it: what its readers, and its administrators, can have it do."""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import re
import socket
import sqlite3
import time
from base64 import b64encode
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.forked import FORKED
from tests.ports import free_ports
from tests.registered import downloaded
from trimtab.infra.tracking.registry import Registry
from trimtab.infra.tracking.runs import Tracking

pytestmark = pytest.mark.slow

ADMIN, ADA, NOBODY = ("worker", "twelve letters or more"), ("ada", "another of twelve"), None
USERS = """[mlflow]
default_permission = READ
database_uri = sqlite:///{folder}/users.db
authorization_function = mlflow.server.auth:authenticate_request_basic_auth
grant_default_workspace_access = false
auth_cache_ttl_seconds = 60
"""
MODEL = "trimtab-policy-smoke"
# What a reader may send besides GET, by the end of its address.
QUERIES = {
    "/graphql",
    *("/experiments/search", "/experiments/search-datasets", "/runs/search", "/traces/search"),
    *("/logged-models/search", "/registered-models/get-latest-versions", "/traces/metrics"),
    "/traces/batchGetInfos",
}
# Parts of MLflow that Trimtab has no use for, and that ask other hosts, run code or hold secrets.
CLOSED = re.compile(
    r"gateway/|webhooks|scorer|assistant|jobs|mcp-servers|genai|datasets/|issues|demo|workspaces"
    r"|review-queues|label-schemas|roles|users/(get|list|create|permissions|roles|update|delete)"
)
# Of any route's body, what would be of use to an attacker.
TAKEN = {
    "name": "trimtab-policy-default",
    "alias": "champion",
    "version": "1",
    "source": "s3://trimtab/artifacts",
    "artifact_location": "/etc",
    "experiment_id": "1",
    "experiment_ids": [],
    "key": "k",
    "value": "v",
    "username": ADA[0],
    "password": "a new one of twelve",
    "is_admin": True,
}
EXPERIMENTS, VERSIONS = (
    "/api/2.0/mlflow/experiments/create",
    "/api/2.0/mlflow/model-versions/create",
)


def _serve(folder: Path, port: int) -> None:
    """The stack's application on SQLite and a folder; it writes down what MLflow's routes are."""
    (folder / "users.ini").write_text(USERS.format(folder=folder))
    os.environ |= {
        "MLFLOW_BACKEND_STORE_URI": f"sqlite:///{folder}/mlflow.db",
        "MLFLOW_ARTIFACTS_DESTINATION": str(folder / "artifacts"),
        "MLFLOW_AUTH_CONFIG_PATH": str(folder / "users.ini"),
        "MLFLOW_AUTH_ADMIN_USERNAME": ADMIN[0],
        "MLFLOW_AUTH_ADMIN_PASSWORD": ADMIN[1],
        "MLFLOW_FLASK_SERVER_SECRET_KEY": "k" * 32,
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        "MLFLOW_DEPLOYMENTS_TARGET": "http://10.0.0.1",
    }
    import uvicorn

    from trimtab.infra.stack.mlflow_app import create_app

    app = create_app()
    from fastapi.routing import iter_route_contexts
    from mlflow import server
    from mlflow.server.fastapi_app import app as native

    found = {(m, rule.rule) for rule in server.app.url_map.iter_rules() for m in rule.methods}
    for route in iter_route_contexts(native.routes):
        found |= {(method, route.path) for method in route.methods or ()}
    (folder / "routes.json").write_text(json.dumps(sorted(found)))
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="error")


@dataclass(frozen=True)
class Server:
    folder: Path
    port: int
    run: str
    version: str

    def ask(
        self,
        login: tuple[str, str] | None,
        method: str,
        path: str,
        body: Any = None,
        headers: dict[str, str] | None = None,
    ) -> tuple[int, str]:
        """As it stands: no library makes the address a proper one."""
        given = {"Content-Type": "application/json", **(headers or {})}
        if login:
            given["Authorization"] = f"Basic {b64encode(':'.join(login).encode()).decode()}"
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        data = body if isinstance(body, str | bytes | None) else json.dumps(body)
        connection.request(method, path, data, given)
        answer = connection.getresponse()
        found = answer.status, answer.read().decode(errors="replace")
        connection.close()
        return found

    @property
    def routes(self) -> list[tuple[str, str]]:
        """Every method and address that MLflow knows, with something for each of their parts."""
        found = json.loads((self.folder / "routes.json").read_text())
        return [
            (method, re.sub(r"[<{][^>}]*[>}]", "x", rule))
            for method, rule in found
            if method != "OPTIONS"
        ]

    def content(self) -> str:
        """A digest of all that it has: both databases, and all files."""
        digest = hashlib.sha256()
        for name in ("mlflow.db", "users.db"):
            with sqlite3.connect(self.folder / name) as connection:
                digest.update("\n".join(connection.iterdump()).encode())
        for path in sorted((self.folder / "artifacts").rglob("*")):
            digest.update(str(path).encode() + (path.read_bytes() if path.is_file() else b""))
        return digest.hexdigest()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """With a run and a version of a model, made by the calls of a worker."""
    folder, port = tmp_path_factory.mktemp("mlflow"), free_ports(1)
    process = FORKED.Process(target=_serve, args=(folder, port))
    process.start()
    with pytest.MonkeyPatch.context() as patch:
        try:
            _as(patch, ADMIN)
            server = Server(folder, port, "", "")
            deadline = time.monotonic() + 120
            while True:
                with suppress(OSError):
                    if server.ask(NOBODY, "GET", "/health")[0] == 200:
                        break
                assert process.is_alive() and time.monotonic() < deadline
                time.sleep(0.1)
            made = {"username": ADA[0], "password": ADA[1]}
            assert server.ask(ADMIN, "POST", "/api/2.0/mlflow/users/create", made)[0] == 200
            yield _with_a_run(server)
        finally:
            process.kill()
            process.join()


def _as(patch: pytest.MonkeyPatch, login: tuple[str, str]) -> None:
    patch.setenv("MLFLOW_TRACKING_USERNAME", login[0])
    patch.setenv("MLFLOW_TRACKING_PASSWORD", login[1])


def _with_a_run(server: Server) -> Server:
    weights, page = server.folder / "weights", server.folder / "page"
    for path, text in ((weights / "model.safetensors", "w"), (page / "report.html", "page")):
        path.parent.mkdir()
        path.write_text(text)
    tracking = Tracking(f"http://127.0.0.1:{server.port}", "trimtab", outbox=server.folder / "out")
    run = tracking.start_run("smoke", tags={"trimtab.recipe": "smoke"})
    run.log(params={"seed": 0}, metrics={"loss": 1.0})
    run.log_artifacts(page)
    found = Registry(tracking).register(
        run, MODEL, lambda: weights, identity={"trimtab.key": "k"}, aliases=["champion"]
    )
    run.end()
    tracking.flush()
    assert run.run_id and not run.has_unsent
    return Server(server.folder, server.port, run.run_id, found.number)


def test_a_reader_reads_runs_and_models(server: Server) -> None:
    for method, path, body, words in (
        ("GET", "experiments/search?max_results=9", None, "trimtab"),
        ("POST", "runs/search", {"experiment_ids": ["1"]}, server.run),
        ("GET", f"runs/get?run_id={server.run}", None, "FINISHED"),
        ("GET", f"metrics/get-history?run_id={server.run}&metric_key=loss", None, "1.0"),
        ("GET", f"artifacts/list?run_id={server.run}", None, "report.html"),
        ("GET", f"registered-models/alias?name={MODEL}&alias=champion", None, "trimtab.key"),
        ("GET", "model-versions/search", None, MODEL),
        ("POST", "logged-models/search", {"experiment_ids": ["1"]}, "trimtab.key"),
        ("GET", "users/current", None, "ada"),
        ("GET", "gateway-proxy?gateway_path=api/2.0/endpoints/", None, '"endpoints":[]'),
    ):
        for prefix in ("/api", "/ajax-api")["proxy" in path :]:
            status, text = server.ask(ADA, method, f"{prefix}/2.0/mlflow/{path}", body)
            assert (status, words in text) == (200, True), (path, text)
    page = server.ask(ADA, "GET", f"/get-artifact?run_uuid={server.run}&path=report.html")
    assert page == (200, "page")
    query = {"query": "{__schema{mutationType{fields{name}}}}"}
    status, text = server.ask(ADA, "POST", "/graphql", query)
    assert status == 200
    fields = json.loads(text)["data"]["__schema"]["mutationType"]["fields"]
    # Two search, the third gives back a text.
    assert {field["name"] for field in fields} == {
        *("mlflowSearchDatasets", "mlflowSearchRuns", "testMutation")
    }
    with pytest.MonkeyPatch.context() as patch:
        _as(patch, ADA)
        folder = downloaded(f"http://127.0.0.1:{server.port}", f"models:/{MODEL}@champion")
    assert (folder / "model.safetensors").read_text() == "w"


def test_a_reader_changes_nothing_by_any_of_mlflow_s_routes(server: Server) -> None:
    """By default a route is refused: one that a new MLflow has is as well."""
    assert len(server.routes) > 500
    before = server.content()
    passed = set()
    for method, path in server.routes:
        body = {"run_id": server.run, "run_uuid": server.run, **TAKEN}
        where = f"{path}?run_uuid={server.run}&path=pwned.txt" if "upload" in path else path
        status, text = server.ask(ADA, method, where, None if method == "GET" else body)
        refused = status == 403 and ("may read only" in text or method == "HEAD")
        passed |= set() if refused else {(method, path)}
    assert server.content() == before
    assert {method for method, _ in passed} == {"GET", "HEAD", "POST"}
    sent = {path for method, path in passed if method == "POST"}
    assert {re.sub(r"^/(ajax-)?api/\d\.0/mlflow", "", path) for path in sent} == QUERIES
    assert not [path for _, path in passed if CLOSED.search(path)]


@pytest.mark.parametrize(
    ("method", "path", "headers"),
    [
        ("POST", "/api/2.0/mlflow/experiments/create/", {}),
        ("POST", "//api/2.0/mlflow/experiments/create", {}),
        ("POST", "/api/2.0/mlflow//experiments/create", {}),
        ("POST", "/api/2.0/mlflow/experiments/%63reate", {}),
        ("POST", "/api/2.0/mlflow/experiments/search/../create", {}),
        ("POST", "/api/2.0/mlflow/experiments/search%2f..%2fcreate", {}),
        ("POST", "/api/2.0/mlflow/experiments/create%0a", {}),
        ("POST", "/API/2.0/mlflow/experiments/create", {}),
        ("POST", "/api/2.0/mlflow/experiments/create?_method=GET", {}),
        ("GET", "/api/2.0/mlflow/experiments/create", {"X-HTTP-Method-Override": "POST"}),
        ("POST", "http://127.0.0.1/api/2.0/mlflow/experiments/create", {}),
        ("POST", "/api/2.0/mlflow/experiments/create", {"X-Forwarded-User": "worker"}),
        ("POST", "/api/2.0/mlflow/experiments/create", {"X-MLflow-Authorization": "Basic eA=="}),
        ("post", "/api/2.0/mlflow/experiments/create", {}),
        ("QUERY", "/api/2.0/mlflow/experiments/create", {}),
        ("PUT", "/api/2.0/mlflow-artifacts/artifacts/1/x/pwned.txt", {}),
        ("PUT", "/api/2.0/mlflow-artifacts/artifacts/..%2fpwned.txt", {}),
        ("GET", "/api/2.0/mlflow-artifacts/artifacts/..%2f..%2fmlflow.db", {}),
        ("GET", "/api/2.0/mlflow-artifacts/artifacts/%252e%252e%252fmlflow.db", {}),
        ("GET", "/api/2.0/mlflow-artifacts/artifacts?path=../..", {}),
    ],
)
def test_no_other_spelling_is_a_way_in(
    server: Server, method: str, path: str, headers: dict[str, str]
) -> None:
    before = server.content()
    status, _ = server.ask(ADA, method, path, {"name": "x", "artifact_location": "/etc"}, headers)
    assert status >= 400
    assert server.content() == before


def test_strangers_are_shown_that_it_is_up_and_no_more(server: Server) -> None:
    before = server.content()
    answers = {
        (method, path): server.ask(NOBODY, method, path, None if method == "GET" else {})[0]
        for method, path in server.routes
    }
    shown = {path for (_, path), status in answers.items() if status < 400}
    assert shown == {
        "/health",
        *(f"/{api}/3.0/mlflow/server-info" for api in ("api", "ajax-api")),
    }
    for login in (("ada", "wrong"), ("eve", ADA[1]), (ADMIN[0], ""), ("", ADMIN[1])):
        assert server.ask(login, "POST", EXPERIMENTS, {"name": "x"})[0] == 401
    right = b64encode(":".join(ADMIN).encode()).decode()
    for given in ("", "Basic", "Basic ?", f"Bearer {right}", f"Basic {right[:-4]}", right):
        answer = server.ask(NOBODY, "POST", EXPERIMENTS, {"name": "x"}, {"Authorization": given})
        assert answer[0] == 401, given
    assert server.content() == before


@pytest.mark.parametrize("path", ["/graphql", "/api/2.0/mlflow/runs/search", "/health", VERSIONS])
@pytest.mark.parametrize("how", ["Content-Length: 4000000000", "Transfer-Encoding: chunked"])
def test_of_strangers_no_body_is_read(server: Server, path: str, how: str) -> None:
    """MLflow itself has all of it in memory before it asks who sends it."""
    for method in ("POST", "GET"):
        with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
            head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n{how}\r\n\r\n"
            connection.sendall(head.encode())
            assert b" 401 " in connection.recv(100)


def test_what_a_reader_sends_has_a_size(server: Server) -> None:
    body = b" " * (1 << 20) + b"{}"
    for path in ("/graphql", "/api/2.0/mlflow/runs/search"):
        assert server.ask(ADA, "POST", path, body)[0] == 413
    assert server.ask(ADMIN, "POST", EXPERIMENTS, body)[0] == 413


@pytest.mark.parametrize("spelling", ["artifact_location", "artifactLocation"])
@pytest.mark.parametrize(
    "place",
    [
        *("/etc", "file:///etc", "s3://trimtab/artifacts", "dbfs:/x", "http://127.0.0.1:1/x"),
        *("mlflow-artifacts:/../x", "mlflow-artifacts:/%2e%2e/x", "mlflow-artifacts:/1", " "),
    ],
)
def test_nobody_says_where_artifacts_are_written(server: Server, spelling: str, place: str) -> None:
    before = server.content()
    body = {"name": "elsewhere", spelling: place}
    for data in (body, json.dumps(json.dumps(body)), json.dumps(body).encode("utf-16")):
        assert server.ask(ADMIN, "POST", EXPERIMENTS, data)[0] == 400
    ajax, part = EXPERIMENTS.replace("/api", "/ajax-api"), EXPERIMENTS.removesuffix("create")
    ends = ("/create", "x/../create", "./create", "%63reate", "create/", "create;x", "create%0a")
    for path in (ajax, f"{EXPERIMENTS}?x=1", f"/{EXPERIMENTS}", *(part + end for end in ends)):
        assert server.ask(ADMIN, "POST", path, body)[0] >= 300, path
    assert server.content() == before


@pytest.mark.parametrize(
    "source",
    [
        *("/etc", "file:///etc", "s3://trimtab/artifacts", "s3://trimtab/mlflow/1", "dbfs:/x"),
        *("http://127.0.0.1:1/x", "models:/../../x", "runs:/x/../../y", "mlflow-artifacts:/"),
        *("mlflow-artifacts://other/1", "mlflow-artifacts:/%2e%2e/artifacts", "models://h/m-1"),
        "mlflow-artifacts:/1/another/artifacts",
        f"s3://trimtab/artifacts/artifacts/ppo_max/{'a' * 64}/{'b' * 16}/model/../..",
        f"s3://trimtab/artifacts/artifacts/ppo_max/{'a' * 64}/{'b' * 16}/model\n",
        f"s3://trimtab/artifacts/artifacts/ppo_max/{'a' * 64}/{'b' * 16}",
    ],
)
def test_no_version_reads_from_elsewhere(server: Server, source: str) -> None:
    before = server.content()
    for with_run in ({}, {"run_id": server.run}):
        body = {"name": MODEL, "source": source, **with_run}
        assert server.ask(ADMIN, "POST", VERSIONS, body)[0] in (400, 404), source
    assert server.content() == before


def test_a_policy_in_the_store_may_be_a_version(server: Server) -> None:
    """With TRIMTAB_REGISTER=in-store."""
    source = f"s3://trimtab/artifacts/artifacts/ppo_max/{'a' * 64}/{'b' * 16}/model"
    body = {"name": MODEL, "source": source, "run_id": server.run}
    assert server.ask(ADMIN, "POST", VERSIONS, body)[0] == 200


def test_what_asks_other_hosts_is_closed_to_administrators_too(server: Server) -> None:
    hook = {"name": "h", "url": "https://10.0.0.1/", "events": []}
    for path, body in (
        ("/api/2.0/mlflow/webhooks", hook),
        ("/api/3.0/mlflow/gateway/secrets/create", {}),
        ("/ajax-api/2.0/mlflow/gateway-proxy", {}),
        ("/v1/traces", {}),
        ("/ajax-api/3.0/mlflow/assistant/message", {}),
    ):
        assert server.ask(ADMIN, "POST", path, body)[0] == 403
