"""Running a stage: computed once, resumed, checked, published; on a toy trainer without torch."""

from __future__ import annotations

import dataclasses
import itertools
import json
import logging
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from infra.launch import TrainerError
from infra.manifest import CorruptArtifactError
from infra.settings import Settings
from infra.storage import open_store
from infra.tracking import Tracking
from infra.warm_client import child_env, close_servers
from models.records import ArtifactRef
from tasks.stage import (
    Progress,
    StageContext,
    StageInputError,
    StageOutputError,
    StageResult,
    Trainers,
    run_stage,
    stage_key,
)

# Counts up from its input, a checkpoint a step. `plan.json` beside the package makes it misbehave.
COUNTER = """
import json, os, time
from pathlib import Path

def run(job):
    plan_path = Path(__file__).parents[2] / "plan.json"
    plan = json.loads(plan_path.read_text()) if plan_path.exists() else {}
    workdir, config = Path(job["workdir"]), job["config"]
    start = 0
    if "start" in job["inputs"]:
        start = json.loads((Path(job["inputs"]["start"]) / "summary.json").read_text())["count"]
    folder = workdir / "checkpoints"
    folder.mkdir(exist_ok=True)
    steps = [int(p.name) for p in folder.iterdir() if p.name.isdecimal()]
    first = max(steps, default=0)
    metrics = (workdir / "metrics.jsonl").open("a")
    for step in range(first, config["total"]):
        if plan.get("die_at") == step:
            os.kill(os.getpid(), 9)
        temp = folder / f".{step + 1}"
        temp.mkdir()
        (temp / "count").write_text(str(start + step + 1))
        temp.rename(folder / str(step + 1))
        for record in ({"step": step, "metrics": {"count": step + 1}},
                       {"progress": [step + 1, config["total"]]}):
            metrics.write(json.dumps({**record, "time": time.time()}) + "\\n")
        metrics.flush()
        time.sleep(plan.get("sleep", 0))
    summary = plan.get("summary", json.dumps({"count": start + config["total"], "unit": "steps"}))
    if summary is not None:
        (workdir / "output" / "summary.json").write_text(summary)
    (workdir / "output" / "first").write_text("always the same")
    (workdir.parent / f"started-{workdir.name}").write_text(str(first))
"""

ENTRY = """
import importlib, json
from pathlib import Path

def main(path):
    job = json.loads(Path(path).read_text())
    importlib.import_module("toy.engine." + job["stage"]).run(job)
"""


class CounterConfig(BaseModel):
    """The toy stage's config."""

    total: int = 3
    comment: str = ""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the toy trainers' package, importable by the fork server."""
    folder = tmp_path_factory.mktemp("trainers")
    (folder / "toy" / "engine").mkdir(parents=True)
    (folder / "toy" / "engine" / "counter.py").write_text(COUNTER)
    (folder / "toy" / "entry.py").write_text(ENTRY)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(folder))
        close_servers()
        yield folder
        close_servers()


@pytest.fixture
def plan(root: Path) -> Iterator[Any]:
    """Tell the toy trainer how to misbehave; forgotten afterwards."""
    path = root / "plan.json"

    def write(**values: Any) -> None:
        path.write_text(json.dumps(values))

    yield write
    path.unlink(missing_ok=True)


@pytest.fixture
def context(root: Path, tmp_path: Path) -> StageContext:
    """A context without MLflow."""
    return make_context(root, tmp_path)


def make_context(root: Path, tmp_path: Path) -> StageContext:
    """The same for another process."""
    settings = Settings.from_env({"TRIMTAB_HOME": str(tmp_path / "home")})
    trainers = Trainers("toy.engine", root, "toy.entry", None)
    store = open_store(settings.store_url)
    return StageContext(settings, store, Tracking("", ""), trainers=trainers)


def _count(context: StageContext, **options: Any) -> StageResult:
    inputs = options.pop("inputs", {})
    return run_stage(context, "counter", CounterConfig(**options), inputs)


def _started_from(context: StageContext, result: StageResult) -> int:
    work = context.settings.work
    return int((work / f"started-counter-{result.ref.key[:16]}").read_text())


def test_stage_is_computed_published_and_then_cached(context: StageContext) -> None:
    first = _count(context)
    assert (first.cached, first.summary) == (False, {"count": 3, "unit": "steps"})
    manifest = context.store.find("counter", first.ref.key)
    assert manifest is not None
    assert manifest.digest == first.ref.digest
    assert {entry.name for entry in manifest.files} == {
        "summary.json", "first", "metrics.jsonl", "trainer.log",
    }  # fmt: skip
    assert manifest.config == {"total": 3, "comment": ""}
    assert {"code", "python", "torch", "transformers"} == manifest.versions.keys()
    assert manifest.seconds > 0
    left = [path.name for path in context.settings.work.iterdir() if path.is_dir()]
    assert left == [".locks"]
    assert context.store.objects.list("checkpoints") == {}
    again = _count(context)
    assert again == dataclasses.replace(first, cached=True, seconds=0.0)


