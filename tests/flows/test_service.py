"""The one-server stack with flows deployed on it: what is refused, and a run by one API call."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from infra.stack import secrets
from infra.stack.bucket import BUCKET
from infra.stack.programs import program
from infra.stack.seaweedfs import NUM_INNER_PORTS
from tests.flows.listener import Listener, listening
from tests.flows.malformed import malformed
from tests.flows.running_stack import Running, processes_of, running_stack

pytestmark = pytest.mark.slow
PREFECT_FILE = Path(__file__).parents[2] / "prefect.yaml"


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    with running_stack() as running:
        yield running


@pytest.fixture(scope="module")
def listener() -> Iterator[Listener]:
    with listening() as listener:
        yield listener


def test_no_server_answers_strangers(running: Running) -> None:
    client = running.stack.client_environment
    mlflow = f"{client['MLFLOW_TRACKING_URI']}/api/2.0/mlflow/experiments/search?max_results=1"
    assert running.prefect("POST", "flows/count", {}, login=False).status_code == 401
    assert requests.get(mlflow, timeout=30).status_code == 401
    assert requests.get(f"{client['AWS_ENDPOINT_URL_S3']}/{BUCKET}", timeout=30).status_code == 403
    port = str(running.stack.ports.postgres)
    refused = subprocess.run(
        [program("psql"), "-h", "127.0.0.1", "-p", port, "-U", "trimtab", "-d", "prefect"],
        env={**running.environment, "PGPASSWORD": "wrong"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "password authentication failed" in refused.stderr
    assert running.prefect("POST", "flows/count", {}).status_code == 200


def test_every_server_listens_on_loopback_only(running: Running) -> None:
    ports = {getattr(running.stack.ports, name) for name in ("prefect", "mlflow", "postgres", "s3")}
    ports |= {running.stack.ports.weed + inner for inner in range(NUM_INNER_PORTS)}
    listening = {}
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            local, state = line.split()[1], line.split()[3]
            address, _, port = local.rpartition(":")
            if state == "0A":
                listening.setdefault(int(port, 16), set()).add(address)
    assert {port: listening[port] for port in ports} == {port: {"0100007F"} for port in ports}


def test_deploying_again_changes_nothing(running: Running) -> None:
    def automations() -> set[str]:
        found = running.prefect("POST", "automations/filter", {}).json()
        assert len(found) == len({each["name"] for each in found})
        return {each["name"] for each in found if each["name"].startswith("trimtab")}

    def count() -> int:
        return int(running.prefect("POST", "deployments/count", {}).json())

    before, num_deployments = automations(), count()
    assert len(before) == 3
    running.trimtab("deploy", "--gpus", "3")
    assert automations() == before
    limit = running.prefect("GET", "v2/concurrency_limits/trimtab-gpu").json()
    assert limit["limit"] == 3
    assert count() == num_deployments == PREFECT_FILE.read_text().count("entrypoint:")


def test_notices_go_to_a_block(running: Running, listener: Listener) -> None:
    running.python(
        "from prefect.blocks.webhook import Webhook\n"
        f"Webhook(url={listener.address!r}).save('alerts')"
    )
    running.trimtab("deploy", "--gpus", "2", "--notify", "webhook/alerts")
    running.python("from tasks.notices import COLLAPSED, tell; tell(COLLAPSED, 'p', step=3)")
    assert listener.wait_for("trimtab.policy.collapsed")["payload"] == {"step": 3}
    run = running.start("evaluate", {"recipe": "smoke", "policy": "99"}).json()
    assert running.end_of(run)["name"] == "Failed"
    notice = listener.wait_for("prefect.flow-run.Failed")
    assert notice["run"].endswith(run["id"])
    assert "99" in notice["payload"]["validated_state"]["message"]


def test_malformed_parameters_are_refused_by_the_api(running: Running) -> None:
    schema = running.deployment("rlhf")["parameter_openapi_schema"]
    cases = list(malformed(schema))
    for path, parameters in cases[:: len(cases) // 40]:
        answer = running.start("rlhf", parameters)
        assert 400 <= answer.status_code < 500, (path, answer.text)
        assert "Validation failed" in answer.text
    of_flow = {"flows": {"name": {"any_": ["rlhf"]}}}
    assert running.prefect("POST", "flow_runs/count", of_flow).json() == 0
    assert running.prefect("GET", "health").json() is True


def test_an_infinite_number_is_not_taken_for_the_default(running: Running) -> None:
    """JSON's 1e400, which Prefect would store as null; also where its own check is skipped."""
    path = f"deployments/{running.deployment('rlhf')['id']}/create_flow_run"
    body = '{"parameters": {"recipe": "smoke", "changes": {"ppo": {"kl_coef": 1e400}}}, %s}'
    address = f"{running.environment['PREFECT_API_URL']}/{path}"
    user, _, password = running.environment["PREFECT_API_AUTH_STRING"].partition(":")

    def start(is_checked: bool) -> requests.Response:
        text = body % f'"enforce_parameter_schema": {json.dumps(is_checked)}'
        headers = {"Content-Type": "application/json"}
        return requests.post(address, data=text, headers=headers, auth=(user, password), timeout=60)

    answer = start(True)
    assert answer.status_code == 409
    assert "changes.ppo.kl_coef" in answer.text
    answer = start(False)
    assert answer.status_code == 201
    state = running.end_of(answer.json())
    assert state["name"] == "Failed"
    assert "ppo.kl_coef: Input should be a valid number" in state["message"]
    assert "found null" in state["message"]
    assert running.prefect("POST", "task_runs/count", {}).json() == 0


