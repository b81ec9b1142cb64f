"""Several runs side by side: mean and spread of every number over seeds, as a Markdown table."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence

Summary = Mapping[str, object]


def table(names: Sequence[str], summaries: Sequence[Summary]) -> str:
    """One row a number that all runs have: mean, standard deviation over runs, each run's value.

    Standard deviations divide by runs - 1; a single run has none. Words (claims held or not) are
    counted instead.
    """
    common = [key for key in summaries[0] if all(key in summary for summary in summaries)]
    lines = [
        "| measure | mean | std | " + " | ".join(names) + " |",
        "|---|---|---|" + "---|" * len(names),
    ]
    for key in common:
        values = [summary[key] for summary in summaries]
        middle = _numbers(values) if _are_numbers(values) else _words(values)
        lines.append(f"| {key} | {middle} | " + " | ".join(map(_shown, values)) + " |")
    return "\n".join(lines)


def _are_numbers(values: Sequence[object]) -> bool:
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)


def _numbers(values: Sequence[object]) -> str:
    numbers = [float(str(value)) for value in values]
    spread = f"{statistics.stdev(numbers):.3f}" if len(numbers) > 1 else ""
    return f"{statistics.fmean(numbers):.3f} | {spread}"


def _words(values: Sequence[object]) -> str:
    counts = Counter(map(str, values)).most_common()
    return ", ".join(f"{count} {word}" for word, count in counts) + " | "


def _shown(value: object) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value).replace("|", "/")
