"""Task `report`: scorecard and HTML page of a run, and the summary Prefect shows."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from prefect import task
from prefect.artifacts import create_markdown_artifact

from infra.locks import file_lock
from infra.manifest import Manifest
from infra.storage import Store
from infra.tracking import TrackedRun
from models.report.config import LineageEntry, ReportConfig
from tasks.kinds import CPU
from tasks.perform import base_context, perform
from tasks.stage import StageResult

REQUESTS_AT_ONCE = 8
REPORT_FILES = ("report.html", "scorecard.json", "summary.json")


@task(name="report", task_run_name="report", **CPU)
def report(config: ReportConfig, artifacts: dict[str, StageResult]) -> StageResult:
    """The report over everything a run made, by role."""
    return perform("report", config, artifacts, "report", reads_weights=False)


def lineage_of(results: Mapping[str, StageResult]) -> tuple[LineageEntry, ...]:
    """What made each artifact, from the manifests; stable, so that a rerun finds its report."""
    store = base_context().store
    entries = []
    with ThreadPoolExecutor(REQUESTS_AT_ONCE) as pool:
        refs = [result.ref for result in results.values()]
        manifests = list(pool.map(lambda ref: store.find(ref.stage, ref.key), refs))
    for (role, result), manifest in zip(results.items(), manifests, strict=True):
        if manifest is None:
            raise LookupError(f"artifact {result.ref} vanished from {store.url} during the run")
        entries.append(
            LineageEntry(
                role=role,
                stage=manifest.stage,
                key=manifest.key,
                digest=manifest.digest,
                seconds=manifest.seconds,
                versions=dict(manifest.versions),
                parents=dict(manifest.parents),
            )
        )
    return tuple(entries)


def announce(
    tracked: TrackedRun, result: StageResult, results: Mapping[str, StageResult], name: str
) -> dict[str, Any]:
    """Put the report where people look: a folder, MLflow, a Prefect artifact, the console."""
    context = base_context()
    folder = context.settings.home / "reports" / name
    manifest = context.store.find(result.ref.stage, result.ref.key)
    if manifest is None:
        raise LookupError(f"the report {result.ref} vanished from {context.store.url}")
    with file_lock(folder.with_name(f".{name}.lock")):  # another run may write the same report
        _lay_out(context.store, manifest, folder)
        tracked.log_artifacts(folder)
    numbers = {k: v for k, v in result.summary.items() if isinstance(v, int | float)}
    tracked.log(metrics={key: float(value) for key, value in numbers.items()})
    cached = sum(done.cached for done in results.values())
    lines = [f"| {key} | {_shown(value)} |" for key, value in result.summary.items()]
    create_markdown_artifact(
        key="trimtab-report",
        description=f"Report: {folder / 'report.html'}; MLflow run {tracked.run_id}",
        markdown="\n".join(
            [
                f"Report: `{folder / 'report.html'}`",
                "",
                f"MLflow run: {tracked.link}. "
                f"{cached} of {len(results)} stages were found in the store.",
                "",
                "| measure | value |",
                "|---|---|",
                *lines,
            ]
        ),
    )
    print(_scorecard_text(result.summary))
    print(f"{cached} of {len(results)} stages were found in the store")
    print(f"report: {folder / 'report.html'}\nscorecard: {folder / 'scorecard.json'}")
    return {"report": str(folder / "report.html"), **json.loads(json.dumps(result.summary))}


def _lay_out(store: Store, manifest: Manifest, folder: Path) -> None:
    """Replace the report in `folder`, file by file: a page that is open there can be reloaded."""
    scratch = folder.with_name(f".{folder.name}")
    store.materialise(manifest, scratch)
    folder.mkdir(parents=True, exist_ok=True)
    for file in REPORT_FILES:
        (scratch / file).replace(folder / file)
    shutil.rmtree(folder / "plots", ignore_errors=True)
    if (scratch / "plots").is_dir():
        (scratch / "plots").replace(folder / "plots")
    shutil.rmtree(scratch)


def _scorecard_text(summary: Mapping[str, Any]) -> str:
    width = max(map(len, summary), default=0)
    return "\n".join(f"{key:<{width}}  {_shown(value)}" for key, value in summary.items())


def _shown(value: Any) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)
