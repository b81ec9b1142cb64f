"""The one-server stack with flows deployed on it: what is refused, and what runs on it.

A run by one API call, runs held back by GPU slots, and one spread out over a Dask cluster.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.flows import strangers
from tests.flows.dask_cluster import dask_cluster
from tests.flows.listener import Listener, listening
from tests.flows.malformed import malformed
from tests.flows.running_stack import Running, processes_of
from tests.thief import thief
from trimtab.flows.deploy import ENGINE, HEARTBEATS, STILL, STUCK
from trimtab.infra.stack import programs
from trimtab.infra.stack.postgres import client_options
from trimtab.infra.stack.programs import program
from trimtab.infra.stack.seaweedfs import BUCKET, NUM_INNER_PORTS

pytestmark = pytest.mark.slow
PREFECT_FILE = Path(__file__).parents[2] / "prefect.yaml"


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
    refused = subprocess.run(
        [program("psql"), *client_options(running.stack.databases), "-d", "prefect"],
        env={**running.environment, "PGPASSWORD": "wrong"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "password authentication failed" in refused.stderr
    assert running.prefect("POST", "flows/count", {}).status_code == 200


def test_a_user_of_mlflow_reads_everything_and_changes_nothing(running: Running) -> None:
    """Made by the commands of docs/how-to/operate.md."""
    api = f"{running.environment['MLFLOW_TRACKING_URI']}/api/2.0/mlflow"
    name, password = "ada", "twelve letters or more"
    admin = (
        running.environment["MLFLOW_TRACKING_USERNAME"],
        running.environment["MLFLOW_TRACKING_PASSWORD"],
    )

    def asked(login: tuple[str, str], method: str, path: str, **body: Any) -> int:
        answer = requests.request(method, f"{api}/{path}", json=body, auth=login, timeout=30)
        return answer.status_code

    own = {"username": name, "password": password}
    assert asked(admin, "POST", "users/create", **own) == 200
    assert asked((name, password), "GET", "experiments/search?max_results=1") == 200
    # By every route: tests/infra/stack/test_mlflow_app.py.
    elsewhere = {"name": "x", "artifact_location": "/etc"}
    for login, status in (((name, password), 403), (admin, 400)):
        assert asked(login, "POST", "experiments/create", **elsewhere) == status
    taken = {"name": "trimtab-policy-default"}
    assert asked((name, password), "POST", "registered-models/create", **taken) == 403
    changed = {"username": name, "password": "another one, of 12"}
    assert asked(admin, "PATCH", "users/update-password", **changed) == 200
    assert asked(admin, "DELETE", "users/delete", username=name) == 200
    assert asked((name, changed["password"]), "GET", "experiments/search?max_results=1") == 401


def _nothing_is_given_to_strangers(running: Running) -> None:
    """Every port of the stack's processes listens on loopback, and is refused without a key."""
    ports = strangers.listening(running.pid)
    assert {port: ips for port, ips in ports.items() if ips != {"127.0.0.1"}} == {}
    own = running.stack.ports
    assert {own.prefect, own.mlflow, own.s3} <= ports.keys()
    assert {own.weed + inner for inner in range(NUM_INNER_PORTS)} <= ports.keys()
    pages = {own.prefect, own.mlflow}  # which show everybody their first page, and 401 for the rest
    found = {port: dict(strangers.given(port)) for port in ports.keys() - pages}
    assert {port: answers for port, answers in found.items() if answers} == {}
    assert list(strangers.open_sockets(running.pid)) == []


def test_every_port_refuses_strangers(running: Running) -> None:
    _nothing_is_given_to_strangers(running)
    for path in (
        "flow_runs/filter",
        "block_documents/filter",
        "work_pools/filter",
        "admin/version",
    ):
        assert running.prefect("POST", path, {}, login=False).status_code == 401
    mlflow = running.environment["MLFLOW_TRACKING_URI"]
    for path in ("api/2.0/mlflow/runs/search", "ajax-api/2.0/mlflow/registered-models/create"):
        assert requests.post(f"{mlflow}/{path}", json={}, timeout=30).status_code == 401
    assert (
        requests.get(f"{mlflow}/api/2.0/mlflow-artifacts/artifacts", timeout=30).status_code == 401
    )


