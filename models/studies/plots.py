"""Plots of several seeds in one: the mean, and a band from the lowest seed to the highest."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from textwrap import fill
from typing import Any

from trimtab.models.reporting.kit.charts import (
    BLUE,
    GREY,
    HEIGHT,
    LIGHT,
    ORANGE,
    RED,
    Chart,
    Panel,
    style,
)
from trimtab.models.studies.results import Plot

# As in a run's own report.
OUTCOMES = {"win": BLUE, "tie": LIGHT, "lose": ORANGE}
# Scatter plots overlap, so they use two colours that differ more than neighbours in style().
POINTS = (BLUE, RED)
# Height and width of a "paths" panel: it has many entries, so its legend goes below the axes.
PATHS = (5.6, 6.2)
# Characters that fit into one row of a legend, and those that an entry's line sample takes.
LEGEND_WIDTH, SWATCH = 72, 8
LEGEND_ROW, LEGEND_ROWS = 0.17, 4  # inches of a legend's row, and rows that a panel has room for
LABEL_WIDTH = 36  # characters of a vertical axis' label in a row
# Bars whose names do not fit beside one another lie: inches of a bar, of a name's row, of the rest.
FLAT_BAR, FLAT_ROW, FLAT_REST, FLAT_WIDTH = 0.14, 0.16, 1.2, 6.2


def draw(plots: Sequence[Plot]) -> Chart:
    """The same plot of each seed as one chart. Points are those of the first seed.

    Curves end where the shortest seed's does: a policy may have been stopped.
    """
    first, tick_width = plots[0], 0
    if first.ticks:
        tick_width = LEGEND_WIDTH // len(first.ticks) - 2
    longest = max((len(word) for tick in first.ticks for word in tick.split()), default=0)
    if first.kind == "bars" and longest > tick_width:
        return _draw_flat(plots)
    columns = _legend_columns(list(first.series))
    taller = LEGEND_ROW * max(0, -(-len(first.series) // columns) - LEGEND_ROWS)
    with Panel(*(PATHS if first.kind == "paths" else (HEIGHT + taller,))) as panel:
        for index, name in enumerate(first.series):
            DRAWERS[first.kind](panel, index, name, plots)
        if first.ticks:
            ticks = [fill(tick, tick_width, break_long_words=False) for tick in first.ticks]
            panel.axes.set_xticks(next(iter(first.series.values()))[0], ticks, fontsize=8)
        if first.kind == "paths":
            # Wide as the points: of one seed that went far the whisker may leave the panel.
            means = [fmean(x) for name in first.series for x in zip(*_at(plots, name), strict=True)]
            panel.axes.set_xlim(right=max(means) + 0.05 * (max(means) - min(means)))
            panel.figure.legend(loc="outside lower center", ncols=2, fontsize=8)
        elif len(first.series) > 1:  # above the axes: inside it would hide what it names
            panel.axes.legend(
                loc="lower left", bbox_to_anchor=(-0.05, 1.0), ncols=columns, fontsize=8
            )
        y = "\n".join(fill(line, LABEL_WIDTH) for line in first.y.splitlines())
        return panel.chart(first.title, _note(first, len(plots)), first.x, y)


def _draw_flat(plots: Sequence[Plot]) -> Chart:
    """Bars from left to right, the first group on top."""
    first = plots[0]
    ticks = [fill(tick, LABEL_WIDTH) for tick in first.ticks]
    rows = sum(max(FLAT_BAR * len(first.series), FLAT_ROW * (1 + t.count("\n"))) for t in ticks)
    with Panel(FLAT_REST + rows + 0.1 * len(ticks), FLAT_WIDTH) as panel:
        for index, name in enumerate(first.series):
            _bars(panel, index, name, plots, is_flat=True)
        panel.axes.set_yticks(next(iter(first.series.values()))[0], ticks, fontsize=8)
        panel.axes.invert_yaxis()
        panel.axes.margins(y=0.02)
        if len(first.series) > 1:
            columns = _legend_columns(list(first.series))
            panel.figure.legend(loc="outside upper left", ncols=columns, fontsize=8)
        return panel.chart(first.title, _note(first, len(plots)), first.y, first.x)


def _legend_columns(names: Sequence[str]) -> int:
    """As many columns as a panel is wide enough for: 3 of three names at most, else 2."""
    widest = max(map(len, names)) + SWATCH
    most = 3 if len(names) == 3 else 2
    return next((n for n in range(most, 1, -1) if n * widest <= LEGEND_WIDTH), 1)


def _join_seeds(plots: Sequence[Plot], name: str) -> tuple[list[float], list[list[float]]]:
    """Positions along x, and at each the values of all seeds."""
    values = [plot.series[name][1] for plot in plots]
    count = min(map(len, values))
    columns = [[seed[index] for seed in values] for index in range(count)]
    return plots[0].series[name][0][:count], columns


def _line(panel: Panel, index: int, name: str, plots: Sequence[Plot]) -> None:
    colour, line, _ = style(index)
    x, columns = _join_seeds(plots, name)
    panel.axes.plot(x, [fmean(values) for values in columns], line, color=colour, label=name)
    if len(plots) > 1:
        low, high = ([edge(values) for values in columns] for edge in (min, max))
        panel.axes.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)


def _at(plots: Sequence[Plot], name: str) -> list[list[float]]:
    """Each seed's positions along x."""
    return [plot.series[name][0] for plot in plots]


