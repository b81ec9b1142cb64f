"""Runs on the one-server stack that wait for a person, and what comes of the answer."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
import requests

from tests.flows.conftest import FOUND
from tests.flows.running_stack import Running
from trimtab.infra.prefect.reconciler import SILENCE
from trimtab.infra.store.manifest import Manifest

pytestmark = pytest.mark.slow

LABELS = {"suspend": {"for_label_review": True}}
CHAMPION = {"suspend": {"for_champion_approval": True}, **FOUND}
MODEL = "trimtab-policy-smoke"


def _start(running: Running, flow: str, changes: dict[str, Any]) -> dict[str, Any]:
    answer = running.start(flow, {"recipe": "smoke", "changes": changes})
    assert answer.status_code == 201, answer.text
    found: dict[str, Any] = answer.json()
    return found


def _wait_until_suspended(running: Running, run: dict[str, Any]) -> str:
    """Until the run waits and its process has ended; gives what its form says."""
    deadline = time.monotonic() + 400
    while (state := running.state_of(run))["name"] != "Suspended":
        assert state["type"] in ("SCHEDULED", "PENDING", "RUNNING"), state
        assert time.monotonic() < deadline, state
        time.sleep(0.5)
    keys = state["state_details"]["run_input_keyset"]
    answer = running.prefect("GET", f"flow_runs/{run['id']}/input/{keys['description']}")
    while not answer.ok:  # which comes a moment after the state
        assert time.monotonic() < deadline, answer.text
        time.sleep(0.2)
        answer = running.prefect("GET", f"flow_runs/{run['id']}/input/{keys['description']}")
    return str(answer.json())


def _resume(running: Running, run: dict[str, Any], **given: str) -> dict[str, Any]:
    path = f"flow_runs/{run['id']}/resume"
    return dict(running.prefect("POST", path, {"run_input": given}).json())


def _no_process(running: Running) -> None:
    deadline = time.monotonic() + 60
    while found := running.processes("prefect.engine"):
        assert time.monotonic() < deadline, found
        time.sleep(0.5)


def _tasks(running: Running, run: dict[str, Any]) -> dict[str, str]:
    """The last state of every task of a run, by its name."""
    asked = {
        "flow_runs": {"id": {"any_": [run["id"]]}},
        "limit": 200,
        "sort": "EXPECTED_START_TIME_ASC",
    }
    return {
        each["name"]: each["state_name"]
        for each in running.prefect("POST", "task_runs/filter", asked).json()
    }


def _starts(running: Running, run: dict[str, Any]) -> list[tuple[str, dict[str, str]]]:
    """Status and tags of the MLflow runs of a flow run's starts, the first one first."""
    of_run = f"tags.`prefect.flow_run_id` = '{run['id']}' AND tags.`trimtab.flow` != ''"
    found = sorted(running.mlflow_runs(of_run), key=lambda each: each["info"]["start_time"])
    return [
        (each["info"]["status"], {tag["key"]: tag["value"] for tag in each["data"]["tags"]})
        for each in found
    ]


def _mlflow(running: Running, path: str, **asked: str) -> Any:
    user = running.environment["MLFLOW_TRACKING_USERNAME"]
    return requests.get(
        f"{running.environment['MLFLOW_TRACKING_URI']}/api/2.0/mlflow/{path}",
        asked,
        auth=(user, running.environment["MLFLOW_TRACKING_PASSWORD"]),
        timeout=60,
    ).json()


def _champion(running: Running) -> dict[str, str] | None:
    """The tags of the champion; None without one."""
    found = _mlflow(running, "registered-models/alias", name=MODEL, alias="champion")
    version = found.get("model_version")
    return {tag["key"]: tag["value"] for tag in version["tags"]} if version else None


def _pairs(running: Running) -> list[str]:
    """Ids of training pairs of the only comparisons in the store."""
    with running.store() as store:
        (found,) = [
            each for each in running.manifests().values() if each and each.stage == "comparisons"
        ]
        folder = running.stack.folder / "client" / "pairs"
        store.materialise(found, folder)
    return [json.loads(line)["id"] for line in (folder / "train.jsonl").read_text().splitlines()]


def _of_stage(running: Running, stage: str) -> list[Manifest]:
    return [each for each in running.manifests().values() if each and each.stage == stage]


