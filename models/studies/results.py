"""What runs show of an exhibit: the result of one seed, and of several seeds together."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Literal, NamedTuple

# Whether a run shows a part of a claim; None: it cannot tell.
Verdict = bool | None
Status = Literal["held", "in part", "not held", "cannot tell"]
MAX_FIGURES = 4
NO_WIDTH = 1e-12
# The last row of a table.
PRECISION = "half-width of a difference of two rows"


# By row and column; one that is read only.
Rows = dict[str, dict[str, float]]
Table = Mapping[str, Mapping[str, float]]
# By position along x what is measured there: KL, nats, and what is gained, a point a setting.
Line = tuple[list[float], list[float]]


@dataclass(frozen=True)
class Plot:
    """Curves, bars, points or paths; the axes are labelled with units.

    series: by name, positions along x and the values there. Bars, and series that `ticks` names,
    have the same positions. A path's positions are measured too, and differ between seeds.
    """

    title: str
    x: str
    y: str
    series: Mapping[str, Line]
    kind: Literal["lines", "bars", "points", "paths"] = "lines"
    note: str = ""
    ticks: tuple[str, ...] = ()


def bar_plot(
    title: str, x: str, y: str, table: Table, columns: Mapping[str, str] | Sequence[str]
) -> Plot:
    """A group of bars a row of a table, in it a bar of each column; by their names in the plot."""
    names = columns if isinstance(columns, Mapping) else {column: column for column in columns}
    bars = {
        name: line_at(range(len(table)), table.values(), column) for name, column in names.items()
    }
    return Plot(title, x, y, bars, kind="bars", ticks=tuple(table))


def line_at(positions: Iterable[float], rows: Iterable[Mapping[str, float]], column: str) -> Line:
    """The line of one column of rows, a row a position."""
    return [float(position) for position in positions], [row[column] for row in rows]


def line_of(rows: Iterable[Mapping[str, float]], x: str, y: str) -> Line:
    """The line of one column of rows by another."""
    points = [(row[x], row[y]) for row in rows]
    return [at for at, _ in points], [value for _, value in points]


class Effect(NamedTuple):
    """A difference that a part of a claim is about, in the unit of what is compared.

    measured: positive on the claim's side. least: the smallest that the claim means.
    """

    measured: float
    least: float


@dataclass(frozen=True)
class SeedResult:
    """The result of one seed's run.

    table: row to column to value. checks: each part of the paper's claim, in words, and whether
    this run shows it. plots: each of the same title in every seed. effects: what parts of the
    claim are about, where it may be less than seeds differ by.
    """

    table: Rows
    checks: Mapping[str, Verdict]
    plots: list[Plot] = field(default_factory=list)
    effects: Mapping[str, Effect] = field(default_factory=dict)


@dataclass(frozen=True)
class Cell:
    """A figure over seeds: mean, standard deviation (divided by seeds - 1; 0 of one seed)."""

    mean: float
    std: float
    values: list[float]

    def __str__(self) -> str:
        spread = f" ± {self.std:.3f}" if len(self.values) > 1 else ""
        return f"{self.mean:.3f}{spread}"


@dataclass(frozen=True)
class ExhibitResult:
    """The result of all seeds together.

    checks: each part of the claim, and by seed whether it shows it. remark: what else there is to
    say of all seeds.
    """

    seeds: list[int]
    table: dict[str, dict[str, Cell]]
    checks: dict[str, list[Verdict]]
    status: Status
    sentence: str
    remark: str = ""

    @property
    def counts(self) -> dict[str, str]:
        """`count_of` each part of the claim."""
        return {words: count_of(seen) for words, seen in self.checks.items()}


def combine_seeds(
    results: Mapping[int, SeedResult], remark: Callable[[Sequence[SeedResult]], str] | None = None
) -> ExhibitResult:
    """The result over all seeds, of those by seed; ValueError where their rows or checks differ.

    Parts of the claim whose effect the seeds `can_tell` from none or from the least are as each
    seed shows them; of the others no seed can tell.
    """
    first, *others = results.values()
    if any(_shape(other) != _shape(first) for other in others):
        raise ValueError("results of different seeds have different rows, columns or checks")
    checks = {
        words: [result.checks[words] for result in results.values()] for words in first.checks
    }
    for words in first.effects:
        if not can_tell([result.effects[words] for result in results.values()]):
            checks[words] = [None] * len(results)
    table = {
        row: {
            column: _cell([result.table[row][column] for result in results.values()])
            for column in columns
        }
        for row, columns in first.table.items()
    }
    status = status_of(checks)
    sentence = _sentence(checks, status)
    words = remark(list(results.values())) if remark else ""
    return ExhibitResult(list(results), table, checks, status, sentence, words)


def precision(rows: Sequence[Sequence[float]]) -> float | None:
    """How exactly the seeds tell a difference between two rows: half the width of the 95 %
    t-interval of paired differences, the median over pairs of rows.

    rows: values by seed. None of one row, one seed, or rows that differ by constants.
    """
    from scipy.special import stdtrit  # flows import this module, and need no scipy

    count = min((len(row) for row in rows), default=0)
    if len(rows) < 2 or count < 2:
        return None
    deviations = [
        statistics.stdev(a - b for a, b in zip(*two, strict=True)) for two in combinations(rows, 2)
    ]
    width = statistics.median(deviations) * float(stdtrit(count - 1, 0.975)) / math.sqrt(count)
    return width if width > NO_WIDTH else None


def can_tell(effects: Sequence[Effect]) -> bool:
    """Whether the seeds tell an effect from none, or from the least that is looked for: the 95 %
    t-interval of its mean is above 0, or below the mean of the least.

    One seed, and seeds that agree, have no interval: they tell what they show.
    """
    measured = [effect.measured for effect in effects]
    width = precision([measured, [0.0] * len(effects)])
    if width is None:
        return True
    mean = statistics.fmean(measured)
    return mean > width or mean + width < statistics.fmean(effect.least for effect in effects)


def columns_of(table: Mapping[str, Mapping[str, object]]) -> list[str]:
    """All columns that any row has, in order."""
    return list(dict.fromkeys(column for row in table.values() for column in row))


def precision_by_column(table: Mapping[str, Mapping[str, Cell]]) -> dict[str, str]:
    """`precision` of the rows that have each column, where there is one."""
    widths = {
        column: precision([row[column].values for row in table.values() if column in row])
        for column in columns_of(table)
    }
    return {column: f"{value:.3f}" for column, value in widths.items() if value is not None}


def key_figures(table: Mapping[str, Mapping[str, Cell]]) -> str:
    """A table in a line: of one row its columns, of several the first two of each."""
    wide = MAX_FIGURES if len(table) == 1 else 2
    parts = [
        f"{row}: " + ", ".join(f"{name} {cell}" for name, cell in list(columns.items())[:wide])
        for row, columns in table.items()
    ]
    more = [f"{len(parts) - MAX_FIGURES} more"] if len(parts) > MAX_FIGURES else []
    return "; ".join(parts[:MAX_FIGURES] + more)


def status_of(checks: Mapping[str, Sequence[Verdict]]) -> Status:
    """Held: every part in every seed. Cannot tell: most seeds, or half, cannot tell any part. Not
    held: every part that they can tell fails in most seeds that can tell, or in half.
    """
    if all(all(seen) for seen in checks.values()):
        return "held"
    told = [
        [is_shown for is_shown in seen if is_shown is not None]
        for seen in checks.values()
        if 2 * seen.count(None) < len(seen)
    ]
    if not told:
        return "cannot tell"
    return "not held" if all(2 * sum(seen) <= len(seen) for seen in told) else "in part"


def count_of(seen: Sequence[Verdict]) -> str:
    """How many show it, as in `2 of 3`, and how many cannot tell."""
    unclear = seen.count(None)
    return f"{seen.count(True)} of {len(seen)}" + (f", {unclear} cannot tell" if unclear else "")


def _shape(result: SeedResult) -> tuple[object, ...]:
    """The names of rows and columns, in order, and those of the checks."""
    rows = [(row, list(columns)) for row, columns in result.table.items()]
    return rows, result.checks.keys(), result.effects.keys()


def _cell(values: list[float]) -> Cell:
    std = statistics.stdev(values) if len(values) > 1 else 0.0
    return Cell(statistics.fmean(values), std, values)


def _sentence(checks: Mapping[str, Sequence[Verdict]], status: Status) -> str:
    """The status in words: how many seeds show each part of the claim."""
    begin = {
        "held": "It held",
        "in part": "It held in part",
        "not held": "It did not hold",
        "cannot tell": "It cannot be told",
    }
    parts = "; ".join(f"{words}: {_answer(seen)}" for words, seen in checks.items())
    return f"{begin[status]}. {parts}."


def _answer(seen: Sequence[Verdict]) -> str:
    if len(set(seen)) > 1:
        shown, *unclear = count_of(seen).split(", ")
        return ", ".join([f"in {shown} seeds", *unclear])
    answer = {True: "yes", False: "no", None: "cannot tell"}[seen[0]]
    return answer + (f", in all {len(seen)} seeds" if seen[1:] else "")
