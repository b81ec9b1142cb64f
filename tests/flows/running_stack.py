"""A one-server stack of the test's own, with the flows deployed, and calls to it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest.mock import patch
from uuid import uuid4

import pytest
import requests

from tests.ports import free_ports
from trimtab.infra.prefect.reconciler import HEARTBEAT
from trimtab.infra.stack import programs
from trimtab.infra.stack.seaweedfs import NUM_INNER_PORTS
from trimtab.infra.stack.services import Ports, Stack
from trimtab.infra.stack.supervisor import Supervisor
from trimtab.infra.store.manifest import MANIFEST_NAME, Manifest
from trimtab.infra.store.store import Store, open_store

KEPT = ("postgres", "seaweedfs")  # where a stack has what it stores, below its folder
ENDS = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")


@dataclass(frozen=True)
class Span:
    """A stage of a run: from when to when in seconds, and its key."""

    start: float
    end: float
    key: str


@dataclass(frozen=True)
class Running:
    """A stack that is up, with the environment of its clients."""

    stack: Stack
    environment: Mapping[str, str]
    pid: int

    def trimtab(self, *arguments: str) -> str:
        return subprocess.run(
            [sys.executable, "-m", "trimtab", *arguments],
            env=dict(self.environment),
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        ).stdout

    def python(self, code: str) -> None:
        """Run some lines of a client's."""
        subprocess.run([sys.executable, "-c", code], env=dict(self.environment), check=True)

    def trimtab_started(self, *arguments: str, **environment: str) -> subprocess.Popen[bytes]:
        """A command under way, with variables of its own."""
        return subprocess.Popen(
            [sys.executable, "-m", "trimtab", *arguments],
            env={**self.environment, **environment},
        )

    def prefect(self, method: str, path: str, body: Any = None, login: bool = True) -> Any:
        user, _, password = self.environment["PREFECT_API_AUTH_STRING"].partition(":")
        return requests.request(
            method,
            f"{self.environment['PREFECT_API_URL']}/{path}",
            json=body,
            auth=(user, password) if login else None,
            timeout=60,
        )

    def wait_for_prefect(self, seconds: float = 60.0) -> None:
        """Until the server answers again."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            with suppress(requests.ConnectionError):
                self.prefect("GET", "health").raise_for_status()
                return
            time.sleep(0.5)
        raise TimeoutError("Prefect's server does not answer")

    def deployment(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.prefect("GET", f"deployments/name/{name}/{name}").json()
        return found

    def start(self, name: str, parameters: dict[str, Any], state: Any = None) -> Any:
        path = f"deployments/{self.deployment(name)['id']}/create_flow_run"
        return self.prefect("POST", path, {"parameters": parameters, "state": state})

    def start_and_train(self, seed: int) -> dict[str, Any]:
        """A run whose first reward model is being trained."""
        changes = {"recipe": "smoke", "changes": {"seed": seed}}
        run: dict[str, Any] = self.start("label-audit", changes).json()
        deadline = time.monotonic() + 120
        while self.state_of(run)["type"] != "RUNNING":
            assert time.monotonic() < deadline, self.state_of(run)
            time.sleep(0.05)
        pattern = "worker-1/work/reward_model-*/metrics.jsonl"
        before = set(self.stack.folder.glob(pattern))  # of runs before this one
        while set(self.stack.folder.glob(pattern)) <= before:
            assert time.monotonic() < deadline, self.state_of(run)
            time.sleep(0.05)
        return run

    @contextmanager
    def automation_within(self, name: str, seconds: float) -> Iterator[float]:
        """An automation that waits no more than so long, for a while; gives what it waited before.

        The server forgets a changed automation and reads it again seconds later, or more of them
        where it is busy; of what happens meanwhile it sees nothing.
        """
        asked = {"automations": {"name": {"any_": [name]}}}
        (automation,) = self.prefect("POST", "automations/filter", asked).json()
        before = automation["trigger"]["within"]
        automation["trigger"] |= {"within": seconds}
        del automation["trigger"]["id"]
        changed = {key: automation[key] for key in ("name", "trigger", "actions", "enabled")}
        path = f"automations/{automation['id']}"
        answer = self.prefect("PUT", path, changed)
        assert answer.ok, answer.text
        try:
            yield before
        finally:
            changed["trigger"]["within"] = before
            self.prefect("PUT", path, changed)

    def beat(self, run: dict[str, Any]) -> None:
        """A heartbeat of a run that has no process."""
        resource = {"prefect.resource.id": f"prefect.flow-run.{run['id']}"}
        event = {"event": HEARTBEAT, "resource": resource, "payload": {}, "id": str(uuid4())}
        at = datetime.now(UTC).isoformat()
        self.prefect("POST", "events", [{**event, "occurred": at}])

    def force(self, run: dict[str, Any], state: str) -> None:
        """Put a run into a state, whatever it is in."""
        body = {"state": {"type": state}, "force": True}
        self.prefect("POST", f"flow_runs/{run['id']}/set_state", body)

    def state_of(self, run: dict[str, Any]) -> dict[str, Any]:
        return dict(self.prefect("GET", f"flow_runs/{run['id']}").json()["state"])

    def end_of(
        self, run: dict[str, Any], seconds: float = 400.0, *, revived: bool = False
    ) -> dict[str, Any]:
        """The last state of a run; one that is `revived` goes on after it crashed."""
        ends = set(ENDS) - ({"CRASHED"} if revived else set())
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            state = self.state_of(run)
            if state["type"] in ends:
                return state
            time.sleep(1)
        raise TimeoutError(state)

    def left_running(self, run: dict[str, Any]) -> list[str]:
        """What is still said to run of a run that has ended: tasks, MLflow runs, GPU slots."""
        of_run = {"flow_runs": {"id": {"any_": [run["id"]]}}}
        tasks = self.prefect("POST", "task_runs/filter", {**of_run, "limit": 200}).json()
        ended = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")
        left = [
            f"task {t['name']}: {t['state_name']}" for t in tasks if t["state_type"] not in ended
        ]
        found = self.mlflow_runs("attributes.status = 'RUNNING'")
        left += [f"MLflow run {each['info']['run_name']}" for each in found]
        slots = self.prefect("GET", "v2/concurrency_limits/trimtab-gpu").json()["active_slots"]
        return left + [f"{slots} GPU slots"] * bool(slots)

    def mlflow_runs(self, condition: str) -> list[dict[str, Any]]:
        user = self.environment["MLFLOW_TRACKING_USERNAME"]
        asked: dict[str, Any] = {"experiment_ids": ["1"], "filter": condition, "max_results": 200}
        runs: list[dict[str, Any]] = []
        while True:
            found = requests.post(
                f"{self.environment['MLFLOW_TRACKING_URI']}/api/2.0/mlflow/runs/search",
                json=asked,
                auth=(user, self.environment["MLFLOW_TRACKING_PASSWORD"]),
                timeout=60,
            ).json()
            runs += found.get("runs", [])
            if not found.get("next_page_token"):
                return runs
            asked["page_token"] = found["next_page_token"]

    def without_mlflow_run(self, keys: Iterable[str]) -> list[str]:
        """Which of these stages, by key, have no MLflow run that has finished."""
        finished = self.mlflow_runs("attributes.status = 'FINISHED'")
        tags = [tag for run in finished for tag in run["data"].get("tags", [])]
        tracked = {tag["value"] for tag in tags if tag["key"] == "trimtab.key"}
        return sorted(set(keys) - tracked)

    def timeline(self, run: str) -> dict[str, Span]:
        """When each stage that an MLflow run did not find in the store was computed, by name."""
        parent = self.mlflow_runs(f"attributes.run_name = '{run}'")[-1]["info"]["run_id"]
        computed = "tags.`trimtab.cached` = 'false'"
        stages = self.mlflow_runs(f"tags.`mlflow.parentRunId` = '{parent}' AND {computed}")
        return {each["info"]["run_name"]: _span(each) for each in stages}

    def processes(self, words: str) -> list[int]:
        """Processes of the stack whose command line has these words."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                ours = str(self.stack.folder).encode() in (folder / "environ").read_bytes()
            except OSError:
                continue
            if words in command and ours and int(folder.name) != self.pid:
                found.append(int(folder.name))
        return found

    @contextmanager
    def store(self) -> Iterator[Store]:
        """The stack's store, with its keys."""
        with pytest.MonkeyPatch.context() as patch:
            for name, value in self.environment.items():
                if name.startswith("AWS_"):
                    patch.setenv(name, value)
            yield open_store(self.environment["TRIMTAB_STORE"])

    def manifests(self) -> dict[str, Manifest | None]:
        """Every artifact of the store by its key; None where its manifest is broken."""
        with self.store() as store:
            names = [name.split("/") for name in store.objects.list("artifacts")]
            found = [name for name in names if len(name) == 4]
            return {key: store.find(stage, key) for _, stage, key, _ in found}


