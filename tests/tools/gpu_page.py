"""The section of docs/explanation/performance.md on GPUs, from kept results of `trimtab gpu-check`.

    python -m tests.tools.gpu_page [results.json]

Keeps the results as docs/explanation/gpu/<date>-<card>.json, and writes the section anew from all
that are kept: a table for each card and day, the newest first. Refuses a rehearsal.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from trimtab.models.gpu_check.table import MARKS, remarks, shown

PAGE = Path(__file__).resolve().parents[2] / "docs" / "explanation" / "performance.md"
BEGIN, END = "<!-- gpu-check: begin -->\n", "<!-- gpu-check: end -->\n"
NOTHING = "No results are kept yet.\n"


def main(page: Path, results: Path | None) -> None:
    """Keep the results, if any are given, and write the section."""
    folder = page.parent / "gpu"
    if results is not None:
        values = json.loads(results.read_text())
        if values["is_rehearsal"] or values["card"] is None:
            sys.exit(f"{results}: found a rehearsal; allowed: results of a GPU")
        card = re.sub(r"[^a-z0-9]+", "-", values["card"].lower()).strip("-")
        folder.mkdir(exist_ok=True)
        (folder / f"{values['date']}-{card}.json").write_text(json.dumps(values, indent=1) + "\n")
    page.write_text(with_section(page.read_text(encoding="utf-8"), folder), encoding="utf-8")


def with_section(text: str, folder: Path) -> str:
    """The page with its section made of all kept results."""
    before, _, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        raise ValueError(f"the page has no section from {BEGIN.strip()} to {END.strip()}")
    cards = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"), reverse=True)]
    section = "\n".join(map(_tables, cards)) or NOTHING
    return f"{before}{BEGIN}{section}{END}{after}"


def _tables(results: dict[str, Any]) -> str:
    """All parts of one card and day."""
    versions = results["versions"]
    named = ", ".join(
        f"{n} {versions[n]}" for n in ("torch", "transformers", "trl") if n in versions
    )
    lines = [
        f"### {results['card']}, {results['date']}",
        "",
        f"{named}; {results['seconds']:.0f} s.",
    ]
    for row in results["parts"]:
        lines += ["", f"**{row['part']}**: {MARKS[row['ok']]}" + _reason(row), ""]
        lines += ["| | | |", "|---|---|---|"] if row["values"] else []
        for value in row["values"]:
            number = f"{shown(value['value'])} {value['unit']}".strip()
            lines.append(f"| {value['name']} | {number} | {remarks(value)} |")
            for name, milliseconds, share in value.get("groups", ()):
                lines.append(f"| `{name[:60]}` | {shown(milliseconds)} ms | {share:.0%} |")
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _reason(row: dict[str, Any]) -> str:
    return f", as {row['why']}" if "why" in row else ""


if __name__ == "__main__":
    main(PAGE, Path(sys.argv[1]) if sys.argv[1:] else None)
