"""The progress of a run in a terminal: a bar for the run, and one for each stage that runs now.

Where standard error is no terminal there are none: the log's lines say how far the run is.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from trimtab.tasks.board import Board, Running

# The first of these that a stage has is shown: what it minimises, or what is to rise.
METRICS = ("loss", "score", "reward", "accuracy")
FURTHER = ("kl", "grad_norm")
BAR_WIDTH = 24
PER_SECOND = 4


@contextmanager
def draw_live(board: Board) -> Iterator[None]:
    """Inside, the board is drawn below the log's lines, a few times a second."""
    if not sys.stderr.isatty() or os.environ.get("TERM", "dumb") == "dumb" or "CI" in os.environ:
        yield
        return
    from rich.live import Live

    console = _console_of_the_log()
    was_soft = console.soft_wrap
    board.is_live = console.soft_wrap = True  # a path stays one line, to be copied
    try:
        with Live(
            get_renderable=partial(draw, board),
            console=console,
            refresh_per_second=PER_SECOND,
            transient=True,
            redirect_stdout=sys.stdout.isatty(),
        ):
            yield
    finally:
        board.is_live, console.soft_wrap = False, was_soft


def _console_of_the_log() -> Any:
    """The console that Prefect's log is written to, so that its lines go above the board."""
    from prefect.logging.configuration import setup_logging
    from rich.console import Console

    setup_logging()  # else the flow's start does it, and makes another console
    for name in ("trimtab", "prefect", ""):
        for handler in logging.getLogger(name).handlers:
            console = getattr(handler, "console", None)
            if isinstance(console, Console):
                return console
    return Console(file=sys.stderr)


def draw(board: Board) -> Any:
    """A board as rich shows it at this moment."""
    from rich.table import Table

    table = Table.grid(padding=(0, 1))
    table.add_row("all", _bar(board.done, board.total), board.standing())
    for stage in board.running:
        table.add_row(stage.label, _bar(stage.done, stage.total), _stage_text(stage))
    return table


def _bar(done: int, total: int) -> Any:
    """A bar; one that only moves where the total is unknown. The log's console has no styles."""
    from rich.progress_bar import ProgressBar

    return ProgressBar(
        total or None,
        done,
        width=BAR_WIDTH,
        style="grey35",
        complete_style="cyan",
        finished_style="green",
        pulse_style="cyan",
    )


def _stage_text(running: Running) -> str:
    """A stage's progress and, at a glance, how it is doing."""
    count = f"{running.part} {running.done} of {running.total}".lstrip() if running.total else ""
    first = next((name for name in METRICS if name in running.metrics), None)
    shown = [name for name in (first, *FURTHER) if name is not None and name in running.metrics]
    values = [f"{name.replace('_', ' ')} {running.metrics[name]:.3g}" for name in shown]
    return "   ".join(filter(None, [count, *values]))
