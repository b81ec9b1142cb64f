"""`trimtab report`: the reports of this home folder, and those an MLflow server has."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from pathlib import Path

from trimtab.flows.config.errors import CommandError, ConfigError, unknown_name
from trimtab.infra.reports import (
    AUDIT_FILES,
    PLOTS,
    REPORT_FILES,
    RUN_FILE,
    TrackedReport,
    fetch_report,
    tracked_reports,
)
from trimtab.infra.settings import Settings, hide_password

ON_THE_SERVER = "MLflow: trimtab report {name}"


def report_lines(settings: Settings) -> list[str]:
    """A line a report, the newest last: its name, when it was made, its answer, where it is.

    Where the MLflow server fails a line on stderr says so. ConfigError where there is no report.
    """
    here = {path.parent.name: path for path in _pages(settings)}
    rows = [
        (_made(path), name, _answer(path.with_name("summary.json")), str(path))
        for name, path in here.items()
    ]
    try:
        tracked = _tracked(settings)
    except CommandError as error:
        if not here:
            raise
        tracked = []
        print(f"trimtab: {error}", file=sys.stderr)
    for report in tracked:
        if report.name not in here:
            place = ON_THE_SERVER.format(name=report.name)
            rows.append((report.ended, report.name, report.answer, place))
    if not rows:
        raise ConfigError(f"no report below {_folder(settings)}; run a recipe first")
    names, answers = max(len(row[1]) for row in rows), max(len(row[2]) for row in rows)
    return [
        f"{name:<{names}}  {made.astimezone():%Y-%m-%d %H:%M}  {answer:<{answers}}  {place}"
        for made, name, answer, place in sorted(rows)
    ]


def report_page(settings: Settings, name: str | None) -> Path:
    """The page of a run's report, brought from MLflow where it is not here; by default the newest.

    ConfigError for an unknown name; CommandError where the MLflow server fails.
    """
    here = {path.parent.name: path for path in _pages(settings)}
    if name is None:
        if not here:
            raise ConfigError(f"no report below {_folder(settings)}; run a recipe first")
        return max(here.values(), key=_made)
    if name in here:
        return here[name]
    tracked = {report.name: report for report in _tracked(settings)}
    if name not in tracked:
        raise ConfigError(unknown_name("run", name, sorted({*here, *tracked})))
    folder = _folder(settings) / name
    names = (*REPORT_FILES, *AUDIT_FILES, PLOTS, RUN_FILE)
    try:
        fetch_report(settings.mlflow_uri, tracked[name], folder, names)
    except Exception as error:
        raise _failed(settings, error) from error
    return folder / "report.html"


def _folder(settings: Settings) -> Path:
    return settings.home / "reports"


def _pages(settings: Settings) -> list[Path]:
    return list(_folder(settings).glob("*/report.html"))


def _made(page: Path) -> datetime:
    return datetime.fromtimestamp(page.stat().st_mtime, UTC)


def _answer(summary: Path) -> str:
    found = json.loads(summary.read_text("utf-8")) if summary.is_file() else {}
    return str(found.get("verdict") or found.get("answer") or "")


def _tracked(settings: Settings) -> list[TrackedReport]:
    if not settings.mlflow_uri.startswith("http"):
        return []
    try:
        return tracked_reports(settings.mlflow_uri)
    except Exception as error:
        raise _failed(settings, error) from error


def _failed(settings: Settings, error: Exception) -> CommandError:
    """What MLflow says, without its login, which may be a part of the address."""
    server = hide_password(settings.mlflow_uri)
    said = str(error).replace(settings.mlflow_uri, server)
    return CommandError(f"MLflow at {server} failed: {said}")
