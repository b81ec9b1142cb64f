"""docs/papers.md and a page for each exhibit, from the scorecards of the studies run."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from trimtab.models.config.data import WORLD_VERSION
from trimtab.models.studies.registry import EXHIBITS, TITLES, Exhibit
from trimtab.models.studies.results import PRECISION, Cell, Status, precision_by_column

# A study's scorecard.json.
Card = Mapping[str, Any]
SUMMARY_HEADS = ("", *get_args(Status), "not run yet")
HEADS = ("exhibit", "claim", "printed", "ours", "verdict", "command")
NOTHING_PRINTED = ("no numbers", "not published")
HUMAN_SCALES = ("hh-smollm2", "ukp-smollm2", "hh-7b")
DEFAULTS = (" --scale default", " --seeds 2 3 4")


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


def write_pages(reports: Path, into: Path) -> Path:
    """Write `into`/papers.md and `into`/papers, after what the reports have is kept there."""
    folder = into / "papers"
    folder.mkdir(parents=True, exist_ok=True)
    keep(reports, folder)
    cards = cards_below(folder)
    for name, page in exhibit_pages(cards, folder).items():
        (folder / name).write_text(page, encoding="utf-8")
    path = into / "papers.md"
    path.write_text(papers_page(cards, links=True), encoding="utf-8")
    return path


def papers_page(cards: Mapping[str, Card], links: bool = False) -> str:
    """The table of all exhibits in Markdown; links: each leads to its page in papers/."""
    parts = [HEADER.strip(), _markdown(SUMMARY_HEADS, _summary(cards))]
    if any(_is_of_earlier_world(card) for card in cards.values()):
        parts.insert(1, EARLIER_WORLD)
    for paper, title in TITLES.items():
        rows = [
            row
            for exhibit in EXHIBITS
            if exhibit.paper == paper
            for row in _rows(exhibit, _own(exhibit, cards).values(), links)
        ]
        parts += [f"## {title}", _markdown(HEADS, rows)]
    return "\n\n".join(parts) + "\n"


def exhibit_pages(cards: Mapping[str, Card], folder: Path) -> dict[str, str]:
    """A page in Markdown, by file name, for every exhibit that was run; plots lie in `folder`."""
    return {
        f"{exhibit.slug}.md": _page(exhibit, own, folder)
        for exhibit in EXHIBITS
        if (own := _own(exhibit, cards))
    }


def _own(exhibit: Exhibit, cards: Mapping[str, Card]) -> dict[str, Card]:
    """The scorecards of one exhibit, by folder: one for each scale at which it was run."""
    return {
        folder: card
        for folder, card in cards.items()
        if (card["paper"], card["name"]) == (exhibit.paper, exhibit.name)
    }


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


def _rows(exhibit: Exhibit, cards: Iterable[Card], links: bool) -> list[list[str]]:
    """A row for each scale at which it was run."""
    printed = "" if exhibit.printed.startswith(NOTHING_PRINTED) else exhibit.printed
    title = f"[{exhibit.title}](papers/{exhibit.slug}.md)" if links else exhibit.title
    rows = [
        [
            title,
            card.get("claim", exhibit.claim),
            printed,
            _first(card),
            _verdict(card) + _age(card),
            f"`{_short(card)}`",
        ]
        for card in cards
    ]
    return rows or [[exhibit.title, exhibit.claim, printed, "not run yet", "", ""]]


def _page(exhibit: Exhibit, cards: Mapping[str, Card], folder: Path) -> str:
    """All there is to say of one exhibit."""
    parts = [
        f"# {TITLES[exhibit.paper]}: {exhibit.name.replace('-', ' ')}",
        f"{exhibit.shows}. [All exhibits](../papers.md).",
        f"- **Claim:** {exhibit.claim}.\n- **Printed:** {exhibit.printed or 'nothing'}.",
    ]
    for name, card in cards.items():
        checks = [[words, _of(seen)] for words, seen in card["checks"].items()]
        plots = sorted(path.name for path in (folder / name).glob("*.svg"))
        parts += [
            f"## Recipe `{card['scale']}`: {card['status']}",
            *([f"Of the claim then: {card['claim']}."] if _claims_other(exhibit, card) else []),
            *([EARLIER_WORLD] if _is_of_earlier_world(card) else []),
            # Cards of earlier versions have no remark.
            *([card["remark"]] if card.get("remark") else []),
            _markdown(("part of the claim", "seeds that show it"), checks),
            _figures(card),
            *(f"![{exhibit.shows}]({name}/{plot})" for plot in plots),
            f"```bash\n{card['command']}\n```",
            f"{card['seconds']:,.0f} s of all stages that the exhibit needs, shared ones included. "
            f"[Scorecard]({name}/scorecard.json).",
        ]
    return "\n\n".join(parts) + "\n"


def _figures(card: Card) -> str:
    """A study's whole table."""
    columns = list(dict.fromkeys(column for row in card["table"].values() for column in row))
    table = {
        name: {column: Cell(**cell) for column, cell in row.items()}
        for name, row in card["table"].items()
    }
    rows = [
        [name, *(str(row[column]) if column in row else "" for column in columns)]
        for name, row in table.items()
    ]
    if found := precision_by_column(table):
        rows.append([f"*{PRECISION}*", *(found.get(column, "") for column in columns)])
    return _markdown(("", *columns), rows)


def _first(card: Card) -> str:
    """The first figure of a study's table."""
    name, row = next(iter(card["table"].items()))
    column, cell = next(iter(row.items()))
    return f"{name}: {column} {Cell(**cell)}"


def _verdict(card: Card) -> str:
    """The status, and how often a seed shows a part of the claim."""
    return f"{card['status']}, {_of([each for seen in card['checks'].values() for each in seen])}"


def _is_of_earlier_world(card: Card) -> bool:
    """Cards before version 2 have no version; real data have a recipe of their own."""
    found = card.get("world_version", 1)
    return card["scale"] not in HUMAN_SCALES and found is not None and found < WORLD_VERSION


def _claims_other(exhibit: Exhibit, card: Card) -> bool:
    """Whether the claim that was measured reads otherwise now."""
    return str(card.get("claim", exhibit.claim)) != exhibit.claim


def _age(card: Card) -> str:
    return " †" if _is_of_earlier_world(card) else ""


def _short(card: Card) -> str:
    """The command without what is as by default; … stands for fields it changes."""
    command = str(card["command"])
    for default in DEFAULTS:
        command = command.replace(default, "")
    words = shlex.split(command)
    changes = ["…"] if any("=" in word for word in words) else []
    return " ".join([*(word for word in words if "=" not in word), *changes])


def _of(seen: Sequence[bool]) -> str:
    return f"{sum(seen)} of {len(seen)}"


def _markdown(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


EARLIER_WORLD = (
    "† Measured in an earlier version of the synthetic world, and with its arms: figures are not "
    "comparable with those of other exhibits."
)
HEADER = """
# The papers' tables and figures

A row for each, written by `trimtab papers --into docs` from the scorecards that
`trimtab study PAPER EXHIBIT` leaves. *Held*: every seed shows every part of the claim; *not held*:
every part fails in at least half of the seeds; *in part*: otherwise. The count beside the verdict
is of parts times seeds. *Ours* is the first figure of the exhibit's own page, mean ± standard
deviation over seeds; that page has all of them, the parts of the claim, the plots and the time it
took. The last row of its table says how exactly the seeds tell a difference: half the width of the
95 % t-interval of paired differences, the median over pairs of rows. `…` stands for changed
fields, which that page has in full.
"""