def test_inputs_are_parents_and_count_by_content(context: StageContext) -> None:
    base = _count(context, total=2)
    twin = _count(context, total=2, comment="another key, the same content")
    assert twin.ref.key != base.ref.key
    assert twin.ref.digest == base.ref.digest
    derived = _count(context, inputs={"start": base.ref})
    assert derived.summary["count"] == 5
    assert _count(context, inputs={"start": twin.ref}).cached
    manifest = context.store.find("counter", derived.ref.key)
    assert manifest is not None
    assert manifest.parents == {"start": dataclasses.asdict(base.ref)}


def test_key_depends_on_stage_config_inputs_and_code_only() -> None:
    ref = ArtifactRef("sft", "k", "d")
    arguments = ("ppo", {"lr": 0.1, "a": 1}, {"policy": ref}, "code")
    key = stage_key(*arguments)
    assert key == stage_key("ppo", {"a": 1, "lr": 0.1}, {"policy": ref}, "code")
    assert key == stage_key(*arguments[:2], {"policy": ArtifactRef("x", "y", "d")}, "code")
    others = [
        stage_key("sft", *arguments[1:]),
        stage_key("ppo", {"lr": 0.2, "a": 1}, *arguments[2:]),
        stage_key(*arguments[:2], {"policy": ArtifactRef("sft", "k", "e")}, "code"),
        stage_key(*arguments[:2], {"reference": ref}, "code"),
        stage_key(*arguments[:3], "other"),
    ]
    assert len({key, *others}) == 6


def test_changed_code_runs_again(context: StageContext, root: Path) -> None:
    path = root / "toy" / "engine" / "counter.py"
    first = _count(context)
    try:
        path.write_text(COUNTER + "\n# a comment\n")
        assert _count(context).cached
        path.write_text(COUNTER + "\nx = 1\n")
        second = _count(context)
    finally:
        path.write_text(COUNTER)
    assert not second.cached
    assert second.ref.digest == first.ref.digest


@pytest.mark.parametrize("elsewhere", [False, True])
def test_killed_trainer_continues_from_its_newest_checkpoint(
    context: StageContext, plan: Any, elsewhere: bool
) -> None:
    plan(die_at=2)
    with pytest.raises(TrainerError, match="SIGKILL"):
        _count(context, total=4)
    (workdir,) = context.settings.work.glob("counter-*")
    if elsewhere:  # another machine has the store, but not this work folder
        shutil.rmtree(workdir)
    plan()
    result = _count(context, total=4)
    assert _started_from(context, result) == 2
    assert result.summary["count"] == 4
    assert not workdir.exists()
    assert context.store.objects.list("checkpoints") == {}


_ORCHESTRATOR = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from test_stage import CounterConfig, make_context, run_stage
run_stage(make_context(Path(sys.argv[2]), Path(sys.argv[3])), "counter", CounterConfig(total=4), {})
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_killed_orchestrator_continues_when_started_again(
    context: StageContext, root: Path, tmp_path: Path, plan: Any, number: int
) -> None:
    plan(sleep=0.5)
    command = [sys.executable, "-c", _ORCHESTRATOR, str(Path(__file__).parent)]
    process = subprocess.Popen([*command, str(root), str(tmp_path)], env=child_env({}))
    while not list(context.settings.work.glob("counter-*/checkpoints/2")):
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(number)
    assert process.wait(10) == -number
    plan()
    result = _count(context, total=4)
    assert _started_from(context, result) in (2, 3)
    assert result.summary["count"] == 4


def test_corrupt_checkpoint_is_passed_over(
    context: StageContext, plan: Any, caplog: pytest.LogCaptureFixture
) -> None:
    plan(die_at=3, sleep=0.7)  # slow enough that steps 1 and 2 reach the store too
    with pytest.raises(TrainerError):
        _count(context, total=4)
    (workdir,) = context.settings.work.glob("counter-*")
    shutil.rmtree(workdir)
    store_root = Path(context.settings.store_url)
    (newest,) = store_root.glob("checkpoints/*/3/*/count")
    newest.chmod(0o644)
    newest.write_text("9")
    plan()
    with caplog.at_level(logging.WARNING):
        result = _count(context, total=4)
    assert _started_from(context, result) in (1, 2)
    assert any("passed over" in record.message for record in caplog.records)


