"""Reports that MLflow has of finished runs, over the embedded default."""

from __future__ import annotations

from pathlib import Path

import pytest

from trimtab.infra.reports import REPORT_TAG, fetch_report, tracked_reports
from trimtab.infra.settings import Settings
from trimtab.infra.tracking.mlflow_calls import EXPERIMENT
from trimtab.infra.tracking.runs import TrackedRun, Tracking


@pytest.mark.slow
def test_the_newest_finished_run_of_each_name_is_found_and_brought(tmp_path: Path) -> None:
    settings = Settings.from_env({"TRIMTAB_HOME": str(tmp_path / "home")})
    assert tracked_reports(settings.mlflow_uri) == []
    tracking = Tracking.from_settings(settings, EXPERIMENT)
    folder = tmp_path / "report"
    (folder / "plots").mkdir(parents=True)
    (folder / "plots" / "a.svg").write_text("drawn")
    (folder / "weights.bin").write_text("large")
    for text in ("first", "second"):
        (folder / "report.html").write_text(text)
        with tracking.start_run("of any name") as run:
            run.log_artifacts(folder)
            run.log(tags={"trimtab.verdict": f"{text} answer", REPORT_TAG: "mine-seed0"})
            with tracking.start_run("stage", parent=run):
                pass
    with (
        pytest.raises(ValueError, match="oops"),
        tracking.start_run("failed", tags={REPORT_TAG: "failed"}),
    ):
        raise ValueError("oops")
    (found,) = tracked_reports(settings.mlflow_uri)
    assert (found.name, found.answer, found.run_id) == ("mine-seed0", "second answer", run.run_id)
    target = tmp_path / "reports" / "mine-seed0"
    fetch_report(settings.mlflow_uri, found, target, ("report.html", "plots"))
    files = {str(path.relative_to(target)) for path in target.rglob("*") if path.is_file()}
    assert files == {"report.html", "plots/a.svg"}
    assert (target / "report.html").read_text() == "second"
    assert (target / "report.html").stat().st_mtime == found.ended.timestamp()
    assert {path.name for path in target.parent.iterdir()} == {"mine-seed0", ".mine-seed0.lock"}
    with pytest.raises(FileExistsError, match="without a report"):
        fetch_report(settings.mlflow_uri, found, target, ("report.html",))
    with pytest.raises(FileNotFoundError, match=r"has no methods\.md"):
        fetch_report(settings.mlflow_uri, found, tmp_path / "other", ("methods.md", "plots"))
    assert not (tmp_path / "other").exists()
    for name in ("..", "../home", "/etc", ".hidden", "a/b", ""):
        with tracking.start_run("hostile") as run:
            run.log(tags={REPORT_TAG: name})
    assert [report.name for report in tracked_reports(settings.mlflow_uri)] == ["mine-seed0"]


def test_a_login_in_the_address_is_not_shown() -> None:
    tracking = Tracking("http://ada:secret@mlflow:5000/path", EXPERIMENT)
    tracking.experiment_id, tracking._client = "7", object()
    page = TrackedRun(tracking, "r1").page("report.html")
    assert page == (
        "http://mlflow:5000/path/#/experiments/7/runs/r1/artifacts/report.html"
        "?workflowType=machine_learning"
    )
