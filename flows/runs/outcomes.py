"""Wins, ties and losses of one policy against another as tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

OUTCOMES = ("win", "tie", "lose", "net", "net_low", "net_high")


def outcomes_by_judge(numbers: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A row for each set of prompts and who judged it, of the numbers of a head-to-head."""
    judged = [name.removesuffix("_win") for name in numbers if name.endswith("_win")]
    return [
        {"judged": name, **{each: round(numbers[f"{name}_{each}"], 3) for each in OUTCOMES}}
        for name in judged
    ]


def markdown_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows with the same columns, of which there is at least one, as a table in Markdown."""
    lines = [list(rows[0]), ["---" for _ in rows[0]], *([*row.values()] for row in rows)]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)
