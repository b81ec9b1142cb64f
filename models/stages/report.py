"""Stage `report`: one HTML page and one scorecard from the artifacts of a run."""

from __future__ import annotations

import shutil
from pathlib import Path

from trimtab.models.config.reporting import ReportConfig
from trimtab.models.reporting.kit.artifacts import Artifacts
from trimtab.models.reporting.run.page import charts_of, render
from trimtab.models.reporting.run.scorecard import assemble, summary_of
from trimtab.models.training.progress import write_json


def run(config: ReportConfig, inputs: dict[str, Path], workdir: Path) -> None:
    """Inputs: `preferences`, and by role whatever else the run made (see `trimtab.models.reporting.run`).

    Output: report.html (self-contained), scorecard.json, plots/ (every plot of the page as SVG)
    and, where rows were refused, quarantine.jsonl with every one of them.
    """
    artifacts = Artifacts(inputs)
    scorecard, curves = assemble(artifacts, config)
    charts = charts_of(artifacts, scorecard, curves)
    output = workdir / "output"
    write_json(output / "scorecard.json", scorecard.to_json())
    (output / "report.html").write_text(
        render(artifacts, config, scorecard, charts), encoding="utf-8"
    )
    refused = inputs["preferences"] / "quarantine.jsonl"
    if refused.is_file() and refused.stat().st_size:
        shutil.copyfile(refused, output / refused.name)
    (output / "plots").mkdir()
    for section, drawn in charts.items():
        for number, chart in enumerate(drawn, start=1):
            (output / "plots" / f"{section}_{number}.svg").write_bytes(chart.svg)
    write_json(output / "summary.json", summary_of(scorecard))
