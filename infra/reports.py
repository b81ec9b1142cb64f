"""Reports: in folders, one for each run's name, and those that an MLflow server has.

An MLflow server has the reports of the runs of every host that uses it: a run with a report has its
name as a tag. The server is not trusted: a name must be that of a folder, and only files of a
report are brought.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from trimtab.infra.processes.locks import file_lock
from trimtab.infra.tracking.mlflow_calls import EXPERIMENT, new_client

RUN_FILE = "run.json"
REPORT_FILES = ("report.html", "scorecard.json", "summary.json", "methods.md", "quarantine.jsonl")
AUDIT_FILES = ("audit.html", "audited.jsonl.gz", "audited.parquet")
PLOTS = "plots"
MAX_REPORTS = 200
REPORT_TAG = "trimtab.report"
_NAME = re.compile(r"[A-Za-z0-9][^/\\\0]{0,250}")


class NameTakenError(ValueError):
    """A run's name that the report of another configuration has already."""


def read_run(folder: Path) -> dict[str, Any]:
    """The content that `write_run` wrote into a report folder; empty for any other folder."""
    path = folder / RUN_FILE
    run: dict[str, Any] = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    return run


def write_run(folder: Path, run: Mapping[str, Any]) -> None:
    """Say which run's a folder is: `name`, `configuration` and `settings`, for people and compare.

    Raises NameTakenError as below.
    """
    check_owner(folder, str(run["configuration"]))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / RUN_FILE).write_text(json.dumps(run, indent=1, ensure_ascii=False), "utf-8")


def check_owner(folder: Path, configuration: str) -> None:
    """Raise NameTakenError where a folder has the report of another configuration.

    configuration: the name that a run of it has by default. A folder without the file of
    `write_run` counts by its name.
    """
    if not folder.is_dir():
        return
    owner = read_run(folder).get("configuration", folder.name)
    if owner != configuration:
        raise NameTakenError(
            f"the name {folder.name!r} is taken: {folder} has the report of {owner}, and this run "
            f"is {configuration}; give another --name, or remove that folder"
        )


@dataclass(frozen=True)
class TrackedReport:
    """A finished run with a report: name, end and verdict, and the id of MLflow's run."""

    name: str
    ended: datetime
    answer: str
    run_id: str


def tracked_reports(uri: str) -> list[TrackedReport]:
    """The finished runs of flows, the newest of each name, the newest last.

    Raises what MLflow raises.
    """
    client = new_client(uri)
    experiment = client.get_experiment_by_name(EXPERIMENT)
    if experiment is None:
        return []
    reports: dict[str, TrackedReport] = {}
    for run in client.search_runs(
        [experiment.experiment_id],
        f"attributes.status = 'FINISHED' and tags.`{REPORT_TAG}` != ''",
        max_results=MAX_REPORTS,
        order_by=["attributes.end_time DESC"],
    ):
        ended = datetime.fromtimestamp(run.info.end_time / 1000, UTC)
        name, answer = run.data.tags[REPORT_TAG], run.data.tags.get("trimtab.verdict", "")
        if _NAME.fullmatch(name):
            reports.setdefault(name, TrackedReport(name, ended, answer, run.info.run_id))
    return list(reports.values())[::-1]


def fetch_report(uri: str, report: TrackedReport, folder: Path, names: Collection[str]) -> None:
    """Bring files and folders of a run's artifacts, those of `names`, to a new folder.

    The folder is there whole, as old as the run's end, or not at all. Raises what MLflow raises,
    FileExistsError where there is something at its place, and FileNotFoundError for a run without
    the first of `names`.
    """
    client: Any = new_client(uri)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder.parent, prefix=".fetch-") as scratch:
        copy = Path(scratch) / "report"
        copy.mkdir()
        for artifact in client.list_artifacts(report.run_id):
            if artifact.path in names:
                client.download_artifacts(report.run_id, artifact.path, str(copy))
        first = copy / next(iter(names))
        if not first.is_file():
            raise FileNotFoundError(f"run {report.run_id} has no {first.name}")
        os.utime(first, (report.ended.timestamp(),) * 2)
        with file_lock(folder.with_name(f".{folder.name}.lock")):  # a run may write the same report
            if folder.exists():
                raise FileExistsError(f"{folder} is there already, without a report: remove it")
            copy.replace(folder)
