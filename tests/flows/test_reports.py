"""`trimtab report`: what is here, and what an MLflow server has."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from trimtab.flows.cli import reports
from trimtab.flows.cli.reports import report_lines, report_page
from trimtab.flows.config.errors import CommandError, ConfigError
from trimtab.infra.reports import TrackedReport
from trimtab.infra.settings import Settings


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """A home with the report of one run."""
    folder = tmp_path / "reports" / "mine-seed0"
    folder.mkdir(parents=True)
    (folder / "report.html").write_text("page")
    (folder / "summary.json").write_text('{"verdict": "better"}')
    os.utime(folder / "report.html", (1e9, 1e9))
    variables = {"TRIMTAB_HOME": str(tmp_path), "MLFLOW_TRACKING_URI": "http://mlflow"}
    return Settings.from_env(variables)


def _server(monkeypatch: pytest.MonkeyPatch, *names: str) -> list[str]:
    """An MLflow server with runs of these names; gives the ids of those that are fetched."""
    fetched: list[str] = []
    ended = datetime(2026, 1, 2, tzinfo=UTC)

    def fetch(uri: str, report: TrackedReport, folder: Path, names: Collection[str]) -> None:
        fetched.append(report.run_id)
        folder.mkdir(parents=True)
        (folder / "report.html").write_text(f"fetched from {uri}")
        assert {"audit.html", "run.json", "scorecard.json", "plots"} <= set(names)

    known = [TrackedReport(name, ended, "not shown", f"id-{name}") for name in names]
    monkeypatch.setattr(reports, "tracked_reports", lambda uri: known)
    monkeypatch.setattr(reports, "fetch_report", fetch)
    return fetched


def test_reports_here_and_of_the_server_are_listed(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    _server(monkeypatch, "mine-seed0", "other-seed1")
    here, there = report_lines(settings)
    assert here.split() == [
        "mine-seed0", *here.split()[1:3], "better",
        str(settings.home / "reports" / "mine-seed0" / "report.html"),
    ]  # fmt: skip
    assert here.split()[1].startswith("2001-09-")
    assert "not shown" in there and there.endswith("MLflow: trimtab report other-seed1")


def test_a_report_is_brought_once(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    fetched = _server(monkeypatch, "mine-seed0", "other-seed1")
    for _ in range(2):
        page = report_page(settings, "other-seed1")
        assert page.read_text() == "fetched from http://mlflow"
    assert fetched == ["id-other-seed1"]
    assert report_page(settings, "mine-seed0").read_text() == "page"
    assert report_page(settings, None) == page  # the newest here
    with pytest.raises(ConfigError, match="unknown run 'other-seed2' .did you mean 'other-seed1'"):
        report_page(settings, "other-seed2")


def test_where_the_server_fails_that_is_said(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(uri: str) -> list[TrackedReport]:
        raise OSError(f"{uri} refused")

    monkeypatch.setattr(reports, "tracked_reports", fail)
    elsewhere = replace(settings, mlflow_uri="http://ada:secret@mlflow")
    said = "MLflow at http://mlflow failed: http://mlflow refused"
    assert len(report_lines(elsewhere)) == 1
    assert capsys.readouterr().err == f"trimtab: {said}\n"
    with pytest.raises(CommandError, match=said):
        report_page(elsewhere, "other")
    assert report_page(settings, "mine-seed0").is_file()  # asks no server
    (settings.home / "reports" / "mine-seed0" / "report.html").unlink()
    with pytest.raises(CommandError, match=said):
        report_lines(elsewhere)
