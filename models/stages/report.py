"""Stage `report`: one HTML page and one scorecard from the artifacts of a run."""

from __future__ import annotations

import shutil

from trimtab.models.config.reporting import ReportConfig
from trimtab.models.reporting.kit.artifacts import Artifacts
from trimtab.models.reporting.run.page import charts_of, render
from trimtab.models.reporting.run.scorecard import assemble, summary_of
from trimtab.models.training.stage import Stage


def run(config: ReportConfig, stage: Stage) -> None:
    """Inputs: `preferences`, and every other artifact of the run under its role.

    Output: report.html (self-contained), scorecard.json, plots/ (every plot of the page as SVG)
    and, where rows were quarantined, a copy of quarantine.jsonl.
    """
    artifacts = Artifacts(stage.inputs)
    scorecard, curves = assemble(artifacts, config)
    charts = charts_of(artifacts, scorecard, curves)
    stage.write_json("scorecard.json", scorecard.to_json())
    stage.write_text("report.html", render(artifacts, config, scorecard, charts))
    quarantine = stage.inputs["preferences"] / "quarantine.jsonl"
    if quarantine.is_file() and quarantine.stat().st_size:
        shutil.copyfile(quarantine, stage.output / quarantine.name)
    stage.write_plots(
        (f"{section}_{index}", chart.svg)
        for section, section_charts in charts.items()
        for index, chart in enumerate(section_charts, start=1)
    )
    stage.write_summary(summary_of(scorecard))