def test_nobody_else_can_read_the_stack_s_files(running: Running) -> None:
    folders = [path for path in running.stack.folder.iterdir() if path.is_dir()]
    assert {"postgres", "seaweedfs", "worker-1", "logs"} <= {path.name for path in folders}
    assert [path for path in folders if path.name != "client" and path.stat().st_mode & 0o077] == []


def test_who_starts_a_run_does_not_choose_how(running: Running) -> None:
    """Neither its command nor its environment, by which it would be the worker's user."""
    path = f"deployments/{running.deployment('rlhf')['id']}/create_flow_run"
    for variables in (
        {"command": "/bin/sh -c 'id > /tmp/x'"},
        {"env": {"TRIMTAB_DATA_ROOTS": "/"}},
        {"env.TRIMTAB_DATA_ROOTS": "/"},
        {"working_dir": "/tmp"},
        {"name": "{{ prefect.blocks.secret.mine }}"},
    ):
        body = {"parameters": {"recipe": "smoke"}, "job_variables": variables}
        answer = running.prefect("POST", path, body)
        assert answer.status_code == 422, answer.text
    pool = running.prefect("GET", "work_pools/trimtab").json()["base_job_template"]
    assert pool["job_configuration"] == {
        "command": ENGINE,
        "stream_output": True,
        "env": HEARTBEATS,
    }


def test_a_run_takes_no_files_no_keys_and_asks_nobody_else(running: Running) -> None:
    """All that the service review took, in one run: it ends before its first stage."""
    with listening() as attacker:
        state = _attacked(running, attacker)
    assert attacker.received == []
    for place in (
        *(
            "preferences.sources: the path '/proc/self/environ'",
            "sources: 's3://trimtab/artifacts'",
        ),
        *("preferences.sources: 'who/ever' of the hub", "sft.model.base: the path '/etc'"),
        f"judge.endpoint: {attacker.address.rstrip('/')!r} may not be asked",
        "judge.constitution: the path '/etc/passwd'",
        "relabel.review: the path '/etc/passwd'",
    ):
        assert place in state["message"]


def _attacked(running: Running, attacker: Listener) -> dict[str, Any]:
    endpoint = {"model": "m", "base_url": attacker.address, "key_variable": "PGPASSWORD"}
    judge = {"endpoint": endpoint, "constitution": "/etc/passwd"}
    changes = {
        "preferences": {"sources": ["/proc/self/environ", "s3://trimtab/artifacts", "who/ever"]},
        "sft": {"model": {"base": "/etc"}},
        "judge_preferences": {"judge": judge},
        "relabel": {"review": "/etc/passwd"},
    }
    run = running.start("rlhf", {"recipe": "smoke", "changes": changes}).json()
    state = running.end_of(run)
    assert state["name"] == "Failed"
    tasks = {"flow_runs": {"id": {"any_": [run["id"]]}}}
    assert running.prefect("POST", "task_runs/count", tasks).json() == 0
    return state


def test_deploying_again_adds_notices_and_changes_nothing_else(
    running: Running, listener: Listener
) -> None:
    def automations() -> set[str]:
        found = running.prefect("POST", "automations/filter", {}).json()
        assert len(found) == len({each["name"] for each in found})
        return {each["name"] for each in found if each["name"].startswith("trimtab")}

    def count() -> int:
        return int(running.prefect("POST", "deployments/count", {}).json())

    running.python(
        "from prefect.blocks.webhook import Webhook\n"
        f"Webhook(url={listener.address!r}).save('alerts')"
    )
    before, num_deployments = automations(), count()
    assert before == set()
    running.trimtab("deploy", "--gpus", "3", "--notify", "webhook/alerts")
    added = automations() - before
    assert automations() >= before
    assert added and all(name.startswith("trimtab: tell of ") for name in added)
    limit = running.prefect("GET", "v2/concurrency_limits/trimtab-gpu").json()
    assert limit["limit"] == 3
    pool = running.prefect("GET", "work_pools/trimtab").json()
    assert pool["concurrency_limit"] == running.stack.limit
    assert count() == num_deployments == PREFECT_FILE.read_text().count("entrypoint:")


