"""A real MLflow server that is killed while stages run, and started again."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.forked import FORKED
from tests.ports import free_ports
from tests.tasks.toy_stage import count, make_context
from trimtab.infra.processes.environment import child_env
from trimtab.infra.processes.launch import TrainerError
from trimtab.infra.tracking.runs import Tracking
from trimtab.tasks.execution import StageContext

SECONDS = 120.0  # far beyond what a server or a stage needs


@dataclass
class Server:
    """MLflow on a port and a database of its own; it can be started again."""

    folder: Path
    port: int

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @contextmanager
    def up(self) -> Iterator[None]:
        """Start it; at the end it is killed, with -9."""
        process = FORKED.Process(target=_serve, args=(self.folder, self.port))
        process.start()
        try:
            deadline = time.monotonic() + SECONDS
            while not self._answers():
                assert process.is_alive() and time.monotonic() < deadline
                time.sleep(0.1)
            yield
        finally:
            process.kill()
            process.join()

    def _answers(self) -> bool:
        with suppress(OSError), urllib.request.urlopen(f"{self.uri}/health", timeout=5) as answer:
            return bool(answer.status == 200)
        return False


def _serve(folder: Path, port: int) -> None:
    """What `mlflow server` serves, without the process that starts others."""
    store, artifacts = f"sqlite:///{folder}/mlflow.db", "mlflow-artifacts:/"
    os.environ |= {
        "_MLFLOW_SERVER_FILE_STORE": store,
        "_MLFLOW_SERVER_ARTIFACT_ROOT": artifacts,
        "_MLFLOW_SERVER_ARTIFACT_DESTINATION": str(folder / "artifacts"),
        "_MLFLOW_SERVER_SERVE_ARTIFACTS": "true",
    }
    from mlflow.server import app
    from mlflow.server.handlers import initialize_backend_stores
    from werkzeug.serving import run_simple

    initialize_backend_stores(store, None, artifacts)
    run_simple("127.0.0.1", port, app, threaded=True)


# A flow that another process kills once it has run a stage, and waits for its next one.
_KILLED_FLOW = """
import sys, time
from dataclasses import replace
from pathlib import Path
from trimtab.infra.settings import Settings
from trimtab.infra.tracking.runs import Tracking
from tests.tasks.toy_stage import count, make_context
context = make_context(Path(sys.argv[1]), Path(sys.argv[2]))
settings = replace(context.settings, mlflow_uri=sys.argv[3])
tracking = Tracking.from_settings(settings, "toy")
parent = tracking.start_run("killed flow")
count(replace(context, settings=settings, tracking=tracking, parent=parent), total=6)
Path(sys.argv[2], "has run").touch()
time.sleep(600)
"""


@pytest.mark.slow
def test_after_an_outage_mlflow_has_every_run_whole(
    trainers: Path, tmp_path: Path, plan: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One stage sees the server die, others never see it; one flow goes on, one dies as well."""
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setattr("trimtab.infra.tracking.runs._RETRY_SECONDS", 0.5)
    server = Server(tmp_path, free_ports(1))
    bare = make_context(trainers, tmp_path)
    settings = replace(bare.settings, mlflow_uri=server.uri)
    tracking = Tracking.from_settings(settings, "toy")
    with server.up():
        flow = tracking.start_run("flow")
        context = replace(bare, settings=settings, tracking=tracking, parent=flow)
        before = count(context, total=3)
        plan(wait_at=2)
        stage = threading.Thread(target=count, args=(context,), kwargs={"total": 4})
        stage.start()
        while len(_metrics_of(context)) < 2:
            time.sleep(0.05)
    killed_at = time.time()
    (trainers / "go").touch()
    stage.join(timeout=SECONDS)
    plan()
    inputs = {"start": before.ref}
    count(context, total=5, inputs=inputs)
    count(context, total=3)  # found in the store
    plan(die_at=1)
    with pytest.raises(TrainerError):
        count(context, total=9)
    plan()
    (tmp_path / "page").mkdir()
    (tmp_path / "page" / "report.html").write_text("page")
    flow.log_artifacts(tmp_path / "page")
    _run_and_kill(trainers, tmp_path, server.uri)
    flow.end()
    ended_at = time.time()
    with server.up():
        tracking.flush(SECONDS)
        # Another process of the same home, which finds what the killed one has left.
        later = Tracking.from_settings(settings, "toy")
        later.call(lambda _: None)
        later.flush(SECONDS)
        _check(tracking, killed_at, ended_at)


def _metrics_of(context: StageContext) -> list[str]:
    files = context.settings.work.glob("counter-*/metrics.jsonl")
    return [line for path in files for line in path.read_text().splitlines() if "step" in line]


def _run_and_kill(trainers: Path, folder: Path, uri: str) -> None:
    command = [sys.executable, "-c", _KILLED_FLOW, str(trainers), str(folder), uri]
    process = subprocess.Popen(command, env=child_env({}))
    while not (folder / "has run").exists():
        assert process.poll() is None
        time.sleep(0.05)
    process.kill()
    process.wait()


def _check(tracking: Tracking, killed_at: float, ended_at: float) -> None:
    client = tracking._client
    runs = client.search_runs([tracking.experiment_id])
    ended = Counter((run.info.run_name, run.info.status) for run in runs)
    assert ended == {
        ("flow", "FINISHED"): 1,
        ("killed flow", "KILLED"): 1,
        ("counter", "FINISHED"): 5,
        ("counter", "FAILED"): 1,
    }
    names = {run.info.run_id: run.info.run_name for run in runs}
    for run in runs:
        assert (run.info.end_time or 0) <= ended_at * 1000  # when it was over, not when sent
        if run.info.run_name != "counter":
            continue
        tags, total = run.data.tags, int(run.data.params["total"])
        parent = "killed flow" if total == 6 else "flow"
        assert names[tags["mlflow.parentRunId"]] == parent
        assert {"trimtab.stage", "trimtab.key", "trimtab.cached"} <= tags.keys()
        if tags["trimtab.cached"] == "true":
            assert run.info.start_time > killed_at * 1000
            assert run.data.metrics == {"summary/count": 3.0}
            continue
        history = client.get_metric_history(run.info.run_id, "count")
        steps = 1 if total == 9 else total
        assert sorted((m.step, m.value) for m in history) == [(n, n + 1.0) for n in range(steps)]
        assert ("trimtab.digest" in tags) == (total != 9)
        assert len(run.inputs.dataset_inputs) == (1 if total == 5 else 0)
    (flow,) = [run.info.run_id for run in runs if run.info.run_name == "flow"]
    assert [file.path for file in client.list_artifacts(flow)] == ["report.html"]
    assert tracking.outbox is not None and not list(tracking.outbox.iterdir())
