"""Stage `study`: one table or figure of a paper, read from runs of several seeds."""

from __future__ import annotations

import re
from dataclasses import asdict

from trimtab.models.config.reporting import StudyConfig
from trimtab.models.reporting.kit.charts import Chart
from trimtab.models.reporting.kit.html import render_page
from trimtab.models.studies import (  # noqa: F401  (they register their readers)
    advantage_model,
    constants,
    dpo_losses,
    frontier,
    human_votes,
    label_noise,
    part_one,
    part_two,
    rehearsal,
    rlaif,
    rounds,
)
from trimtab.models.studies.measures import SeedRun
from trimtab.models.studies.plots import draw
from trimtab.models.studies.registry import READERS, TITLES, Exhibit, exhibits_of
from trimtab.models.studies.results import (
    PRECISION,
    ExhibitResult,
    columns_of,
    combine_seeds,
    key_figures,
    precision_by_column,
)
from trimtab.models.training.stage import Stage

# By the status of a claim.
COLOURS = {"held": "better", "in part": "unclear", "not held": "worse", "cannot tell": "unclear"}


def run(config: StudyConfig, stage: Stage) -> None:
    """Inputs: `<seed>.<role>` for every role of every seed's run.

    Output: report.html (self-contained), scorecard.json (the result over seeds), plots/.
    """
    (exhibit,) = exhibits_of(config.paper, config.exhibit)
    reader = READERS[exhibit.slug]
    roles = stage.roles_by_seed()
    results = {seed: reader.read(SeedRun(roles[seed])) for seed in config.seeds}
    combined = combine_seeds(results, reader.remark)
    plots_by_seed = (result.plots for result in results.values())
    charts = [draw(plots) for plots in zip(*plots_by_seed, strict=True)]
    seconds = sum({entry.key: entry.seconds for entry in config.lineage}.values())
    card = {
        **exhibit.description,
        "scale": config.scale,
        "command": config.command,
        "seconds": seconds,
        "world_version": config.world_version,
        **asdict(combined),
    }
    stage.write_json("scorecard.json", card)
    stage.write_text("report.html", _page(exhibit, combined, charts, config, seconds))
    stage.write_plots(
        (f"{exhibit.slug}_{number}", chart.svg) for number, chart in enumerate(charts, start=1)
    )
    # MLflow takes these characters only.
    numbers = {
        re.sub(r"[^\w\-. :/]", "", f"{row}/{column}"): cell.mean
        for row, columns in combined.table.items()
        for column, cell in columns.items()
    }
    stage.write_summary({"status": combined.status, **numbers})


def _page(
    exhibit: Exhibit,
    finding: ExhibitResult,
    charts: list[Chart],
    config: StudyConfig,
    seconds: float,
) -> str:
    """The page as HTML."""
    return render_page(
        "study.html.j2",
        {},
        exhibit=exhibit,
        finding=finding,
        config=config,
        seconds=seconds,
        paper=TITLES[exhibit.paper],
        colour=COLOURS[finding.status],
        columns=columns_of(finding.table),
        precision=precision_by_column(finding.table),
        precision_name=PRECISION,
        drawn=charts,
        figures=key_figures(finding.table),
    )