def test_notices_go_to_a_block(running: Running, listener: Listener) -> None:
    running.python("from trimtab.tasks.events import COLLAPSED, emit; emit(COLLAPSED, 'p', step=3)")
    assert listener.wait_for("trimtab.policy.collapsed")["payload"] == {"step": 3}
    run = running.start("evaluate", {"recipe": "smoke", "policy": "99"}).json()
    assert running.end_of(run)["name"] == "Failed"
    notice = listener.wait_for("prefect.flow-run.Failed")
    assert notice["run"].endswith(run["id"])
    assert "99" in notice["payload"]["validated_state"]["message"]


GETS_ON = """
import os, time
from trimtab.tasks import events
print("ready", flush=True)
os.environ["PREFECT__FLOW_RUN_ID"] = input()
events.SECONDS_BETWEEN_ADVANCES = 0.0
for _ in range(15):
    events.advanced()
    time.sleep(3)
"""


def test_a_run_in_which_nothing_moves_is_told_of(running: Running, listener: Listener) -> None:
    def told_of(run: dict[str, Any]) -> bool:
        found = [each["run"] for each in list(listener.received) if each["event"] == STUCK]
        return any(address.endswith(run["id"]) for address in found)

    def runs() -> dict[str, Any]:
        run: dict[str, Any] = running.start(
            "label-audit", {"recipe": "smoke"}, {"type": "PENDING"}
        ).json()
        running.force(run, "RUNNING")
        return run

    def is_told_of(run: dict[str, Any]) -> bool:
        deadline = time.monotonic() + 90
        while not told_of(run) and time.monotonic() < deadline:
            running.beat(run)  # it has no process
            time.sleep(0.5)
        return told_of(run)

    name = "trimtab: tell of runs in which nothing moves"
    with running.automation_within(name, 30.0) as before:
        assert before == STILL.seconds
        deadline = time.monotonic() + 300
        while not is_told_of(stuck := runs()):
            assert time.monotonic() < deadline, listener.received
            running.force(stuck, "CANCELLED")
        gets_on = _gets_on_for_a_while(running, runs)
        assert not told_of(gets_on)
        assert is_told_of(gets_on)  # now that it has ceased to
    for run in (stuck, gets_on):
        running.force(run, "CANCELLED")


