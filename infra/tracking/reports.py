"""Reports that an MLflow server has, of the runs of every host that tells it of them."""

from __future__ import annotations

import shutil
from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from trimtab.infra.tracking.mlflow_calls import EXPERIMENT, new_client

MAX_REPORTS = 200


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
    found: dict[str, TrackedReport] = {}
    for run in client.search_runs(
        [experiment.experiment_id],
        "attributes.status = 'FINISHED' and tags.`trimtab.flow` != ''",
        max_results=MAX_REPORTS,
        order_by=["attributes.end_time DESC"],
    ):
        ended = datetime.fromtimestamp(run.info.end_time / 1000, UTC)
        answer = run.data.tags.get("trimtab.verdict", "")
        report = TrackedReport(run.info.run_name, ended, answer, run.info.run_id)
        found.setdefault(report.name, report)
    return list(found.values())[::-1]


def fetch_report(uri: str, run_id: str, folder: Path, names: Collection[str]) -> None:
    """Bring files and folders of a run's artifacts, those of `names`, to a new folder.

    The folder is there whole or not at all. Raises what MLflow raises.
    """
    client: Any = new_client(uri)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder.parent, prefix=".fetch-") as scratch:
        whole = Path(scratch) / "report"
        whole.mkdir()
        for each in client.list_artifacts(run_id):
            if each.path in names:
                client.download_artifacts(run_id, each.path, str(whole))
        if folder.exists():
            shutil.rmtree(folder)
        whole.replace(folder)
