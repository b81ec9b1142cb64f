"""Reports that MLflow has of finished runs, over the embedded default."""

from __future__ import annotations

from pathlib import Path

import pytest

from trimtab.infra.settings import Settings
from trimtab.infra.tracking.mlflow_calls import EXPERIMENT
from trimtab.infra.tracking.reports import fetch_report, tracked_reports
from trimtab.infra.tracking.runs import Tracking


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
        with tracking.start_run("mine-seed0", tags={"trimtab.flow": "rlhf"}) as run:
            run.log_artifacts(folder)
            run.log(tags={"trimtab.verdict": f"{text} answer"})
            with run.child("stage"):
                pass
    with (
        pytest.raises(ValueError, match="oops"),
        tracking.start_run("failed", tags={"trimtab.flow": "rlhf"}),
    ):
        raise ValueError("oops")
    (found,) = tracked_reports(settings.mlflow_uri)
    assert (found.name, found.answer, found.run_id) == ("mine-seed0", "second answer", run.run_id)
    target = tmp_path / "reports" / "mine-seed0"
    fetch_report(settings.mlflow_uri, found.run_id, target, ("report.html", "plots"))
    files = {str(path.relative_to(target)) for path in target.rglob("*") if path.is_file()}
    assert files == {"report.html", "plots/a.svg"}
    assert (target / "report.html").read_text() == "second"
    assert [path.name for path in target.parent.iterdir()] == ["mine-seed0"]
