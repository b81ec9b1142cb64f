"""docs/papers.md and a page for each paper, from the scorecards of the studies run."""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from trimtab.models.config.data import WORLD_VERSION
from trimtab.models.studies.registry import TITLES, Exhibit, exhibits_of
from trimtab.models.studies.results import (
    PRECISION,
    Cell,
    Status,
    columns_of,
    count_of,
    precision_by_column,
)

# A study's scorecard.json.
Card = Mapping[str, Any]
STATUSES = get_args(Status)


def cards_below(folder: Path) -> dict[str, Card]:
    """The scorecards of studies, by the folder each is in."""
    paths = sorted(folder.glob("study-*/scorecard.json"))
    return {path.parent.name: json.loads(path.read_text(encoding="utf-8")) for path in paths}


def copy_studies(reports: Path, folder: Path) -> None:
    """Copy scorecard and first plot of each study among the reports to the folder.

    They replace an earlier study of that name, and one that the same command left.
    """
    earlier = cards_below(folder)
    for name, card in cards_below(reports).items():
        for other, before in earlier.items():
            if all(before[key] == card[key] for key in ("paper", "name", "command")):
                shutil.rmtree(folder / other, ignore_errors=True)
        shutil.rmtree(folder / name, ignore_errors=True)
        (folder / name).mkdir(parents=True)
        plots = sorted((reports / name).glob("plots/*.svg"))
        for path in (reports / name / "scorecard.json", *plots[:1]):
            shutil.copy2(path, folder / name)


def write_pages(reports: Path, into: Path) -> Path:
    """Copy the studies among the reports to `into`/papers, and write the pages from all there.

    Where `into`/what-holds.md says what chance would give, it says so of these.
    """
    folder = into / "papers"
    folder.mkdir(parents=True, exist_ok=True)
    copy_studies(reports, folder)
    cards = cards_below(folder)
    for paper in TITLES:
        (folder / f"{paper}.md").write_text(paper_page(paper, cards, folder), encoding="utf-8")
    path = into / "papers.md"
    path.write_text(index_page(cards), encoding="utf-8")
    if (conclusions := into / "what-holds.md").exists():
        text = conclusions.read_text(encoding="utf-8")
        text = re.sub(f"^{TOSSED}.*$", lambda _: chance_line(cards), text, flags=re.MULTILINE)
        conclusions.write_text(text, encoding="utf-8")
    return path


def chance_line(cards: Mapping[str, Card]) -> str:
    """How much would hold by chance, and how much does, in a line.

    A part of a claim that tosses a coin is shown by all of n seeds with probability 2^-n, whatever
    the other parts do; all parts of an exhibit at most as often as one.
    """
    every = [seen for card in cards.values() for seen in card["checks"].values()]
    parts = [seen for seen in every if any(shown is not None for shown in seen)]
    expected = sum(0.5 ** len(seen) for seen in parts)
    held = sum(card["status"] == "held" for card in cards.values())
    most = sum(0.5 ** len(card["seeds"]) for card in cards.values())
    return (
        f"{TOSSED}, {expected:.1f} of the {len(parts)} parts that some seed tells would be shown "
        f"by all seeds by chance, and {sum(map(all, parts))} are; at most {most:.1f} of the "
        f"{len(cards)} exhibits would be held, and {held} are. Parts that ask for no difference, "
        "as those of the constants, are shown more often than by a coin."
    )


def index_page(cards: Mapping[str, Card]) -> str:
    """The number of studies by paper and status, in Markdown, with links to the papers' pages."""
    rows = []
    for paper, title in TITLES.items():
        studies = [card for card in cards.values() if card["paper"] == paper]
        ended = Counter(card["status"] for card in studies)
        run = {card["name"] for card in studies}
        missing = sum(exhibit.name not in run for exhibit in exhibits_of(paper, "all"))
        counts = [*(ended[status] for status in STATUSES), missing]
        rows.append([f"[{title}](papers/{paper}.md)", *map(str, counts)])
    table = _markdown(("", *STATUSES, "not run yet"), rows)
    return f"{HEADER.strip()}\n\n{table}\n\n{chance_line(cards)}\n"


def all_tables(cards: Mapping[str, Card]) -> str:
    """The exhibits of all papers in Markdown, a table for each paper."""
    return "\n\n".join(f"## {TITLES[paper]}\n\n{_table(paper, cards)}" for paper in TITLES) + "\n"


