"""A study's page: the answer in the first lines, then the plots, the table and the command."""

from __future__ import annotations

from collections.abc import Sequence

from trimtab.models.config.reporting import StudyConfig
from trimtab.models.reporting.kit.charts import Chart
from trimtab.models.reporting.kit.html import new_environment, stylesheet
from trimtab.models.studies.registry import TITLES, Exhibit
from trimtab.models.studies.results import (
    PRECISION,
    ExhibitResult,
    key_figures,
    precision_by_column,
)

COLOURS = {"held": "better", "in part": "unclear", "not held": "worse"}


def render(
    exhibit: Exhibit,
    finding: ExhibitResult,
    charts: Sequence[Chart],
    config: StudyConfig,
    seconds: float,
) -> str:
    """The whole page as HTML."""
    template = new_environment().get_template("study.html.j2")
    return template.render(
        exhibit=exhibit,
        finding=finding,
        config=config,
        seconds=seconds,
        paper=TITLES[exhibit.paper],
        colour=COLOURS[finding.status],
        columns=columns_of(finding),
        precision=precision_by_column(finding.table),
        precision_name=PRECISION,
        drawn=charts,
        figures=key_figures(finding.table),
        stylesheet=stylesheet("base.css"),
    )


def columns_of(finding: ExhibitResult) -> list[str]:
    """All columns that any row has, in order."""
    return list(dict.fromkeys(column for row in finding.table.values() for column in row))
