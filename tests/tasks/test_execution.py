"""Running a stage: computed once, checked, published, tracked; on a toy trainer without torch."""

from __future__ import annotations

import dataclasses
import itertools
import json
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.tasks.toy_stage import CounterConfig, count
from trimtab.infra.processes.gpus import hold_gpus
from trimtab.infra.processes.launch import TrainerError
from trimtab.infra.store.manifest import CorruptArtifactError
from trimtab.infra.tracking.runs import Tracking
from trimtab.models.data.records import ArtifactRef
from trimtab.tasks import execution
from trimtab.tasks.execution import (
    StageContext,
    StageInputError,
    StageOutputError,
    StageProgress,
    StageResult,
    run_stage,
)
from trimtab.tasks.resources import Share


def test_stage_is_computed_published_and_then_cached(context: StageContext) -> None:
    first = count(context)
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
    again = count(context)
    assert again == dataclasses.replace(first, cached=True, seconds=0.0)


def test_inputs_are_parents_and_count_by_content(context: StageContext) -> None:
    base = count(context, total=2)
    twin = count(context, total=2, comment="another key, the same content")
    assert twin.ref.key != base.ref.key
    assert twin.ref.digest == base.ref.digest
    derived = count(context, inputs={"start": base.ref})
    assert derived.summary["count"] == 5
    assert count(context, inputs={"start": twin.ref}).cached
    manifest = context.store.find("counter", derived.ref.key)
    assert manifest is not None
    assert manifest.parents == {"start": dataclasses.asdict(base.ref)}


