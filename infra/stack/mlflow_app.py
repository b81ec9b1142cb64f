"""MLflow's server of the stack: whoever is no administrator reads, and nobody says where it writes.

By itself MLflow lets each of its users make experiments whose `artifact_location` is any place that
the server can write to, versions whose `source` is any that it can read, and models of any name,
which are then their own. Here every request passes two lists first, and what is on neither is
refused: a feature that a new MLflow brings is closed until it is named here.

    uvicorn --factory trimtab.infra.stack.mlflow_app:create_app

It takes MLFLOW_BACKEND_STORE_URI, MLFLOW_ARTIFACTS_DESTINATION and MLFLOW_EXPOSE_PROMETHEUS as
`mlflow server` does, and the other variables of its app `basic-auth`.
"""

from __future__ import annotations

import json
import os
import re
from typing import Any

from trimtab.infra.asgi import (
    App,
    Message,
    Receive,
    Send,
    read_login,
    read_request,
    refuse,
    replay_request,
)
from trimtab.infra.stack.seaweedfs import BUCKET

# What `mlflow server` is told, and as what it tells the process that serves.
_OPTIONS = {
    "MLFLOW_BACKEND_STORE_URI": ("_MLFLOW_SERVER_FILE_STORE", "_MLFLOW_SERVER_REGISTRY_STORE"),
    "MLFLOW_ARTIFACTS_DESTINATION": ("_MLFLOW_SERVER_ARTIFACT_DESTINATION",),
    "MLFLOW_EXPOSE_PROMETHEUS": ("prometheus_multiproc_dir",),
}
_ROOT = "mlflow-artifacts:/"  # of all artifacts: below it lies the destination
_FIXED = {
    "_MLFLOW_SERVER_SERVE_ARTIFACTS": "true",
    "_MLFLOW_SERVER_ARTIFACT_ROOT": _ROOT,
    "_MLFLOW_SGI_NAME": "uvicorn",
    "_MLFLOW_IN_JOB_EXECUTOR": "false",
}

# MLflow compares these with the run or the model that the version is of; the last is a policy that
# is registered where the store has it (TRIMTAB_REGISTER=in-store).
_SOURCES = (
    r"\A((models|runs|mlflow-artifacts):/[\w@. -][\w@./ -]*"
    rf"|s3://{BUCKET}/artifacts/artifacts/\w+/[0-9a-f]+/[0-9a-f]+/model)\Z"
)

_API = r"/(ajax-)?api/[234]\.0/mlflow"
_NAME = r"[^/]+"
# What any user may ask, as (methods, address): it changes nothing, and leads to no other host.
READS = [
    (
        "GET|HEAD",
        r"/|/health|/version|/static-files/.+|/graphql|/(model-versions/)?get-artifact"
        rf"|/(ajax-)?api/2\.0/mlflow-artifacts/artifacts(/.*)?"
        rf"|{_API}/("
        r"experiments/(get|get-by-name|search)|runs/get|artifacts/list"
        r"|metrics/(get-history|get-history-bulk|get-history-bulk-interval)"
        r"|registered-models/(get|search|alias|get-latest-versions)"
        r"|model-versions/(get|search|get-download-uri)"
        rf"|logged-models/{_NAME}(/artifacts/(directories|files))?"
        rf"|traces(/{_NAME}(/info)?)?|get-trace-artifact"
        # The page of runs asks for a gateway's endpoints; `create_app` sees that there is none.
        r"|users/current(/permissions)?|server-info|ui-telemetry|gateway-proxy)",
    ),
    # None of its mutations changes anything (tests/infra/stack/test_mlflow_app.py).
    ("POST", r"/graphql"),
    (
        "POST",
        rf"{_API}/((experiments|runs|logged-models|traces)/search|experiments/search-datasets"
        r"|registered-models/get-latest-versions|traces/(batchGetInfos|metrics))",
    ),
]
# What an administrator may ask besides, by any method: runs, models and users. Without what makes
# the server ask other hosts or run code: gateway, webhooks, scorers, assistant, jobs.
WRITES = (
    r"/signup|/metrics|/(ajax-)?api/2\.0/mlflow-artifacts/.+"
    rf"|{_API}/((experiments|runs|artifacts|registered-models|model-versions|users|roles)/.+"
    r"|logged-models(/.+)?|upload-artifact)"
)
_CREATES_EXPERIMENT = rf"{_API}/experiments/create"
_MAX_BODY = 1 << 20  # bytes, of what makes an experiment or only reads
_PLACE = ("artifact_location", "artifactLocation")  # as protobuf takes it


