"""The tables and the figure of docs/explanation/cleaning.md, of what was measured.

Part of `tests.bench.cleaning`. A number is the mean over seeds, ± half the width of its 95 %
t-interval.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import matplotlib.pyplot as plt
from scipy.special import stdtrit

from trimtab.models.reporting.kit.charts import style

Row = dict[str, Any]
DATA = {"ukp": "UKP", "hh": "HH", "world": "the world"}
AS_GIVEN, AUDIT = "as given", "Trimtab's audit"
# Columns of tables: kind of noise and share of wrong labels.
AT_25 = {
    "uniform": ("uniform", 0.25),
    "closer pairs": ("closeness", 0.25),
    "by category": ("category", 0.25),
    "for length": ("length", 0.25),
    "one vote each": ("natural", 0.0),
}
TRAINED = {
    **{f"uniform {share:.0%}": ("uniform", share) for share in (0.0, 0.25, 0.4)},
    "closer pairs 25%": ("closeness", 0.25),
    "one vote each": ("natural", 0.0),
}
# Not in the figure, as are the judges, whose lines are level.
LEFT_OUT = ("at random", "the same, in-sample", "linear, embedding and style, fitted once")
JUDGE = "a judge that is right"
SHARES = (0.05, 0.1, 0.2, 0.25, 0.3, 0.4)


def write_page(rows: Sequence[Row], folder: Path) -> None:
    """Write each table behind its mark `<!-- name -->`, in place of the one there, and the figure.

    Raises ValueError for a page that lacks a mark.
    """
    page = folder / "cleaning.md"
    text = page.read_text(encoding="utf-8")
    tables = {"ranks": ranks(rows), "flagged": flagged(rows)}
    for data in DATA:
        tables |= {f"finding {data}": finding(rows, data), f"training {data}": training(rows, data)}
    for name, table in tables.items():
        mark = f"<!-- {name} -->"
        if mark not in text:
            raise ValueError(f"{page}: found no {mark}")
        behind = re.compile(re.escape(mark) + r"\n(?:\n(?:\|[^\n]*\n)+)?")
        text = behind.sub(lambda _, new=f"{mark}\n\n{table}\n": new, text)  # type: ignore[misc]
    page.write_text(text, encoding="utf-8")
    draw(rows, folder / "cleaning.svg")


def number(values: Sequence[float], signed: bool = False, digits: int = 3) -> str:
    """Mean and interval over seeds; empty of none."""
    if not values:
        return ""
    text = f"{fmean(values):{'+' if signed else ''}.{digits}f}"
    if len(values) > 1:
        half = float(stdtrit(len(values) - 1, 0.975)) * stdev(values) / len(values) ** 0.5
        text += f" ± {half:.{digits}f}"
    return re.sub(r"(?<!\d)0\.", ".", text)


def at(rows: Sequence[Row], data: str, kind: str, share: float) -> list[Row]:
    """What was measured there, by seed."""
    cells = [row for row in rows if (row["data"], row["kind"], row["share"]) == (data, kind, share)]
    return sorted(cells, key=lambda row: row["seed"])


def of(rows: Sequence[Row], method: str, measure: str) -> list[float]:
    """A measure of a method in each of the rows that have it."""
    values = [row["finding"][method].get(measure) for row in rows]
    return [value for value in values if value is not None]


def table(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """In Markdown."""
    return "\n".join(f"| {' | '.join(line)} |" for line in (heads, ["---"] * len(heads), *lines))


def mean_ranks(
    rows: Sequence[Row], scores_of: Callable[[Row], Mapping[str, float]]
) -> dict[str, list[float]]:
    """By name, the mean rank over all rows of a seed, for each seed; 1 is the highest score, and
    equal scores share a rank."""
    ranked: dict[str, dict[int, list[float]]] = {}
    for row in rows:
        scores = scores_of(row)
        for name, score in scores.items():
            above = sum(other > score for other in scores.values())
            equal = sum(other == score for other in scores.values())
            rank = above + (equal + 1) / 2
            ranked.setdefault(name, {}).setdefault(row["seed"], []).append(rank)
    return {name: [fmean(of_seed) for of_seed in seeds.values()] for name, seeds in ranked.items()}


def ranks(rows: Sequence[Row]) -> str:
    """Methods that all data have by mean rank of AUROC over all cells with wrong labels, and what
    they cost."""
    wrong = [row for row in rows if row["num_wrong"]]
    common = set.intersection(*(set(row["finding"]) for row in wrong))
    columns = [
        mean_ranks(
            [row for row in wrong if data in ("", row["data"])],
            lambda row: {name: row["finding"][name]["auroc"] for name in common},
        )
        for data in ("", *DATA)
    ]
    order = sorted(columns[0], key=lambda name: fmean(columns[0][name]))
    lines = [
        [
            name,
            *(number(column[name], digits=1) for column in columns),
            *(
                f"{fmean(of(at(rows, data, 'uniform', 0.25), name, 'seconds')):.1f}"
                for data in DATA
            ),
        ]
        for name in order
    ]
    heads = ["", "mean rank", *(f"on {name}" for name in DATA.values())]
    return table([*heads, *(f"seconds, {name}" for name in DATA.values())], lines)


def finding(rows: Sequence[Row], data: str) -> str:
    """AUROC of each method where a quarter of the labels is wrong, and by people's own errors."""
    columns = {name: cells for name, key in AT_25.items() if (cells := at(rows, data, *key))}
    lines = [
        [
            name,
            *(number(of(cells, name, "auroc")) for cells in columns.values()),
            number(of(columns["uniform"], name, "average_precision")),
        ]
        for name in columns["uniform"][0]["finding"]
    ]
    return table(["AUROC", *columns, "average precision, uniform"], lines)