def _gets_on_for_a_while(running: Running, start: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """A run that is started once there is a process that says of it that it gets on."""
    process = subprocess.Popen(
        [sys.executable, "-c", GETS_ON],
        env=dict(running.environment),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    run = start()
    process.communicate(run["id"] + "\n", timeout=180)
    assert process.returncode == 0
    return run


def test_malformed_parameters_are_refused_by_the_api(running: Running) -> None:
    schema = running.deployment("rlhf")["parameter_openapi_schema"]
    cases = list(malformed(schema))
    of_flow = {"flows": {"name": {"any_": ["rlhf"]}}}
    before = running.prefect("POST", "flow_runs/count", of_flow).json()
    for path, parameters in cases[:: len(cases) // 40]:
        answer = running.start("rlhf", parameters)
        assert 400 <= answer.status_code < 500, (path, answer.text)
        assert "Validation failed" in answer.text
    assert running.prefect("POST", "flow_runs/count", of_flow).json() == before
    assert running.prefect("GET", "health").json() is True


@pytest.mark.parametrize("is_checked", ["true", "false"])
def test_no_body_gets_past_the_schema(running: Running, is_checked: str) -> None:
    """Nor by `enforce_parameter_schema`; JSON's 1e400 would be stored as null, a default."""
    identifier = running.deployment("rlhf")["id"]
    path = f"{running.environment['PREFECT_API_URL']}/deployments/{identifier}/create_flow_run"
    user, _, password = running.environment["PREFECT_API_AUTH_STRING"].partition(":")
    headers = {"Content-Type": "application/json"}
    for parameters, found in (
        ('{"recipe": "smoke", "changes": {"ppo": {"kl_coef": 1e400}}}', "changes.ppo.kl_coef"),
        ('{"recipe": "smoke", "no_such_parameter": 1}', "no_such_parameter"),
    ):
        text = f'{{"parameters": {parameters}, "enforce_parameter_schema": {is_checked}}}'
        for address, data in ((path, text), (f"{path}/bulk", f"[{text}]")):
            answer = requests.post(
                address, data=data, headers=headers, auth=(user, password), timeout=60
            )
            assert answer.status_code == 409 or '"FAILED"' in answer.text, answer.text
            assert found in answer.text
    assert running.prefect("POST", "task_runs/count", {}).json() == 0


def test_a_run_by_one_api_call(running: Running, listener: Listener) -> None:
    answer = running.start("rlhf", {"recipe": "smoke", "changes": {"ppo": {"num_steps": 3}}})
    assert answer.status_code == 201
    run = answer.json()
    _processes_have_only_their_secrets(running)
    _nothing_is_given_to_strangers(running)
    assert running.end_of(run)["name"] == "Completed"
    assert running.left_running(run) == []
    _report_is_linked(running, run)
    _promotion_is_an_event(running, run)
    _getting_on_is_an_event(running, run)
    assert listener.wait_for("trimtab.policy.promoted")["resource"] == "trimtab-policy-smoke"
    manifests = running.manifests()
    assert len(manifests) > 20
    assert None not in manifests.values()
    again = running.start("rlhf", {"recipe": "smoke", "changes": {"ppo": {"num_steps": 3}}})
    assert running.end_of(again.json())["name"] == "Completed"
    evaluation = running.start("evaluate", {"recipe": "smoke", "policy": "1", "against": "sft"})
    assert running.end_of(evaluation.json())["name"] == "Completed"


def _processes_have_only_their_secrets(running: Running) -> None:
    """Servers, a flow run and its trainers, once there are any."""
    s3 = {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"}
    mlflow = {"MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD"}
    needed = {
        "prefect worker start": s3 | mlflow | {"PREFECT_API_AUTH_STRING"},
        "prefect.engine": s3 | mlflow | {"PREFECT_API_AUTH_STRING"},
        "trimtab.infra.prefect.reconciler": {"PREFECT_API_AUTH_STRING"},
        "trimtab.infra.prefect.app": {"PGPASSWORD", "PREFECT_API_AUTH_STRING"},
        "mlflow_app": s3 | {"PGPASSWORD", "MLFLOW_FLASK_SERVER_SECRET_KEY"},
        "weed ": set(),
        "trimtab.infra.processes.fork_server": set(),
    }
    deadline = time.monotonic() + 120
    while not running.processes("trimtab.infra.processes.fork_server"):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    for words, secrets_of in needed.items():
        pids = running.processes(words)
        assert pids, words
        for pid in pids:
            environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            names = {each.partition(b"=")[0].decode() for each in environ}
            assert names & set(programs.SECRETS) == secrets_of, words


def _report_is_linked(running: Running, run: dict[str, Any]) -> None:
    """From the flow run's page to MLflow's, and back."""
    artifacts = running.prefect(
        "POST", "artifacts/filter", {"artifacts": {"flow_run_id": {"any_": [run["id"]]}}}
    ).json()
    texts = {each["key"]: each["data"] for each in artifacts if each["key"]}
    mlflow = running.environment["MLFLOW_TRACKING_URI"]
    assert f"]({mlflow}/#/experiments/" in texts["trimtab-report"]
    assert f"{mlflow}/#/models/trimtab-policy-smoke/versions/1" in texts["trimtab-policy"]
    view = "?workflowType=machine_learning"
    for page in ("report", "audit"):
        assert f"/artifacts/{page}.html{view})" in texts[f"trimtab-{page}-page"]
        assert f"/artifacts/{page}.html{view})" in texts["trimtab-report"]
    assert running.state_of(run)["message"].endswith(f"/artifacts/report.html{view}")
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


def _getting_on_is_an_event(running: Running, run: dict[str, Any]) -> None:
    wanted = {"filter": {"event": {"name": ["trimtab.run.advanced"]}}}
    found = running.prefect("POST", "events/filter", wanted).json()["events"]
    own = [e for e in found if e["resource"]["prefect.resource.id"].endswith(run["id"])]
    assert own
    assert all("prefect.tag.trimtab" in str(each["related"]) for each in own)


def _members(number: int) -> list[str]:
    return ['ensemble.votes=["in_sample"]', f"ensemble.size={number}"]


def test_five_members_take_three_slots(running: Running) -> None:
    run = ("run", "smoke", "seed=2", *_members(5), "--flow", "label-audit", "--name", "five")
    assert running.trimtab_started(*run, TRIMTAB_MAX_PARALLEL="4").wait() == 0
    timeline = running.timeline("five")
    spans = [span for name, span in timeline.items() if "member" in name]
    assert len(spans) == 5
    at_once = [sum(s.start <= each.start < s.end for s in spans) for each in spans]
    assert max(at_once) == 3
    running.python(
        "import pytest\n"
        "from trimtab.tasks.resources import SlotsError, gpu_slots\n"
        "with gpu_slots(3): pass\n"
        "with pytest.raises(SlotsError, match='take 4 GPU slots, and there are fewer'):\n"
        "    with gpu_slots(4): pass"
    )


def test_a_dask_cluster_that_loses_a_node_completes(running: Running) -> None:
    with dask_cluster(running, 2) as (environment, nodes):
        run = running.trimtab_started(
            *("run", "smoke", "seed=3", *_members(4), "--flow", "label-audit"),
            **environment,
        )
        deadline = time.monotonic() + 240
        while not (busy := [node for node in nodes if "reward_model" in node.stages]):
            assert time.monotonic() < deadline and run.poll() is None
            time.sleep(0.05)
        busy[0].kill()
        (other,) = (node for node in nodes if node is not busy[0])
        assert run.wait(timeout=240) == 0
        assert {"reward_model", "strength", "relabel", "report"} <= other.stages
    assert None not in running.manifests().values()


def test_secrets_are_in_no_file_and_no_command_line(running: Running) -> None:
    """After all of the above, logs, databases and artifacts included."""
    names = set(programs.SECRETS) - {"MLFLOW_TRACKING_USERNAME"}  # a name, which pages show
    values = [running.environment[name].rpartition(":")[2].encode() for name in names]
    for path in running.stack.folder.rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            assert not [value for value in values if value in content], path
    commands = " ".join(processes_of(running.stack.folder)).encode()
    assert not [value for value in values if value in commands]


def test_nobody_takes_the_port_of_a_server_that_was_killed(running: Running) -> None:
    """Whoever had it would be sent the logins of the worker and of all flow runs."""
    ports = running.stack.ports
    servers = {"prefect.app:create_app": ports.prefect, "mlflow_app:create_app": ports.mlflow}
    with ExitStack() as thieves:
        for words, port in servers.items():
            thieves.enter_context(thief(port))
            (killed,) = running.processes(words)
            os.kill(killed, signal.SIGKILL)
            page = "api/health" if port == ports.prefect else "health"
            answer = requests.get(f"http://127.0.0.1:{port}/{page}", timeout=120)
            assert answer.status_code == 200
            assert killed not in running.processes(words)


def test_a_worker_that_is_told_to_stop_stops(running: Running) -> None:
    (worker,) = running.processes("prefect worker start")
    os.kill(worker, signal.SIGTERM)
    deadline = time.monotonic() + 60
    while worker in running.processes("prefect worker start"):
        assert time.monotonic() < deadline
        time.sleep(0.2)
