"""Stage `report`: one HTML page and one scorecard from the artifacts of a run."""

from __future__ import annotations

from pathlib import Path

from models.engine.progress import write_json
from models.report.artifacts import Artifacts
from models.report.config import ReportConfig
from models.report.page import render
from models.report.scorecard import assemble, summary_of

CONFIG = ReportConfig


def run(config: ReportConfig, inputs: dict[str, Path], workdir: Path) -> None:
    """Inputs: `preferences`, and by role whatever else the run made (see `models.report`).

    Output: report.html (self-contained), scorecard.json.
    """
    artifacts = Artifacts(inputs)
    scorecard, curves = assemble(artifacts, config)
    output = workdir / "output"
    write_json(output / "scorecard.json", scorecard.to_json())
    (output / "report.html").write_text(
        render(artifacts, config, scorecard, curves), encoding="utf-8"
    )
    write_json(output / "summary.json", summary_of(scorecard))