def test_two_runners_of_one_key_compute_it_once(context: StageContext, plan: Any) -> None:
    plan(sleep=0.1)
    results: list[StageResult] = []
    threads = [threading.Thread(target=lambda: results.append(_count(context))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(result.cached for result in results) == [False, True, True]
    assert len({result.ref for result in results}) == 1


def test_no_more_trainers_at_once_than_allowed(context: StageContext, plan: Any) -> None:
    plan(sleep=0.05)
    spans: list[tuple[float, float]] = []
    narrow = dataclasses.replace(
        context, settings=dataclasses.replace(context.settings, max_parallel=1)
    )

    def run(total: int) -> None:
        result = _count(narrow, total=total)
        manifest = narrow.store.find("counter", result.ref.key)
        assert manifest is not None
        target = narrow.settings.home / f"copy{total}"
        narrow.store.materialise(manifest, target)
        lines = (target / "metrics.jsonl").read_text().splitlines()
        spans.append((json.loads(lines[0])["time"], json.loads(lines[-1])["time"]))

    threads = [threading.Thread(target=run, args=(total,)) for total in (4, 5, 6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    spans.sort()
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))


@pytest.mark.parametrize(
    ("summary", "message"),
    [
        (None, "left no readable"),
        ("{", "left no readable"),
        ("[1]", "must hold an object"),
        ('{"loss": NaN}', "loss is nan: training has diverged"),
        ('{"loss": Infinity}', "loss is inf"),
        ('{"curve": [1, 2]}', "curve must be one value"),
    ],
)
def test_unusable_output_is_never_published(
    context: StageContext, plan: Any, summary: str | None, message: str
) -> None:
    plan(summary=summary)
    with pytest.raises(StageOutputError, match=message):
        _count(context)
    assert context.store.objects.list("artifacts") == {}
    plan()
    assert not _count(context).cached


def test_input_that_is_not_in_the_store_is_named(context: StageContext) -> None:
    with pytest.raises(StageInputError, match=r"input 'start': .*key='x'.*no such artifact"):
        _count(context, inputs={"start": ArtifactRef("counter", "x", "y")})
    base = _count(context)
    with pytest.raises(StageInputError, match=f"digest {base.ref.digest}"):
        _count(context, inputs={"start": ArtifactRef("counter", base.ref.key, "y")})


def test_corrupt_input_is_named(context: StageContext) -> None:
    base = _count(context)
    (path,) = Path(context.settings.store_url).glob("artifacts/counter/*/*/first")
    path.chmod(0o644)
    path.write_text("ALWAYS the same")
    with pytest.raises(CorruptArtifactError, match="/first is corrupt"):
        _count(context, inputs={"start": base.ref})


def test_store_that_refuses_checkpoints_does_not_stop_training(
    context: StageContext, plan: Any, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError("no space")

    plan(sleep=0.4)
    monkeypatch.setattr(context.store, "save_checkpoint", refuse)
    with caplog.at_level(logging.WARNING):
        assert not _count(context).cached
    assert len([r for r in caplog.records if "not in the store yet" in r.message]) == 1


def test_progress_and_mlflow_see_the_stage(context: StageContext, plan: Any) -> None:
    reports: list[Progress] = []
    tracking = Tracking.from_settings(context.settings, "toy")
    parent = tracking.start_run("flow")
    tracked = dataclasses.replace(
        context, tracking=tracking, run_id=parent.run_id, on_progress=reports.append, seed=7
    )
    base = run_stage(tracked, "counter", CounterConfig(), {}, name="first count")
    assert reports[-1] == Progress("counter", "first count", 3, 3, {"count": 3})
    run_stage(tracked, "counter", CounterConfig(total=2), {"start": base.ref})
    run_stage(tracked, "counter", CounterConfig(), {}, name="again")
    plan(die_at=0)
    with pytest.raises(TrainerError):
        run_stage(tracked, "counter", CounterConfig(total=9), {}, name="dies")
    client = tracking._client
    query = f"tags.`mlflow.parentRunId` = '{parent.run_id}'"
    runs = {run.info.run_name: run for run in client.search_runs([tracking._experiment_id], query)}
    assert runs.keys() == {"first count", "counter", "again", "dies"}
    first = runs["first count"]
    history = client.get_metric_history(first.info.run_id, "count")
    assert [(m.step, m.value) for m in history] == [(0, 1.0), (1, 2.0), (2, 3.0)]
    assert first.data.metrics["summary/count"] == 3.0
    assert first.data.params["total"] == "3"
    assert (first.data.tags["trimtab.cached"], first.data.tags["trimtab.seed"]) == ("false", "7")
    assert runs["counter"].inputs.dataset_inputs[0].dataset.name == "start"
    assert runs["again"].data.tags["trimtab.cached"] == "true"
    assert runs["dies"].info.status == "FAILED"