def test_two_runners_of_one_key_compute_it_once(
    context: StageContext, plan: Any, caplog: pytest.LogCaptureFixture
) -> None:
    plan(sleep=0.1)
    results: list[StageResult] = []
    threads = [threading.Thread(target=lambda: results.append(count(context))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(result.cached for result in results) == [False, True, True]
    assert len({result.ref for result in results}) == 1
    ours = [record for record in caplog.records if record.name.startswith("trimtab")]
    assert not [record for record in ours if record.levelname == "WARNING"]


@pytest.mark.slow
def test_no_more_trainers_at_once_than_allowed(context: StageContext, plan: Any) -> None:
    plan(sleep=0.05)
    spans: list[tuple[float, float]] = []
    narrow = dataclasses.replace(
        context, settings=dataclasses.replace(context.settings, max_parallel=1)
    )

    def run(total: int) -> None:
        result = count(narrow, total=total)
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
        count(context)
    assert context.store.objects.list("artifacts") == {}
    plan()
    assert not count(context).cached


@pytest.mark.parametrize("passes", [0, 1])
def test_a_fence_keeps_a_stage_from_being_computed_or_published(
    context: StageContext, passes: int
) -> None:
    passed: list[int] = []

    def fence() -> None:
        if len(passed) == passes:
            raise InterruptedError
        passed.append(1)

    with pytest.raises(InterruptedError):
        count(dataclasses.replace(context, fence=fence))
    assert context.store.objects.list("artifacts") == {}
    assert any(context.settings.work.glob("counter-*/output/*")) == bool(passes)


def test_input_that_is_not_in_the_store_is_named(context: StageContext) -> None:
    with pytest.raises(StageInputError, match=r"input 'start': .*key='x'.*no such artifact"):
        count(context, inputs={"start": ArtifactRef("counter", "x", "y")})
    base = count(context)
    with pytest.raises(StageInputError, match=f"digest {base.ref.digest}"):
        count(context, inputs={"start": ArtifactRef("counter", base.ref.key, "y")})


def test_corrupt_input_is_named(context: StageContext) -> None:
    base = count(context)
    (path,) = Path(context.settings.store_url).glob("artifacts/counter/*/*/first")
    path.chmod(0o644)
    path.write_text("ALWAYS the same")
    with pytest.raises(CorruptArtifactError, match="/first is corrupt"):
        count(context, inputs={"start": base.ref})


def test_folders_that_a_stage_does_not_read_stay_in_the_store(
    context: StageContext, tmp_path: Path
) -> None:
    (tmp_path / "made" / "model").mkdir(parents=True)
    (tmp_path / "made" / "summary.json").write_text('{"count": 2}')
    (tmp_path / "made" / "model" / "weights").write_text("heavy")
    made = context.store.publish("counter", "k", tmp_path / "made")
    (path,) = Path(context.settings.store_url).glob("artifacts/counter/k/*/model/weights")
    path.chmod(0o644)
    path.write_text("HEAVY")  # whoever brings it finds it corrupt
    inputs = {"start": ArtifactRef("counter", "k", made.digest)}
    with pytest.raises(CorruptArtifactError, match="weights is corrupt"):
        count(context, inputs=inputs)
    without = run_stage(context, "counter", CounterConfig(), inputs, without=("model",))
    assert without.summary["count"] == 5


def test_a_second_attempt_reports_each_step_once(
    context: StageContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The metrics of the attempt before lie there until a checkpoint brings its own."""
    rows = [json.dumps({"step": step, "count": step}) + "\n" for step in range(8)]
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_text("".join(rows))

    def launch(*_: object, on_report: Any, **_more: object) -> float:
        on_report()
        (tmp_path / "restored").write_text("".join(rows[:5]))
        (tmp_path / "restored").replace(metrics)
        on_report()
        with metrics.open("a") as stream:
            stream.writelines(rows[5:])
        return 0.0

    monkeypatch.setattr(execution, "launch", launch)
    reported: list[str] = []
    run: Any = SimpleNamespace(log_lines=reported.extend)
    job: Any = SimpleNamespace(workdir=tmp_path, num_threads=1)
    execution._train(context, job, tmp_path / "job.json", run)
    assert reported == [row.strip() for row in rows]


@pytest.mark.slow
def test_progress_and_mlflow_see_the_stage(context: StageContext, plan: Any) -> None:
    reports: list[StageProgress] = []
    tracking = Tracking.from_settings(context.settings, "toy")
    parent = tracking.start_run("flow")
    tracked = dataclasses.replace(
        context, tracking=tracking, parent=parent, on_progress=reports.append, seed=7
    )
    base = run_stage(tracked, "counter", CounterConfig(), {}, name="first count")
    assert reports[-1] == StageProgress(3, 3, {"count": 3})
    run_stage(tracked, "counter", CounterConfig(total=2), {"start": base.ref})
    run_stage(tracked, "counter", CounterConfig(), {}, name="again")
    plan(die_at=2)
    with pytest.raises(TrainerError):
        run_stage(tracked, "counter", CounterConfig(total=9), {}, name="dies")
    tracking.background.wait()
    client = tracking._client
    query = f"tags.`mlflow.parentRunId` = '{parent.run_id}'"
    runs = {run.info.run_name: run for run in client.search_runs([tracking.experiment_id], query)}
    assert runs.keys() == {"first count", "counter", "again", "dies"}
    first = runs["first count"]
    history = client.get_metric_history(first.info.run_id, "count")
    assert [(m.step, m.value) for m in history] == [(0, 1.0), (1, 2.0), (2, 3.0)]
    assert first.data.metrics["summary/count"] == 3.0
    assert first.data.params["total"] == "3"
    assert (first.data.tags["trimtab.cached"], first.data.tags["trimtab.seed"]) == ("false", "7")
    assert runs["counter"].inputs.dataset_inputs[0].dataset.name == "start"
    assert runs["again"].data.tags["trimtab.cached"] == "true"
    assert runs["again"].info.status == "FINISHED"
    assert runs["dies"].info.status == "FAILED"
    assert runs["dies"].data.metrics["count"] == 2.0  # the last before it died


def test_a_trainer_is_given_gpus_of_its_own(context: StageContext, plan: Any) -> None:
    with_gpus = dataclasses.replace(
        context, settings=dataclasses.replace(context.settings, gpus=("4", "7", "9"))
    )
    plan(die_at=1)
    for number, held in ((2, ["4", "7"]), (0, [])):
        config = CounterConfig(total=number + 2)
        with hold_gpus(("9",), 1, context.settings.work / ".locks"), pytest.raises(TrainerError):
            run_stage(with_gpus, "counter", config, {}, share=Share(num_devices=number))
        jobs = [json.loads(path.read_text()) for path in context.settings.work.glob("*/job.json")]
        assert [job["gpus"] for job in jobs if job["config"]["total"] == config.total] == [held]
