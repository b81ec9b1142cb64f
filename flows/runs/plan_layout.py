"""How a plan's numbers, tables and lists are written."""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Iterable, Sequence

from trimtab.models.estimates.machine import GIB

WIDTH = 100


def names(roles: Iterable[str]) -> str:
    """Roles as one text; those numbered one after another as `member_0…9`."""
    found: list[str] = []
    last: tuple[str, int] | None = None
    for role in roles:
        stem, number = role.rstrip("0123456789"), role[len(role.rstrip("0123456789")) :]
        if last is not None and number and last == (stem, int(number) - 1):
            found[-1] = found[-1].partition("…")[0] + f"…{number}"
        else:
            found.append(role)
        last = (stem, int(number)) if number else None
    return ", ".join(found)


def count(value: int) -> str:
    """A number; `-` for none."""
    return f"{value:,}" if value else "-"


def tokens(value: int) -> str:
    """Tokens in thousands, millions or billions; `-` for none."""
    for size, unit in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if value >= size:
            return f"{value / size:.1f} {unit}"
    return count(value)


def size(value: int) -> str:
    """Bytes in GiB, or in MiB below one; `-` for none."""
    if not value:
        return "-"
    return f"{value / GIB:.1f} GiB" if value >= GIB else f"{value / 2**20:.1f} MiB"


def table(header: Sequence[str], rows: Sequence[Sequence[str]], texts: Collection[int]) -> str:
    """Columns aligned: those in `texts` to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    lines = []
    for row in (header, *rows):
        cells = [
            cell.ljust(width) if index in texts else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def bullets(lines: Sequence[str]) -> str:
    """Each a paragraph with a dash before it."""
    return "\n".join(
        textwrap.fill(line, WIDTH, initial_indent="- ", subsequent_indent="  ") for line in lines
    )