def _span(run: dict[str, Any]) -> Span:
    tags = {tag["key"]: tag["value"] for tag in run["data"]["tags"]}
    info = run["info"]
    return Span(info["start_time"] / 1000, info["end_time"] / 1000, tags["trimtab.key"])


@dataclass(frozen=True)
class Deployed:
    """A stack to which the flows were deployed, and which is down: its folder and secrets."""

    folder: Path
    secrets: Mapping[str, str]


def deployed_stack(folder: Path, finished: Callable[[], Path]) -> Deployed:
    """Make one below a folder, without a worker; its store has what a `finished` home's has."""
    outside = dict(os.environ)
    with new_stack() as (stack, environment), patch.dict(os.environ, environment, clear=True):
        *servers, _ = stack.services()
        with Supervisor(servers, stack.folder / "logs"):
            command = [sys.executable, "-m", "trimtab", "deploy", "--gpus", "2"]
            subprocess.run(command, check=True)
            with patch.dict(os.environ, outside, clear=True):
                home = finished()
            _copy_artifacts(home / "store", environment["TRIMTAB_STORE"])
        _copy(stack.folder, folder)
        own = {name: environment[name] for name in programs.SECRETS}
    return Deployed(folder, own)


def _copy(stack: Path, to: Path) -> None:
    """Copy what PostgreSQL and SeaweedFS store, with the files' owners."""
    for name in KEPT:
        subprocess.run(["cp", "--archive", str(stack / name), str(to / name)], check=True)


