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
    pages = _pages(settings)
    rows = [
        (_time(page), name, _answer(page.with_name("summary.json")), str(page))
        for name, page in pages.items()
    ]
    try:
        tracked = _tracked(settings)
    except CommandError as error:
        if not pages:
            raise
        tracked = []
        print(f"trimtab: {error}", file=sys.stderr)
    for report in tracked:
        if report.name not in pages:
            place = ON_THE_SERVER.format(name=report.name)
            rows.append((report.ended, report.name, report.answer, place))
    if not rows:
        raise ConfigError(f"no report below {_folder(settings)}; run a recipe first")
    names, answers = max(len(row[1]) for row in rows), max(len(row[2]) for row in rows)
    return [
        f"{name:<{names}}  {time.astimezone():%Y-%m-%d %H:%M}  {answer:<{answers}}  {place}"
        for time, name, answer, place in sorted(rows)
    ]


def report_page(settings: Settings, name: str | None) -> Path:
    """The page of a run's report, brought from MLflow where it is not here; by default the newest.

    ConfigError for an unknown name; CommandError where the MLflow server fails.
    """
    pages = _pages(settings)
    if name is None:
        if not pages:
            raise ConfigError(f"no report below {_folder(settings)}; run a recipe first")
        return max(pages.values(), key=_time)
    if name in pages:
        return pages[name]
    tracked = {report.name: report for report in _tracked(settings)}
    if name not in tracked:
        raise ConfigError(unknown_name("run", name, sorted({*pages, *tracked})))
    folder = _folder(settings) / name
    names = (*REPORT_FILES, *AUDIT_FILES, PLOTS, RUN_FILE)
    try:
        fetch_report(settings.mlflow_uri, tracked[name], folder, names)
    except Exception as error:
        raise _failed(settings, error) from error
    return folder / "report.html"


def _folder(settings: Settings) -> Path:
    return settings.home / "reports"


def _pages(settings: Settings) -> dict[str, Path]:
    """The pages of this home folder by the run's name."""
    return {page.parent.name: page for page in _folder(settings).glob("*/report.html")}


def _time(page: Path) -> datetime:
    return datetime.fromtimestamp(page.stat().st_mtime, UTC)


def _answer(summary: Path) -> str:
    numbers = json.loads(summary.read_text("utf-8")) if summary.is_file() else {}
    return str(numbers.get("verdict") or numbers.get("answer") or "")


def _tracked(settings: Settings) -> list[TrackedReport]:
    if not settings.mlflow_uri.startswith("http"):
        return []
    try:
        return tracked_reports(settings.mlflow_uri)
    except Exception as error:
        raise _failed(settings, error) from error


def _failed(settings: Settings, error: Exception) -> CommandError:
    """MLflow's message without the login, which may be a part of the address."""
    server = hide_password(settings.mlflow_uri)
    message = str(error).replace(settings.mlflow_uri, server)
    return CommandError(f"MLflow at {server} failed: {message}")
