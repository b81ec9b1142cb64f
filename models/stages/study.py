"""Stage `study`: one table or figure of a paper, read from runs of several seeds."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import asdict
from pathlib import Path

from models.config.reporting import StudyConfig
from models.reporting.kit.artifacts import Artifacts
from models.reporting.kit.charts import Chart
from models.studies.catalogue import exhibits_of
from models.studies.drawing import draw
from models.studies.page import render
from models.studies.readers import READERS, REMARKS
from models.studies.reading import Reading, find
from models.training.progress import write_json


def run(config: StudyConfig, inputs: dict[str, Path], workdir: Path) -> None:
    """Inputs: `<seed>.<role>` for every role of every seed's run.

    Output: report.html (self-contained), scorecard.json (the finding), plots/.
    """
    (exhibit,) = exhibits_of(config.paper, config.exhibit)
    roles: dict[int, dict[str, Path]] = defaultdict(dict)
    for name, path in inputs.items():
        seed, _, role = name.partition(".")
        roles[int(seed)][role] = path
    read = READERS[exhibit.slug]
    readings = {seed: read(Artifacts(roles[seed])) for seed in config.seeds}
    finding = find(readings, REMARKS.get(exhibit.slug))
    charts = charts_of(list(readings.values()))
    seconds = sum({entry.key: entry.seconds for entry in config.lineage}.values())
    output = workdir / "output"
    card = {
        **asdict(exhibit),
        "scale": config.scale,
        "command": config.command,
        "seconds": seconds,
        **asdict(finding),
    }
    write_json(output / "scorecard.json", card)
    page = render(exhibit, finding, charts, config, seconds)
    (output / "report.html").write_text(page, encoding="utf-8")
    (output / "plots").mkdir()
    for number, chart in enumerate(charts, start=1):
        (output / "plots" / f"{exhibit.slug}_{number}.svg").write_bytes(chart.svg)
    numbers = {
        _plain(f"{row}/{column}"): cell.mean
        for row, columns in finding.table.items()
        for column, cell in columns.items()
    }
    write_json(output / "summary.json", {"status": finding.status, **numbers})


def _plain(name: str) -> str:
    """A name with the characters only that MLflow takes."""
    return re.sub(r"[^\w\-. :/]", "", name)


def charts_of(readings: list[Reading]) -> list[Chart]:
    """Each plot over all seeds."""
    first = readings[0]
    return [
        draw([reading.plots[index] for reading in readings]) for index in range(len(first.plots))
    ]