def paper_page(paper: str, cards: Mapping[str, Card], folder: Path) -> str:
    """A paper's exhibits in Markdown: a table of all, and a section for each that was run.

    Plots lie in `folder`.
    """
    parts = [f"# {TITLES[paper]}", "How to read this: [all papers](../papers.md)."]
    if any(card["paper"] == paper and _is_of_earlier_world(card) for card in cards.values()):
        parts.append(EARLIER_WORLD)
    parts.append(_table(paper, cards, links=True))
    for exhibit in exhibits_of(paper, "all"):
        if scales := _cards_of(exhibit, cards):
            parts += _section(exhibit, scales, folder)
    return "\n\n".join(parts) + "\n"


def _table(paper: str, cards: Mapping[str, Card], links: bool = False) -> str:
    """A row for each exhibit of a paper and scale; links: each leads to its section."""
    rows = []
    for exhibit in exhibits_of(paper, "all"):
        scales = _cards_of(exhibit, cards)
        title = f"[{exhibit.title}](#{exhibit.name})" if links else exhibit.title
        rows += [[title, c["claim"], c["scale"], _verdict(c)] for c in scales.values()]
        if not scales:
            rows.append([exhibit.title, exhibit.claim, "", "not run yet"])
    return _markdown(("exhibit", "claim", "recipe", "verdict"), rows)


def _cards_of(exhibit: Exhibit, cards: Mapping[str, Card]) -> dict[str, Card]:
    """The scorecards of one exhibit, by folder: one for each scale at which it was run."""
    return {
        folder: card
        for folder, card in cards.items()
        if (card["paper"], card["name"]) == (exhibit.paper, exhibit.name)
    }


def _section(exhibit: Exhibit, cards: Mapping[str, Card], folder: Path) -> list[str]:
    """An exhibit's section: its claim, and every scale at which it was run."""
    parts = [
        f"## {exhibit.title}",
        f"{exhibit.shows}. Claim: {exhibit.claim}. Printed: {exhibit.printed or 'nothing'}.",
    ]
    for name, card in cards.items():
        checks = [[words, count_of(seen)] for words, seen in card["checks"].items()]
        plots = sorted(path.name for path in (folder / name).glob("*.svg"))
        parts += [
            f"### Recipe `{card['scale']}`: {card['status']}",
            *([f"Of the claim then: {card['claim']}."] if card["claim"] != exhibit.claim else []),
            *([EARLIER_WORLD] if _is_of_earlier_world(card) else []),
            *([card["remark"]] if card["remark"] else []),
            _markdown(("part of the claim", "seeds that show it"), checks),
            _figures(card),
            *(f"![{exhibit.shows}]({name}/{plot})" for plot in plots[:1]),
            f"```bash\n{card['command']}\n```",
            f"{card['seconds']:,.0f} s of all stages that the exhibit needs, shared ones included. "
            f"[Scorecard]({name}/scorecard.json).",
        ]
    return parts


def _figures(card: Card) -> str:
    """The table of a study."""
    columns = columns_of(card["table"])
    table = {
        name: {column: Cell(**cell) for column, cell in row.items()}
        for name, row in card["table"].items()
    }
    rows = [[name, *(str(row.get(c, "")) for c in columns)] for name, row in table.items()]
    if precision := precision_by_column(table):
        rows.append([f"*{PRECISION}*", *(precision.get(column, "") for column in columns)])
    return _markdown(("", *columns), rows)


def _verdict(card: Card) -> str:
    """The status, and how often a seed shows a part of the claim; † in an earlier world."""
    seen = [is_shown for by_seed in card["checks"].values() for is_shown in by_seed]
    return f"{card['status']}, {count_of(seen)}{' †' if _is_of_earlier_world(card) else ''}"


def _is_of_earlier_world(card: Card) -> bool:
    """Whether a card is from a world before the present one.

    Cards before version 2 have no version; the version is none where people's pairs are read.
    """
    version = card.get("world_version", 1)
    return version is not None and version < WORLD_VERSION


def _markdown(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


TOSSED = "If every part of a claim tossed a coin in every seed"
EARLIER_WORLD = (
    "† Measured in an earlier version of the synthetic world, and with its arms: figures are not "
    "comparable with those of other exhibits."
)
HEADER = """
# The papers' tables and figures

A page for each paper, written by `trimtab papers --into docs` from the scorecards that
`trimtab study PAPER EXHIBIT` leaves. *Held*: every seed shows every part of the claim; *not held*:
every part that can be told fails in at least half of the seeds that tell it; *cannot tell*: of no
part can most seeds tell, as policies reach no KL in common, or as seeds differ by more than what is
looked for; *in part*: otherwise. The count beside the verdict is of parts times seeds. Each exhibit
has a section with the parts of the claim, all figures (mean ± standard deviation over seeds), a
plot, the command and the time it took. The last row of a table of figures says how exactly the
seeds tell a difference: half the width of the 95 % t-interval of paired differences, the median
over pairs of rows. [What holds](what-holds.md) says what to conclude.
"""
