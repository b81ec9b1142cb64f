"""A study's page: the answer in the first lines, then the plots, the table and the command."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from models.config.reporting import StudyConfig
from models.reporting.kit.charts import Chart
from models.reporting.kit.html import new_environment
from models.reporting.kit.stylesheet import STYLESHEET
from models.reporting.run.template import MACROS
from models.studies.registry import TITLES, Exhibit
from models.studies.results import ExhibitResult, key_figures

COLOURS = {"held": "better", "in part": "unclear", "not held": "worse"}

PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<title>{{ exhibit.title }} · {{ paper }}</title><style>{{ stylesheet }}</style></head><body>
{% from "macros" import charts %}
<header><h1>{{ exhibit.title }} · {{ paper }}</h1>
<div class="meta">{{ exhibit.shows }} · scale {{ config.scale }},
{% if finding.seeds|length == 1 %}seed{% else %}seeds{% endif %} {{ finding.seeds|join(', ') }} ·
{{ '{:,.0f}'.format(seconds) }} s of work</div></header>
<div class="verdict {{ colour }}"><strong>{{ finding.status|capitalize }}: {{ exhibit.claim }}.
</strong>
{% if finding.remark %}<p>{{ finding.remark|tidy }}</p>{% endif %}
{% if exhibit.printed %}<p>The paper: {{ exhibit.printed }}.</p>{% endif %}
<p>Here: {{ figures|tidy }}.</p></div>
<div class="scroll"><table><tr><th>Part of the claim</th><th>Seeds that show it</th></tr>
{% for words, seen in finding.checks.items() %}
<tr><td>{{ words }}</td><td class="n">{{ seen|select|list|length }} of {{ seen|length }}</td></tr>
{% endfor %}</table></div>
{{ charts(drawn) }}
<h2>Figures</h2>
<p class="note">{% if finding.seeds|length > 1 %}Mean ± standard deviation over seeds.
{% else %}One seed: nothing can be said of the spread.{% endif %}</p>
<div class="scroll"><table><tr><th></th>
{% for column in columns %}<th>{{ column }}</th>{% endfor %}</tr>
{% for row, cells in finding.table.items() %}
<tr><td>{{ row }}</td>{% for column in columns %}
<td class="n">{{ (cells.get(column, '')|string)|tidy }}</td>{% endfor %}</tr>
{% endfor %}</table></div>
{% if config.command %}<h2>Run it again</h2><pre>{{ config.command }}</pre>{% endif %}
</body></html>
"""


def render(
    exhibit: Exhibit,
    finding: ExhibitResult,
    charts: Sequence[Chart],
    config: StudyConfig,
    seconds: float,
) -> str:
    """The whole page as HTML."""
    environment = new_environment({"page": PAGE, "macros": MACROS})
    return environment.get_template("page").render(
        exhibit=exhibit,
        finding=finding,
        config=config,
        seconds=seconds,
        paper=TITLES[exhibit.paper],
        colour=COLOURS[finding.status],
        columns=columns_of(finding),
        drawn=charts,
        figures=key_figures(finding.table),
        stylesheet=Markup(STYLESHEET),
    )


def columns_of(finding: ExhibitResult) -> list[str]:
    """All columns that any row has, in order."""
    return list(dict.fromkeys(column for row in finding.table.values() for column in row))
