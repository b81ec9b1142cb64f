"""Drawing: one look for all plots, each turned into an inline SVG image.

Colours are Okabe and Ito's, which colour-blind readers can tell apart; lines and markers differ
too, so that a grey print still reads. Panels are small: their text stays legible on a phone.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib

matplotlib.use("Agg")

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

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


@dataclass(frozen=True)
class Chart:
    """A drawn plot: title says what is seen, note how to read it."""

    title: str
    note: str
    svg: bytes
    alt: str

    @property
    def source(self) -> str:
        """The plot as a data: address."""
        return f"data:image/svg+xml;base64,{base64.b64encode(self.svg).decode('ascii')}"


class Panel:
    """A figure of one axes, to be used as a context: its look holds inside, `chart` ends it."""

    def __init__(self, height: float = HEIGHT, width: float = WIDTH) -> None:
        self._size = (width, height)
        self._context = rc_context(LOOK)

    def __enter__(self) -> Panel:
        self._context.__enter__()
        self.figure = Figure(figsize=self._size)
        self.axes: Axes = self.figure.subplots()
        return self

    def __exit__(self, *details: Any) -> None:
        self._context.__exit__(*details)

    def chart(self, title: str, note: str = "", x: str = "", y: str = "") -> Chart:
        """Label the axes and draw; x and y are what the axes show, with units."""
        self.axes.set_xlabel(x)
        self.axes.set_ylabel(y)
        stream = io.BytesIO()
        # `savefig` would lay out and draw all twice. No date and no creator: the same numbers give
        # the same bytes.
        canvas = FigureCanvasSVG(self.figure)
        canvas.print_svg(stream, metadata={"Date": None, "Creator": None})
        alt = f"{title} Axes: {x} against {y}." if x and y else title
        return Chart(title, note, stream.getvalue(), alt)


def style(index: int) -> tuple[str, str, str]:
    """Colour, line style and marker of the n-th series."""
    return STYLES[index % len(STYLES)]


def smooth(values: Sequence[float], width: int = 5) -> list[float]:
    """Centred moving average, narrower at the ends."""
    half = width // 2
    result = []
    for index in range(len(values)):
        part = values[max(0, index - half) : index + half + 1]
        result.append(sum(part) / len(part))
    return result