def test_labels_are_reviewed_while_the_run_is_suspended(running: Running) -> None:
    run = _start(running, "label-audit", LABELS)
    said = _wait_until_suspended(running, run)
    suspended_at = time.monotonic()
    _no_process(running)
    assert running.left_running(run) == []
    ((status, tags),) = _starts(running, run)
    assert (status, "was suspended" in tags["mlflow.note.content"]) == ("FINISHED", True)
    (earlier,) = running.mlflow_runs("tags.`trimtab.suspended` != ''")
    files = _mlflow(running, "artifacts/list", run_id=earlier["info"]["run_id"])["files"]
    assert "audit.html" in {each["path"] for each in files}
    assert (
        f"runs/{earlier['info']['run_id']}/artifacts/audit.html?workflowType=machine_learning)"
        in said
    )

    assert _resume(running, run)["status"] == "REJECT"  # nobody said who answers
    assert _resume(running, run, reviewer="Ada", verdicts='{"id": "x", "verdict": "flip"}')
    said = _wait_until_suspended(running, run)
    assert "cannot be used" in said and "review.jsonl:1: unknown_id" in said

    while time.monotonic() < suspended_at + SILENCE + 15:  # nobody takes it for dead
        time.sleep(1)
    assert running.state_of(run)["name"] == "Suspended"

    first, second = _pairs(running)[:2]
    lines = [json.dumps({"id": each, "verdict": "flip", "note": None}) for each in (first, second)]
    _resume(running, run, reviewer="Ada", verdicts="".join(lines))
    ended = running.end_of(run)
    assert ended["type"] == "COMPLETED", ended
    tasks = _tasks(running, run)
    assert (tasks["sft"], tasks["audit"]) == ("Cached", "Cached")
    assert (tasks["relabel as reviewed"], tasks["audit as reviewed"]) == ("Completed", "Completed")
    (relabelled,) = [each for each in _of_stage(running, "relabel") if "review" in each.parents]
    review = relabelled.parents["review"]
    assert relabelled.config["review"] == f"raw:{review['key']}/review.jsonl"
    assert relabelled.summary["num_reviewed"] == 2
    *_, (status, tags) = _starts(running, run)
    assert status == "FINISHED"
    assert (tags["trimtab.review"], tags["trimtab.review.by"]) == (
        relabelled.config["review"],
        "Ada",
    )
    assert running.prefect("GET", f"flow_runs/{run['id']}").json()["run_count"] == 1
    assert running.left_running(run) == []


def test_a_suspended_run_is_cancelled_or_ends_when_its_time_is_over(running: Running) -> None:
    run = _start(running, "label-audit", LABELS)
    _wait_until_suspended(running, run)
    cancelling = {"state": {"type": "CANCELLING", "name": "Cancelling"}}
    running.prefect("POST", f"flow_runs/{run['id']}/set_state", cancelling)
    assert running.end_of(run, 60)["type"] == "CANCELLED"
    short = {"suspend": {"for_label_review": True, "timeout_hours": 0.001}}
    late = _start(running, "label-audit", short)
    ended = running.end_of(late)
    assert (ended["type"], ended["message"]) == ("FAILED", "The flow was paused and never resumed.")
    for each in (run, late):
        _no_process(running)
        assert running.left_running(each) == []
        assert [status for status, _ in _starts(running, each)] == ["FINISHED"]


def test_a_champion_is_rejected_and_then_approved(running: Running) -> None:
    run = _start(running, "rlhf", CHAMPION)
    said = _wait_until_suspended(running, run)
    assert (
        "has no champion so far" in said
        and "| net_low |" in said
        and "/artifacts/report.html?workflowType=machine_learning)" in said
    )
    assert _champion(running) is None
    given = {"reviewer": "Ada", "reason": "longer answers, no better ones"}
    _resume(running, run, decision="reject", **given)
    ended = running.end_of(run)
    assert ended["type"] == "COMPLETED" and "Champion rejected by Ada, " in ended["message"], ended
    assert given["reason"] in ended["message"]
    assert _champion(running) is None
    versions = _mlflow(running, "model-versions/search", filter=f"name = '{MODEL}'")
    decided = [
        {tag["key"]: tag["value"] for tag in each["tags"]} for each in versions["model_versions"]
    ]
    assert "rejected" in {each.get("trimtab.approval") for each in decided}

    again = _start(running, "rlhf", CHAMPION)
    _wait_until_suspended(running, again)
    _resume(running, again, decision="approve", reviewer="Bob", reason="won everywhere")
    assert running.end_of(again)["type"] == "COMPLETED"
    tags = _champion(running) or {}
    of_approval = {name: tags.get(f"trimtab.approval{name}") for name in ("", ".by", ".reason")}
    assert of_approval == {"": "approved", ".by": "Bob", ".reason": "won everywhere"}
    third = _start(running, "rlhf", CHAMPION)  # whose champion there is: nobody is asked
    assert running.end_of(third)["type"] == "COMPLETED"
    for each in (run, again, third):
        assert running.left_running(each) == []

    nightly = {"recipe": "smoke", "changes": {**CHAMPION, "ppo": {"num_steps": 2}}}
    first = running.start("rounds", nightly).json()
    assert "Champion of trimtab-policy-smoke is version" in _wait_until_suspended(running, first)
    second = running.start("rounds", nightly).json()
    ended = running.end_of(second)
    assert (ended["name"], "waits for a person" in ended["message"]) == ("Idle", True), ended
    running.force(first, "CANCELLED")