def _path(panel: Panel, index: int, name: str, plots: Sequence[Plot]) -> None:
    """Means over seeds of both coordinates, in the order of the settings, with whiskers."""
    colour, line, marker = style(index)
    points = [plot.series[name] for plot in plots]
    xs, ys = (list(zip(*(point[side] for point in points), strict=True)) for side in (0, 1))
    (x, x_ends), (y, y_ends) = _whiskers(xs), _whiskers(ys)
    panel.axes.errorbar(
        x, y, y_ends, x_ends, marker + line, color=colour, elinewidth=0.8, markersize=7,
        markeredgecolor="white", markeredgewidth=0.6, label=name,
    )  # fmt: skip


def _bars(
    panel: Panel, index: int, name: str, plots: Sequence[Plot], is_flat: bool = False
) -> None:
    count = len(plots[0].series)
    x, columns = _join_seeds(plots, name)
    width = 0.8 / count * (min(b - a for a, b in zip(x, x[1:], strict=False)) if x[1:] else 1.0)
    centres = [position + (index - (count - 1) / 2) * width for position in x]
    means, ends = _whiskers(columns)
    colour = OUTCOMES.get(name, style(index)[0])
    draw_bars = panel.axes.barh if is_flat else panel.axes.bar
    draw_bars(centres, means, width, color=colour, label=name)
    if len(plots) > 1:
        look: dict[str, Any] = {"fmt": "none", "ecolor": GREY, "capsize": 2, "linewidth": 1}
        if is_flat:
            panel.axes.errorbar(means, centres, xerr=ends, **look)
        else:
            panel.axes.errorbar(centres, means, yerr=ends, **look)


def _whiskers(columns: Sequence[Sequence[float]]) -> tuple[list[float], list[list[float]]]:
    """Means over seeds, and how far below and above them the lowest and the highest are."""
    means = [fmean(values) for values in columns]
    ends = [
        [abs(edge(values) - mean) for mean, values in zip(means, columns, strict=True)]
        for edge in (min, max)
    ]
    return means, ends


def _points(panel: Panel, index: int, name: str, plots: Sequence[Plot]) -> None:
    (*_, marker), colour = style(index), POINTS[index % len(POINTS)]
    x, y = plots[0].series[name]
    panel.axes.scatter(x, y, s=9, color=colour, marker=marker, alpha=0.6, label=name)


DRAWERS = {"lines": _line, "bars": _bars, "points": _points, "paths": _path}


def _note(plot: Plot, num_seeds: int) -> str:
    if num_seeds == 1:
        return plot.note
    aggregation = {
        "lines": f"Mean of {num_seeds} seeds; the band reaches from the lowest to the highest.",
        "bars": f"Mean of {num_seeds} seeds; the whiskers reach from the lowest to the highest.",
        "points": "The first seed.",
        "paths": f"Mean of {num_seeds} seeds; whiskers reach from the lowest to the highest.",
    }
    return f"{plot.note} {aggregation[plot.kind]}".strip()