def create_app() -> App:
    """MLflow's application with basic authentication, behind the two lists.

    Raises what MLflow raises, such as for tables of an earlier version.
    """
    os.environ["MLFLOW_CREATE_MODEL_VERSION_SOURCE_VALIDATION_REGEX"] = _SOURCES
    _open_stores()
    from mlflow.server.auth import create_app as create_mlflow

    return add_guard(create_mlflow())


def create_open_app() -> App:
    """MLflow's application without users and lists, for one's own machine: `trimtab ui`."""
    _open_stores()
    from mlflow.server.fastapi_app import app

    return app


def _open_stores() -> None:
    for option, names in _OPTIONS.items():
        if value := os.environ.get(option):
            os.environ |= dict.fromkeys(names, value)
    os.environ |= _FIXED
    os.environ.pop("MLFLOW_DEPLOYMENTS_TARGET", None)
    from mlflow.server import handlers

    store = os.environ["_MLFLOW_SERVER_FILE_STORE"]
    handlers.initialize_backend_stores(store, store, _ROOT)


def add_guard(app: App) -> App:
    """An ASGI application that passes to MLflow's what the two lists allow."""
    from starlette.concurrency import run_in_threadpool

    async def answer(scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] == "http" and (_has_body(scope) or not _is_read(scope)):
            refused = await run_in_threadpool(_refusal, scope)
            is_new = re.fullmatch(_CREATES_EXPERIMENT, scope["path"])
            if refused is None and (is_new or _is_read(scope)):
                request = await read_request(receive, _MAX_BODY)
                if request is None:
                    refused = 413, f"the body is larger than {_MAX_BODY} bytes, or took too long"
                else:
                    receive = replay_request(request, receive)
                    refused = _refusal_of_place(request.get("body", b"")) if is_new else None
            if refused is not None:
                status, text = refused
                login = {"WWW-Authenticate": 'Basic realm="mlflow"'} if status == 401 else {}
                await refuse(send, status, text, login)
                return
        await app(scope, receive, send)

    return answer


def _is_read(scope: Message) -> bool:
    """Whether every user may ask it."""
    method, path = scope["method"], scope["path"]
    return any(re.fullmatch(m, method) and re.fullmatch(p, path) for m, p in READS)


def _has_body(scope: Message) -> bool:
    """Whether one is to come, which MLflow would read to its end before it asks who sends it."""
    headers = dict(scope["headers"])
    return b"transfer-encoding" in headers or headers.get(b"content-length", b"0") != b"0"


def _refusal(scope: Message) -> tuple[int, str] | None:
    """Status and words for who may not ask it; None for an administrator, or for reading.

    Raises what the database of users raises: that it does not answer is not the user's fault.
    """
    user = _user(scope)
    if user is None:
        return 401, "Log in with a user of this MLflow and its password."
    if _is_read(scope):
        return None
    request = f"{scope['method']} {scope['path']}"
    if not user.is_admin:
        return 403, f"{request}: {user.username} may read only; an administrator may do this."
    if not re.fullmatch(WRITES, scope["path"]):
        return 403, f"{request}: this MLflow keeps runs and models; its other features are closed."
    return None


def _user(scope: Message) -> Any:
    """MLflow's user whose name and password the request has; None without."""
    from mlflow.server.auth import _authenticate_cached

    name, colon, password = (read_login(scope) or "").partition(":")
    return _authenticate_cached(name, password) if colon else None


def _refusal_of_place(body: bytes) -> tuple[int, str] | None:
    """Status and words for an experiment that is to keep its artifacts elsewhere."""
    try:
        values = json.loads(body)
        values = json.loads(values) if isinstance(values, str) else values  # as MLflow does
    except (ValueError, RecursionError):
        return 400, "experiments/create: the body is no JSON."
    if isinstance(values, dict) and any(values.get(name) for name in _PLACE):
        return 400, (
            "experiments/create: artifact_location is given; this MLflow keeps all artifacts in "
            "one place: leave it out."
        )
    return None
