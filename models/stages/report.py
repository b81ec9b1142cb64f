"""Stage `report`: one HTML page and one scorecard from the artifacts of a run."""

from __future__ import annotations

import shutil

from trimtab.models.config.reporting import ReportConfig
from trimtab.models.reporting.kit.artifacts import Artifacts
from trimtab.models.reporting.run.page import charts_of, render
from trimtab.models.reporting.run.scorecard import assemble, summary_of
from trimtab.models.training.stage import Stage


def run(config: ReportConfig, stage: Stage) -> None:
    """Inputs: `preferences`, and by role whatever else the run made (`trimtab.models.reporting`).

    Output: report.html (self-contained), scorecard.json, plots/ (every plot of the page as SVG)
    and, where rows were refused, quarantine.jsonl with every one of them.
    """
    artifacts = Artifacts(stage.inputs)
    scorecard, curves = assemble(artifacts, config)
    charts = charts_of(artifacts, scorecard, curves)
    stage.write_json("scorecard.json", scorecard.to_json())
    stage.write_text("report.html", render(artifacts, config, scorecard, charts))
    refused = stage.inputs["preferences"] / "quarantine.jsonl"
    if refused.is_file() and refused.stat().st_size:
        shutil.copyfile(refused, stage.output / refused.name)
    stage.write_plots(
        (f"{section}_{number}", chart.svg)
        for section, drawn in charts.items()
        for number, chart in enumerate(drawn, start=1)
    )
    stage.write_summary(summary_of(scorecard))
