"""results.json for people: a table of at most 80 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Any

WIDTH, NAME, VALUE = 79, 38, 15
MARKS = {True: "ok", False: "FAILED", None: "left out"}


def table(results: dict[str, Any]) -> str:
    """Every part with its values: least and most of several runs, what was planned or promised."""
    lines = list(_title(results))
    for row in results["parts"]:
        time = f"{row['seconds']:.0f} s" if row["seconds"] else ""
        lines += ["", f"{row['part']:<{NAME + VALUE + 6}}{MARKS[row['ok']]:>9}{time:>8}"]
        lines += _folded(row.get("why", ""), 4)
        for value in row["values"]:
            lines += _value_lines(value)
    marks = [MARKS[row["ok"]] for row in results["parts"]]
    summary = ", ".join(f"{marks.count(mark)} {mark}" for mark in MARKS.values() if mark in marks)
    lines += ["", f"{summary}; {results['seconds']:.0f} s"]
    targets = [v["met"] for row in results["parts"] for v in row["values"] if "met" in v]
    if targets:
        lines.append(f"{sum(targets)} of {len(targets)} targets met")
    if results["is_rehearsal"]:
        lines.append("REHEARSAL: no figure above says anything of a GPU")
    return "\n".join(lines)


def _title(results: dict[str, Any]) -> Iterator[str]:
    versions = results["versions"]
    named = ", ".join(f"{name} {versions[name]}" for name in ("torch", "transformers"))
    if results["is_rehearsal"]:
        yield "REHEARSAL on a CPU with tiny models: no figure says anything of a GPU"
    yield f"{results['card'] or 'unknown card'}, {results['date']}, {named}"
    yield from (f"untested: {line}" for line in results["warnings"])


def _value_lines(value: dict[str, Any]) -> Iterator[str]:
    number = f"{shown(value['value'])} {value['unit']}".strip()
    text = remarks(value)
    first = f"  {value['name']:<{NAME}}{number:>{VALUE}}"
    if len(first) + 2 + len(text) <= WIDTH:
        yield f"{first}  {text}".rstrip()
    else:
        yield first.rstrip()
        yield from _folded(text, 6)
    for name, milliseconds, share in value.get("groups", ()):
        time = f"{shown(milliseconds)} ms"
        yield f"    {name:<{NAME - 2}.{NAME - 2}}{time:>{VALUE}}  {share:4.0%}"


def remarks(value: dict[str, Any]) -> str:
    """What stands beside a value: least and most of its runs, a plan, a target met or missed."""
    notes = []
    if "least" in value:
        notes.append(f"{shown(value['least'])} to {shown(value['most'])}")
    if value.get("beside"):
        notes.append(value["beside"])
    if "target" in value:
        notes.append(f"{'met' if value['met'] else 'MISSED'}: {value['target']}")
    return "; ".join(notes)


def shown(value: float | str) -> str:
    """A number with three digits that count, or more before the point."""
    if isinstance(value, str):
        return value
    if value == 0 or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) >= 0.001 else f"{value:.1e}"


def _folded(text: str, indent: int) -> list[str]:
    margin = " " * indent
    return textwrap.wrap(
        " ".join(text.split()),
        WIDTH,
        initial_indent=margin,
        subsequent_indent=margin,
        break_long_words=False,
        break_on_hyphens=False,
    )
