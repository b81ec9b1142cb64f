"""Prefect as the stack serves it: who starts a run cannot say what came of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
import requests
from jsonschema import Draft202012Validator
from prefect._internal.schemas import validators
from prefect.utilities.schema_tools import validation

from tests.ports import free_ports
from trimtab.flows.config.names import name_run
from trimtab.flows.config.recipes import recipe_named
from trimtab.flows.runs import lifecycle
from trimtab.infra.prefect.app import (
    CREATES,
    MAX_BODY,
    MAX_CREATED,
    RUN_TAGS,
    check_schemas_once,
    find_fault,
)

LEASE = "00000000-0000-0000-0000-000000000000"
FORGED = [
    *(
        {"state": {"type": each}}
        for each in ("COMPLETED", "RUNNING", "CRASHED", "PAUSED", "FAILED")
    ),
    *({"state": {"type": each}} for each in ("CANCELLING", "CANCELLED", "completed", None, 1, [])),
    {"state": {"type": "COMPLETED", "message": "Shown to be better. Report: http://evil"}},
    {"state": {"type": "SCHEDULED", "name": "Completed"}},
    {"state": {"type": "SCHEDULED", "name": "ſcheduled"}},
    {"state": {"type": "PENDING", "name": "Idle"}},
    {"state": {"type": "SCHEDULED", "data": {"verdict": "better"}}},
    {"state": {"type": "SCHEDULED", "state_details": {"cache_key": "k"}}},
    {
        "state": {
            "type": "SCHEDULED",
            "state_details": {"deployment_concurrency_lease_id": LEASE},
        }
    },
    *({"tags": [f"{kind}:x"]} for kind in RUN_TAGS),
    *(
        {"tags": ["mine", each]}
        for each in ("Verdict:better", " verdict :better", "ｖerdict：better")
    ),
    {"tags": ["verdict:better"], "name": "smoke-seed0"},
    {"tags": [f"t{n}" for n in range(5000)]},
    {"tags": ["t" * 100_000]},
    {"tags": ["a\x1b[2J"]},
    {"name": "n" * 500_000},
    {"name": "a\nb"},
    {"name": "a\x00b"},
    {"idempotency_key": "k" * 10_000},
    {"work_queue_name": "q" * 10_000},
    {"parameters": {"recipe": "a\x00b"}},
    {"parameters": {"a\x00b": 1}},
    {"parameters": {"recipe": "\ud800"}},
    {"parameters": {}, "more": float("nan")},
    *({"empirical_policy": {"retries": each}} for each in (100_000, 21, "100000", 1e5, True, -1)),
    {"empirical_policy": {"max_retries": 100_000}},
    {"empirical_policy": {"resuming": True, "pause_keys": ["approve"]}},
]
ASKED = [
    {},
    {"parameters": {"recipe": "smoke"}, "name": "first try, of Zoë", "tags": ["mine", "a:b"]},
    {"state": None, "tags": None, "name": None},
    {"empirical_policy": {"retries": 2, "max_retries": 2, "retry_delay": 5, "pause_keys": []}},
    {"state": {"type": "SCHEDULED", "message": "Run from the Prefect UI"}},
    # As Prefect's pages and its client send it.
    {
        "state": {
            "type": "SCHEDULED",
            "name": "Scheduled",
            "data": None,
            "state_details": {
                "scheduled_time": "2040-01-01T00:00:00Z",
                "deferred": False,
                "untrackable_result": False,
                "pause_reschedule": False,
                "cache_key": None,
            },
        }
    },
]


@pytest.mark.parametrize("body", FORGED, ids=lambda body: json.dumps(body)[:60])
def test_what_only_a_run_can_say_is_refused(body: dict[str, Any]) -> None:
    for given in (body, [{}, body]):
        for encoding in ("utf-8", "utf-16"):
            assert find_fault(json.dumps(given).encode(encoding))


@pytest.mark.parametrize("body", [b"{", b"\xff\xfe\xfd", b"[" * 300_000, b""])
def test_what_is_no_json_is_refused(body: bytes) -> None:
    fault = find_fault(body)
    assert fault is not None and fault.startswith("the body is no JSON")


@pytest.mark.parametrize("body", ASKED, ids=lambda body: json.dumps(body)[:60])
def test_what_clients_ask_for_is_passed_on(body: dict[str, Any]) -> None:
    for given in (body, [body, body]):
        assert find_fault(json.dumps(given).encode()) is None


class _OneRun:
    """A client of an API that has one run, whose tags somebody has chosen."""

    def __init__(self) -> None:
        self.name = "alpha-sirius"
        self.tags = {"mine", "verdict:better", "recipe:other", "data:theirs"}

    def __enter__(self) -> _OneRun:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def read_flow_run(self, _: UUID) -> _OneRun:
        return self

    def update_flow_run(self, _: UUID, *, name: str | None, tags: list[str]) -> None:
        self.name = name or self.name
        self.tags = set(tags)


def test_a_run_takes_the_tags_of_its_kinds_for_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    run = _OneRun()
    monkeypatch.setattr(lifecycle, "get_client", lambda **_: run)
    monkeypatch.setattr(lifecycle, "flow_run", SimpleNamespace(id=UUID(LEASE)))
    config = recipe_named("smoke")
    lifecycle._name_flow_run(config, name_run(config, "rlhf"), "c" * 40)
    assert run.tags == {"mine", "recipe:smoke", "commit:cccccccccccc"}
    assert run.name == "smoke-seed0"
    lifecycle.completed_state({"verdict": "not shown to be better", "report": "r"})
    assert run.tags >= {"mine", "recipe:smoke", "verdict:not shown to be better"}
    assert {tag.partition(":")[0] for tag in run.tags} - {"mine"} < set(RUN_TAGS)


CLIENT = """
import sys
from datetime import UTC, datetime, timedelta
from prefect import flow, get_client, task, get_run_logger
from prefect.client.schemas.objects import StateType
from prefect.states import Completed, Scheduled

