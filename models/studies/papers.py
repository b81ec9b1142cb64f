"""docs/papers.md: a row for every table and figure, from the scorecards of the studies run."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from models.studies.registry import EXHIBITS, TITLES, Exhibit
from models.studies.results import Cell, Status, key_figures

# A study's scorecard.json.
Card = Mapping[str, Any]
SUMMARY_HEADS = ("", *get_args(Status), "not run yet")
HEADS = ("", "claim", "the paper", "ours", "held", "seconds", "command")


def cards_below(folder: Path) -> dict[str, Card]:
    """The scorecards of studies, by the folder each is in."""
    paths = sorted(folder.glob("study-*/scorecard.json"))
    return {path.parent.name: json.loads(path.read_text(encoding="utf-8")) for path in paths}


def keep(reports: Path, folder: Path) -> None:
    """Copy scorecard and plots of each study among the reports, in place of what was kept of it.

    What the same command left is the same study, whatever its folder was called.
    """
    kept = cards_below(folder)
    for name, card in cards_below(reports).items():
        for other, before in kept.items():
            if all(before[key] == card[key] for key in ("paper", "name", "command")):
                shutil.rmtree(folder / other, ignore_errors=True)
        shutil.rmtree(folder / name, ignore_errors=True)
        (folder / name).mkdir(parents=True)
        for path in (reports / name / "scorecard.json", *(reports / name).glob("plots/*.svg")):
            shutil.copy2(path, folder / name)


def papers_page(cards: Mapping[str, Card], plots: str | None = None) -> str:
    """The page in Markdown, of cards by folder; plots: where these folders are, to link to."""
    parts = [HEADER.strip(), _markdown(SUMMARY_HEADS, _summary(cards))]
    for paper, title in TITLES.items():
        rows = [
            row
            for exhibit in EXHIBITS
            if exhibit.paper == paper
            for row in _rows(exhibit, cards, plots)
        ]
        parts += [f"## {title}", _markdown(HEADS, rows)]
    return "\n\n".join(parts) + "\n"


def _summary(cards: Mapping[str, Card]) -> list[list[str]]:
    """How many studies of each paper ended how; exhibits that were not run."""
    rows = []
    for paper, title in TITLES.items():
        own = [card for card in cards.values() if card["paper"] == paper]
        run = {card["name"] for card in own}
        missing = [each for each in EXHIBITS if each.paper == paper and each.name not in run]
        ended = [sum(card["status"] == status for card in own) for status in get_args(Status)]
        rows.append([title, *map(str, ended), str(len(missing))])
    return rows


def _rows(exhibit: Exhibit, cards: Mapping[str, Card], plots: str | None) -> list[list[str]]:
    """A row for each scale at which it was run."""
    claim = f"{exhibit.shows}. {exhibit.claim}"
    own = {
        folder: card
        for folder, card in cards.items()
        if (card["paper"], card["name"]) == (exhibit.paper, exhibit.name)
    }
    if not own:
        return [[exhibit.title, claim, exhibit.printed, "not run yet", "", "", ""]]
    return [
        [
            f"[{exhibit.title}]({plots}/{folder})" if plots else exhibit.title,
            claim,
            exhibit.printed,
            f"{_remark(card)}{_checks(card)} ({_figures(card)})",
            str(card["status"]),
            f"{card['seconds']:,.0f}",
            f"`{card['command']}`",
        ]
        for folder, card in own.items()
    ]


def _remark(card: Card) -> str:
    """What few studies say beside their checks; cards of before have no such field."""
    remark = card.get("remark")
    return f"{remark} " if remark else ""


def _checks(card: Card) -> str:
    return "; ".join(
        f"{words}: {sum(seen)} of {len(seen)}" for words, seen in card["checks"].items()
    )


def _figures(card: Card) -> str:
    table = card["table"].items()
    return key_figures({r: {c: Cell(**cell) for c, cell in row.items()} for r, row in table})


def _markdown(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


HEADER = """
# The papers, once more

A row for each table and figure, written by `trimtab papers --into docs` from the scorecards that
`trimtab study PAPER EXHIBIT` left. A part of a claim counts the seeds that show it. *Held*: every
part in every seed; *not held*: every part fails in at least half of them; *in part* otherwise.
Figures are means ± standard deviation over seeds; seconds are those of all stages that the exhibit
needs, shared ones included.
"""