def flagged(rows: Sequence[Row]) -> str:
    """What the audit flags, by the share of labels that are wrong."""
    lines = []
    for data, title in DATA.items():
        for name, key in [(f"{share:.0%}", ("uniform", share)) for share in (0.0, *SHARES)] + [
            (name, key) for name, key in AT_25.items() if name != "uniform"
        ]:
            cells = at(rows, data, *key)
            measures = ("auroc", "average_precision", "share_flagged", "precision", "recall")
            if cells:
                numbers = [number(of(cells, AUDIT, measure)) for measure in measures]
                lines.append([f"{title}, {name}", *numbers])
    heads = ("AUROC", "average precision", "share flagged", "precision", "recall")
    return table(["", *heads], lines)


def training(rows: Sequence[Row], data: str) -> str:
    """Accuracy of reward models on right labels: as given, and what each treatment adds."""
    columns = {name: of_kind for name, key in TRAINED.items() if (of_kind := at(rows, data, *key))}
    trained = [row for row in rows if row["data"] == data and "training" in row]
    is_known = {"right labels", "leave out the wrong ones"}
    rank = mean_ranks(
        trained, lambda row: {k: v for k, v in row["training"].items() if k not in is_known}
    )
    names = sorted(rank, key=lambda name: fmean(rank[name]))
    lines = []
    for name in [*names, *sorted(is_known)]:
        cells = []
        for of_kind in columns.values():
            treated = [row["training"][name] for row in of_kind]
            base = [row["training"][AS_GIVEN] for row in of_kind]
            added = [a - b for a, b in zip(treated, base, strict=True)]
            cells.append(number(treated) if name == AS_GIVEN else number(added, signed=True))
        lines.append([name, number(rank[name], digits=1) if name in rank else "", *cells])
    return table(["", "mean rank", *columns], lines)


def draw(rows: Sequence[Row], path: Path) -> None:
    """AUROC by the share of wrong labels, a panel for each data."""
    figure, panels = plt.subplots(
        1, len(DATA), figsize=(4.5 * len(DATA), 4.4), sharey=True, layout="constrained"
    )
    for panel, (data, title) in zip(panels, DATA.items(), strict=True):
        names = sorted(
            at(rows, data, "uniform", 0.25)[0]["finding"], key=lambda name: name != AUDIT
        )
        shares = [share for share in SHARES if at(rows, data, "uniform", share)]
        x = [100 * share for share in shares]
        drawn = [name for name in names if name not in LEFT_OUT and JUDGE not in name]
        for index, name in enumerate(drawn):
            curves = [of(at(rows, data, "uniform", share), name, "auroc") for share in shares]
            colour, line, marker = style(index)
            panel.plot(
                x, [fmean(values) for values in curves], line + marker, color=colour, label=name,
                markersize=4,
            )  # fmt: skip
            low, high = ([edge(values) for values in curves] for edge in (min, max))
            panel.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)
        panel.set_title(title)
        panel.set_xlabel("labels turned round at random, %")
    panels[0].set_ylabel("AUROC of finding them")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=8)
    with plt.rc_context({"svg.hashsalt": "trimtab"}):  # the same numbers make the same file
        figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