@task
def step():
    return 1

@flow
def inner():
    return step()

@flow(flow_run_name="outer", retries=1)
def outer():
    get_run_logger().info("m" * 900_000)
    assert inner() == 1
    return Completed(message="Better.")

assert outer(return_state=True).message == "Better."
with get_client(sync_client=True) as client:
    runs = client.read_flow_runs()
    assert {run.state.type for run in runs} == {StateType.COMPLETED}
    client.update_flow_run(runs[0].id, tags=["verdict:better"])
    deployment = client.create_deployment(
        client.create_flow_from_name("outer"), "outer", parameter_openapi_schema={}
    )
    at = datetime.now(UTC) + timedelta(days=1)
    for state in (None, Scheduled(scheduled_time=at)):
        run = client.create_flow_run_from_deployment(deployment, state=state, tags=["mine"])
        assert run.state.type == StateType.SCHEDULED
    client.set_flow_run_state(run.id, Scheduled(), force=True)
    print(deployment)
"""


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The API's address, as `infra/stack/services.py` starts it but on SQLite."""
    folder, port = tmp_path_factory.mktemp("prefect"), free_ports(1)
    environment = {key: value for key, value in os.environ.items() if "PREFECT" not in key}
    process = subprocess.Popen(
        [
            *(sys.executable, "-P", "-m", "uvicorn", "--factory", "--log-level", "error"),
            *("trimtab.infra.prefect.app:create_app", "--port", str(port)),
        ],
        env={**environment, "PREFECT_HOME": str(folder), "DO_NOT_TRACK": "1"},
    )
    url, deadline = f"http://127.0.0.1:{port}/api", time.monotonic() + 120
    try:
        while not _is_up(url):
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.2)
        yield url
    finally:
        process.terminate()
        process.wait(timeout=60)


def _is_up(url: str) -> bool:
    try:
        return requests.get(f"{url}/health", timeout=5).ok
    except requests.ConnectionError:
        return False