def test_a_run_by_one_api_call(running: Running, listener: Listener) -> None:
    answer = running.start("rlhf", {"recipe": "smoke", "changes": {"ppo": {"num_steps": 3}}})
    assert answer.status_code == 201
    run = answer.json()
    assert running.end_of(run)["name"] == "Completed"
    assert running.left_running(run) == []
    _report_is_linked(running, run)
    _promotion_is_an_event(running, run)
    assert listener.wait_for("trimtab.policy.promoted")["resource"] == "trimtab-policy-smoke"
    manifests = running.manifests()
    assert len(manifests) > 20
    assert None not in manifests.values()
    again = running.start("rlhf", {"recipe": "smoke", "changes": {"ppo": {"num_steps": 3}}})
    assert running.end_of(again.json())["name"] == "Completed"
    evaluation = running.start("evaluate", {"recipe": "smoke", "policy": "1", "against": "sft"})
    assert running.end_of(evaluation.json())["name"] == "Completed"


def _report_is_linked(running: Running, run: dict[str, Any]) -> None:
    """From the flow run's page to MLflow's, and back."""
    artifacts = running.prefect(
        "POST", "artifacts/filter", {"artifacts": {"flow_run_id": {"any_": [run["id"]]}}}
    ).json()
    texts = {each["key"]: each["data"] for each in artifacts if each["key"]}
    mlflow = running.environment["MLFLOW_TRACKING_URI"]
    assert f"]({mlflow}/#/experiments/" in texts["trimtab-report"]
    assert f"{mlflow}/#/models/trimtab-policy-smoke/versions/1" in texts["trimtab-policy"]
    user = running.environment["MLFLOW_TRACKING_USERNAME"]
    found = requests.get(
        f"{mlflow}/api/2.0/mlflow/registered-models/alias",
        params={"name": "trimtab-policy-smoke", "alias": "champion"},
        auth=(user, running.environment["MLFLOW_TRACKING_PASSWORD"]),
        timeout=30,
    ).json()["model_version"]
    tags = {tag["key"]: tag["value"] for tag in found["tags"]}
    assert tags["prefect.flow_run_id"] == run["id"]
    assert tags["prefect.flow_run_url"].endswith(run["id"])


def _promotion_is_an_event(running: Running, run: dict[str, Any]) -> None:
    wanted = {"filter": {"event": {"name": ["trimtab.policy.promoted"]}}}
    deadline = time.monotonic() + 20
    while not (found := running.prefect("POST", "events/filter", wanted).json()["events"]):
        assert time.monotonic() < deadline
        time.sleep(0.5)
    (event,) = found
    assert event["resource"]["prefect.resource.name"] == "trimtab-policy-smoke"
    assert event["payload"]["version"] == "1"
    assert f"prefect.flow-run.{run['id']}" in str(event["related"])


def test_secrets_are_in_no_file_and_no_command_line(running: Running) -> None:
    """After all of the above, logs, databases and artifacts included."""
    names = set(secrets.SECRETS) - {"AWS_ACCESS_KEY_ID", "MLFLOW_TRACKING_USERNAME"}  # as it says
    values = [running.environment[name].rpartition(":")[2].encode() for name in names]
    for path in running.stack.folder.rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            assert not [value for value in values if value in content], path
    commands = " ".join(processes_of(running.stack.folder)).encode()
    assert not [value for value in values if value in commands]


def test_a_worker_that_is_told_to_stop_stops(running: Running) -> None:
    (worker,) = running.processes("prefect worker start")
    os.kill(worker, signal.SIGTERM)
    deadline = time.monotonic() + 60
    while worker in running.processes("prefect worker start"):
        assert time.monotonic() < deadline
        time.sleep(0.2)