def _copy_artifacts(folder: Path, store: str) -> None:
    """From a store in a folder to another; where a copy ends early, a manifest is not there yet."""
    ours, theirs = open_store(str(folder)).objects, open_store(store).objects
    for name in sorted(ours.list("artifacts"), key=lambda name: name.endswith(MANIFEST_NAME)):
        content = ours.get_bytes(name)
        assert content is not None
        theirs.put_bytes(name, content)


@contextmanager
def running_stack(deployed: Deployed | None = None) -> Iterator[Running]:
    """Bring up a stack with the flows deployed; at the end none of its processes may be left."""
    with new_stack(deployed) as (stack, environment), stack_up(stack, environment) as running:
        if deployed is None:
            running.trimtab("deploy", "--gpus", "2")
        yield running


@contextmanager
def new_stack(deployed: Deployed | None = None) -> Iterator[tuple[Stack, dict[str, str]]]:
    """A stack that is down, and the environment of its clients; its folder goes in the end.

    What it stores, and its secrets, are those of the stack that was `deployed` to, if one is given.
    """
    folder = Path(tempfile.mkdtemp(prefix="stack-"))
    folder.chmod(0o755)  # PostgreSQL runs as another user where the tests run as root
    if deployed is not None:
        _copy(deployed.folder, folder)
    first = free_ports(3 + NUM_INNER_PORTS)
    stack = Stack(folder, Ports(first, first + 1, first + 2, first + 3))
    with pytest.MonkeyPatch.context() as patch:
        for name in (*programs.SECRETS, *stack.client_environment):
            patch.delenv(name, raising=False)
        environment = {
            **os.environ,
            **(programs.new_secrets() if deployed is None else deployed.secrets),
            **stack.client_environment,
            "TRIMTAB_HOME": str(folder / "client"),
        }
    try:
        yield stack, environment
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def of_stack(stack: Stack, command: str, *arguments: str) -> list[str]:
    """A command of the stack, with its folder and ports."""
    ports = [f"--port={name}={number}" for name, number in asdict(stack.ports).items()]
    module = [sys.executable, "-m", "trimtab.infra.stack", command]
    return [*module, "--folder", str(stack.folder), *ports, *arguments]


@contextmanager
def stack_up(stack: Stack, environment: Mapping[str, str]) -> Iterator[Running]:
    """The stack for as long as the context is open; then none of its processes may be left."""
    process = subprocess.Popen(
        of_stack(stack, "up"),
        env=dict(environment),
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),  # as after `&` in a script
    )
    assert process.stdout is not None
    try:
        assert "Ctrl-C stops all" in process.stdout.readline()
        yield Running(stack, environment, process.pid)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=120)
    assert process.returncode == 0
    assert not list(stack.folder.glob("tmp-*")), "temporary files outlived the stack"
    assert not processes_of(stack.folder), "a server outlived the stack"


def processes_of(folder: Path) -> list[str]:
    """The command lines that name a folder."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = entry.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(folder) in command:
            found.append(command)
    return found