@pytest.fixture(scope="module")
def deployment(api: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Its id, made by what clients and the engine do, all of which goes on as before."""
    home = tmp_path_factory.mktemp("client")
    done = subprocess.run(
        [sys.executable, "-c", CLIENT],
        env={**os.environ, "PREFECT_API_URL": api, "PREFECT_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


@pytest.mark.slow
def test_the_server_refuses_them_and_serves_clients(api: str, deployment: str) -> None:
    def count() -> int:
        return int(requests.post(f"{api}/flow_runs/count", json={}, timeout=60).json())

    flow = requests.get(f"{api}/deployments/{deployment}", timeout=60).json()["flow_id"]
    (logged,) = (
        log
        for log in requests.post(f"{api}/logs/filter", json={}, timeout=60).json()
        if len(log["message"]) > 10_000
    )
    assert len(logged["message"]) > 800_000
    before = count()
    of_deployment = f"deployments/{deployment}/create_flow_run"
    for body in FORGED:
        for path, given in (
            (of_deployment, body),
            (f"{of_deployment}/bulk", [body]),
            ("flow_runs/", {**body, "flow_id": flow}),
            ("flow_runs", {**body, "flow_id": flow}),
        ):
            answer = requests.post(f"{api}/{path}", data=json.dumps(given), timeout=60)
            assert answer.status_code == 422, (path, str(body)[:80], answer.text)
            assert answer.json()["detail"]
    assert count() == before


@pytest.mark.slow
@pytest.mark.parametrize("is_told", [True, False])
def test_a_body_has_a_size(api: str, deployment: str, is_told: bool) -> None:
    jinja = {"__prefect_kind": "jinja", "template": "{{ 1 }}" * (100_000_000 // 7)}
    large = json.dumps({"parameters": {"recipe": jinja}}).encode()
    cases = (
        (f"deployments/{deployment}/create_flow_run", large),
        (f"deployments/{deployment}/create_flow_run", b" " * MAX_CREATED + b"{}"),
        ("flow_runs/filter", b" " * MAX_BODY + b"{}"),
        ("logs/", b" " * MAX_BODY + b"[]"),
    )
    for path, body in cases:
        data = body if is_told else iter([body[:1000], body[1000:]])
        start = time.monotonic()
        answer = requests.post(f"{api}/{path}", data=data, timeout=60)
        assert answer.status_code == 413, answer.text
        assert time.monotonic() - start < 10
    assert requests.get(f"{api}/health", timeout=5).json() is True


@pytest.mark.slow
def test_every_request_that_makes_a_run_is_seen(api: str) -> None:
    """By what Prefect says of itself: what takes the state of a run that is not there yet."""
    described = requests.get(f"{api.removesuffix('/api')}/openapi.json", timeout=60).json()
    makes = {
        path
        for path, methods in described["paths"].items()
        if "FlowRunCreate" in json.dumps(methods.get("post", {}).get("requestBody", {}))
    }
    assert len(makes) == 3
    assert all(CREATES.fullmatch(path) for path in makes)


def test_a_schema_is_checked_once_and_a_wrong_one_refused_each_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    checked = []
    check = validation._VALIDATOR.check_schema

    def counting(schema: Any, **_: Any) -> None:
        checked.append(schema)
        check(schema)

    for validator in (validation._VALIDATOR, Draft202012Validator):
        monkeypatch.setattr(validator, "check_schema", counting)
    check_schemas_once()
    right, wrong = {"type": "object", "required": ["a"]}, {"type": "no such type"}
    for _ in range(3):
        validation.validate({"a": 1}, right, raise_on_error=True, preprocess=False)
        with pytest.raises(validation.ValidationError, match="'a' is a required property"):
            validation.validate({}, right, raise_on_error=True, preprocess=False)
    assert checked == [right]
    for _ in range(2):
        with pytest.raises(ValueError, match="Invalid schema: 'no such type' is not valid"):
            validation.is_valid_schema(wrong, preprocess=False)
    assert checked == [right, wrong, wrong]

    # Of a deployment's schema, as it is made: what another had, too, is not checked again.
    checked.clear()
    for name in ("b", "c"):
        schema = {"properties": {name: {"$ref": "#/definitions/D"}}, "definitions": {"D": right}}
        for _ in range(2):
            validators.validate_values_conform_to_schema({name: {"a": 1}}, schema)
            with pytest.raises(ValueError, match=f"field '{name}'.* 'a' is a required property"):
                validators.validate_values_conform_to_schema({name: {}}, schema)
    assert [list(part.get("properties", part)) for part in checked] == [
        *(["b"], ["type", "required"], ["c"])
    ]
    with pytest.raises(ValueError, match="not a valid json schema.* 'no such type' is not valid"):
        validators.validate_values_conform_to_schema({}, {"definitions": {"D": right, "E": wrong}})
