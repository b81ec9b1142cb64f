"""Plots: what shows under the pointer, and what a plot becomes within a page."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from trimtab.models.reporting.kit.charts import MAX_HOVER_POINTS, SVG, Chart, Panel


def _titles(chart: Chart) -> list[str]:
    root = ElementTree.fromstring(chart.svg)
    return [str(title.text) for title in root.iter(f"{{{SVG}}}title")]


def test_every_bar_and_point_says_its_value() -> None:
    with Panel() as panel:
        panel.axes.barh([0, 1], [12.345, 2000.0], label="won")
        panel.axes.set_yticks([0, 1], ["first <b>", "second"])
        bars = panel.chart("Bars")
    assert _titles(bars) == ["won, first <b>: 12.35", "won, second: 2,000"]
    with Panel() as panel:
        panel.axes.errorbar([1, 2], [0.5, 0.25], yerr=[0.1, 0.1], marker="o", label="scorer")
        panel.axes.plot([1, 2], [3.0, float("nan")], marker="o")
        panel.axes.axvline(1.5)  # a mark, not a curve
        points = panel.chart("Points")
    assert _titles(points) == ["scorer: 0.5 at 1", "scorer: 0.25 at 2", "3 at 1"]


def test_of_a_long_line_some_points_say_their_value() -> None:
    with Panel() as panel:
        panel.axes.plot(range(300), range(300), label="Full")
        panel.axes.plot(range(300), range(300))  # faint, behind it
        titles = _titles(panel.chart("Line"))
    assert 10 < len(titles) <= MAX_HOVER_POINTS
    assert titles[:2] == ["Full: 0 at 0", "Full: 12 at 12"]


def test_within_a_page_a_plot_brings_no_rules_and_no_id_twice() -> None:
    with Panel() as panel:
        panel.axes.plot([1, 2], [3, 4], label="<script>alert(1)</script>")
        panel.axes.legend()
        chart = panel.chart('A "title" <b>', x="x", y="y")
    first, second = chart.inline(1), chart.inline(2)
    ids = [re.findall(r' id="([^"]+)"', each) for each in (first, second)]
    assert ids[0] and len(set(ids[0])) == len(ids[0]) and not set(ids[0]) & set(ids[1])
    for name in re.findall(r'(?:href="|url\()#([^")]+)', first):
        assert name in ids[0]
    assert not re.search(r"<style|<script|xmlns|https?:|<!--", first)
    assert 'role="img" aria-label="A &quot;title&quot; &lt;b&gt; Axes: x against y."' in first


def test_the_same_numbers_give_the_same_bytes() -> None:
    drawn = []
    for _ in range(2):
        with Panel() as panel:
            panel.axes.plot([1, 2], [3, 4], label="a")
            drawn.append(panel.chart("A title").svg)
    assert drawn[0] == drawn[1]
