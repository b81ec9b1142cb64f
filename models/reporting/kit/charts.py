"""Drawing: one look for all plots, each turned into SVG with its values under the pointer.

Colours are Okabe and Ito's, which colour-blind readers can tell apart; lines and markers differ
too, so that a grey print still reads. Panels are small: their text stays legible on a phone.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any
from xml.etree import ElementTree

import matplotlib

matplotlib.use("Agg")

import numpy as np
from markupsafe import Markup
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.container import BarContainer, ErrorbarContainer
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter

from trimtab.models.config.arms import ARMS, Style
from trimtab.models.statistics.measured import Interval

BLUE, ORANGE, GREEN, RED = "#0072B2", "#E69F00", "#009E73", "#D55E00"
PURPLE, SKY, GREY, LIGHT, BLACK = "#CC79A7", "#56B4E9", "#666666", "#BBBBBB", "#222222"
# Colour, line style and marker of the n-th curve or group.
STYLES = (
    (RED, "-", "o"),
    (ORANGE, "--", "s"),
    (SKY, "-.", "^"),
    (BLUE, "-", "D"),
    (GREEN, ":", "v"),
    (PURPLE, "--", "P"),
    (BLACK, "-.", "X"),
    (GREY, ":", "*"),
)
LOOK: Any = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GREY,
    "axes.labelcolor": BLACK,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e5e5e5",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "lines.linewidth": 1.6,
    "svg.hashsalt": "trimtab",
    "figure.constrained_layout.use": True,
}
WIDTH, HEIGHT = 4.8, 3.3
# Colour, line style and marker of a policy, the same in every plot.
POLICY_STYLES: dict[str, Style] = {
    "sft": (BLACK, "-", "*"),
    "round_2": ("#882255", "--", "D"),
    "round_3": ("#999933", "-.", "P"),
    "round_4": ("#332288", ":", "X"),
    **{name: arm.style for name, arm in ARMS.items()},
}
OTHER_POLICY = (GREY, "-.", "h")
# Of a line at most so many points have a value that shows under the pointer.
MAX_HOVER_POINTS = 25
SVG = "http://www.w3.org/2000/svg"
XLINK = "http://www.w3.org/1999/xlink"


@dataclass(frozen=True)
class Chart:
    """A drawn plot: title says what is seen, note how to read it."""

    title: str
    note: str
    svg: bytes
    alt: str

    def inline(self, number: int) -> Markup:
        """The plot as an element of a page: unlike an image it shows values under the pointer.

        Its rules of style would hold for the whole page, and its ids be there twice: the rules
        become the element's own, and ids begin with the plot's number on the page.
        """
        root = ElementTree.fromstring(self.svg)
        prefix = f"plot{number}-"
        for element in root.iter():
            element.tag = element.tag.rpartition("}")[2]  # HTML knows no name spaces
            for name, value in list(element.attrib.items()):
                if name == "id":
                    element.set(name, prefix + value)
                elif name == f"{{{XLINK}}}href":
                    element.set("href", f"#{prefix}{value[1:]}")
                    del element.attrib[name]
                else:
                    element.set(name, value.replace("url(#", f"url(#{prefix}"))
        for definitions in root.iter("defs"):
            for rules in definitions.findall("style"):
                definitions.remove(rules)
        root.set("style", "stroke-linejoin: round; stroke-linecap: butt")
        root.set("role", "img")
        root.set("aria-label", self.alt)
        return Markup(ElementTree.tostring(root, encoding="unicode"))


class Panel:
    """A figure of one axes, to be used as a context: its look holds inside, `chart` ends it."""

    def __init__(self, height: float = HEIGHT, width: float = WIDTH) -> None:
        self._size, self._look = (width, height), rc_context(LOOK)

    def __enter__(self) -> Panel:
        self._look.__enter__()
        self.figure = Figure(figsize=self._size)
        self.axes: Axes = self.figure.subplots()
        return self

    def __exit__(self, *details: Any) -> None:
        self._look.__exit__(*details)

    def errorbars(
        self, x: Sequence[float], measured: Sequence[Interval], scale: float = 1, **look: Any
    ) -> None:
        """Values with their intervals, each times `scale`."""
        values = [scale * interval.value for interval in measured]
        below = [scale * (interval.value - interval.low) for interval in measured]
        above = [scale * (interval.high - interval.value) for interval in measured]
        self.axes.errorbar(x, values, [below, above], **look)

    def stacked_bars(
        self,
        places: Sequence[int],
        parts: Iterable[tuple[Sequence[float], str, str, str]],
        **look: Any,
    ) -> list[list[float]]:
        """Flat bars of lengths, colour, hatch and label, each part right of those before it.

        Returns where each part's bars begin.
        """
        starts, left = [], [0.0] * len(places)
        for lengths, colour, hatch, label in parts:
            self.axes.barh(
                places, lengths, left=left, color=colour, hatch=hatch, edgecolor="white",
                label=label, **look,
            )  # fmt: skip
            starts.append(left)
            left = [start + length for start, length in zip(left, lengths, strict=True)]
        return starts

    def chart(self, title: str, note: str = "", x: str = "", y: str = "") -> Chart:
        """Label the axes and draw; x and y are what the axes show, with units."""
        self.axes.set_xlabel(x)
        self.axes.set_ylabel(y)
        values = _hover_values(self.axes)
        stream = io.BytesIO()
        # `savefig` would lay out and draw all twice. No date and no creator: the same numbers give
        # the same bytes.
        canvas = FigureCanvasSVG(self.figure)
        canvas.print_svg(stream, metadata={"Date": None, "Creator": None})
        alt = f"{title} Axes: {x} against {y}." if x and y else title
        return Chart(title, note, _with_titles(stream.getvalue(), values), alt)


def style(index: int) -> tuple[str, str, str]:
    """Colour, line style and marker of the n-th series; colours come again with others of these."""
    turn, count = index // len(STYLES), len(STYLES)
    line, marker = STYLES[(index + turn) % count][1], STYLES[(index + 3 * turn) % count][2]
    return STYLES[index % count][0], line, marker


def policy_style(name: str) -> tuple[str, str, str]:
    """Colour, line style and marker of a policy."""
    if name.startswith("round_"):  # after the fourth the styles begin again
        name = f"round_{2 + (int(name.removeprefix('round_')) - 2) % 3}"
    return POLICY_STYLES.get(name, OTHER_POLICY)


def _hover_values(axes: Axes) -> dict[str, list[str]]:
    """What to show under the pointer, by the id of a group of the SVG: a text for each shape.

    Bars show their length; lines get invisible points on them, as a line has no place to rest on.
    """
    texts: dict[str, list[str]] = {}
    lines: list[tuple[Line2D, object]] = []
    for container in axes.containers:
        if isinstance(container, BarContainer):
            for bar, words in zip(container.patches, _bar_texts(axes, container), strict=True):
                bar.set_gid(f"value-{len(texts)}")
                texts[str(bar.get_gid())] = [words]
        elif isinstance(container, ErrorbarContainer) and container[0] is not None:
            lines.append((container[0], container.get_label()))
    of_containers = {id(line) for line, _ in lines}
    for line in axes.lines:
        has_marker = str(line.get_marker()) not in ("None", "", " ")
        is_named = not str(line.get_label()).startswith("_")
        if id(line) not in of_containers and (has_marker or is_named):
            lines.append((line, line.get_label()))
    for line, label in lines:
        if line.get_transform() != axes.transData:
            continue  # spans the axes: a mark, not a curve
        x, y = np.asarray(line.get_xydata(), dtype=float).T
        every = max(1, -(-len(x) // MAX_HOVER_POINTS))
        shown = [at for at in range(0, len(x), every) if isfinite(x[at]) and isfinite(y[at])]
        points = axes.scatter(x[shown], y[shown], s=70, alpha=0.0, linewidths=0, zorder=9)
        points.set_gid(f"value-{len(texts)}")
        name = "" if str(label).startswith("_") else f"{label}: "
        texts[str(points.get_gid())] = [
            f"{name}{_read(axes.yaxis, y[at])} at {_read(axes.xaxis, x[at])}" for at in shown
        ]
    return texts


def _bar_texts(axes: Axes, bars: BarContainer) -> list[str]:
    label = str(bars.get_label())
    name = "" if label.startswith("_") else f"{label}, "
    is_flat = bars.orientation == "horizontal"
    axis = axes.yaxis if is_flat else axes.xaxis
    texts = []
    for bar in bars.patches:
        x, y, width, height = bar.get_x(), bar.get_y(), bar.get_width(), bar.get_height()
        place, length = (y + height / 2, width) if is_flat else (x + width / 2, height)
        texts.append(f"{name}{_read(axis, place)}: {_number(length)}")
    return texts


def _read(axis: Axis, value: float) -> str:
    """A value as its axis says it: the name of a category, else a number."""
    formatter = axis.get_major_formatter()
    # Where ticks have labels, that is a function of their places.
    name = formatter(value) if isinstance(formatter, FuncFormatter) else ""
    return name or _number(value)


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _with_titles(svg: bytes, values: Mapping[str, Sequence[str]]) -> bytes:
    """The SVG with a title in each shape that has a value: browsers show it under the pointer.

    The groups that matplotlib numbers lose their ids, which nothing refers to.
    """
    ElementTree.register_namespace("", SVG)
    ElementTree.register_namespace("xlink", XLINK)
    root = ElementTree.fromstring(svg)
    for metadata in root.findall(f"{{{SVG}}}metadata"):
        root.remove(metadata)
    for group in root.iter(f"{{{SVG}}}g"):
        texts = values.get(group.attrib.pop("id", ""), ())
        if not texts:
            continue
        uses = list(group.iter(f"{{{SVG}}}use"))
        shapes = uses or list(group.iter(f"{{{SVG}}}path"))
        # A point outside of the picture is not drawn.
        for shape, text in zip(shapes, texts, strict=True) if len(shapes) == len(texts) else ():
            ElementTree.SubElement(shape, f"{{{SVG}}}title").text = text
    return ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)


def smooth(values: Sequence[float], width: int = 5) -> list[float]:
    """Centred moving average, narrower at the ends."""
    half = width // 2
    parts = [values[max(0, index - half) : index + half + 1] for index in range(len(values))]
    return [sum(part) / len(part) for part in parts]
