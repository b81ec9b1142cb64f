"""Every table and figure at smoke size, through the command people use."""

from __future__ import annotations

import html
import json
import math
import shlex
from pathlib import Path
from typing import Any

import pytest

from tests.flows.command import trimtab
from trimtab.models.studies.registry import TITLES, exhibits_of

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("prefect")]


def _cards(home: Path, paper: str, asked: str, *overrides: str) -> dict[str, Any]:
    """Scorecards of what is asked of a paper, by slug."""
    how = (*overrides, "--scale", "smoke", "--seeds", "0")
    output = trimtab(home, "study", paper, asked, *how)
    cards = {}
    for exhibit in exhibits_of(paper, asked):
        (folder,) = home.glob(f"reports/study-{exhibit.slug}-smoke*")
        card = json.loads((folder / "scorecard.json").read_text())
        assert f"{exhibit.slug}: {card['status']}\n" in output
        page = html.unescape((folder / "report.html").read_text())
        assert f"Here: {next(iter(card['table']))}: " in page
        assert card["command"] == shlex.join(["trimtab", "study", paper, exhibit.name, *how])
        cards[exhibit.slug] = card
    return cards


@pytest.mark.parametrize("paper", [paper for paper in TITLES if paper != "human-votes"])
def test_every_exhibit_is_read_from_its_own_arms(home: Path, paper: str) -> None:
    for slug, card in _cards(home, paper, "all").items():
        assert card["checks"], slug
        cells = [cell for row in card["table"].values() for cell in row.values()]
        assert cells and all(math.isfinite(cell["mean"]) for cell in cells), slug


def test_people_s_votes_are_read(finished: Path, home: Path, tmp_path: Path) -> None:
    """Of pairs with votes, on a model that has been trained already."""
    (base,) = finished.glob("store/artifacts/sft/*/*/model")
    (pairs,) = finished.glob("store/artifacts/comparisons/*/*/train.jsonl")
    source = tmp_path / "votes.jsonl"
    with source.open("w") as stream:
        for number, line in enumerate(pairs.read_text().splitlines()):
            row = json.loads(line)
            against = number % 3
            votes = {"votes_chosen": 5 - against, "votes_rejected": against, "votes_equal": 0}
            kept = {name: row[name] for name in ("prompt", "chosen", "rejected", "category")}
            stream.write(json.dumps({**kept, **votes}) + "\n")
    of_people = (f'preferences.sources=["{source}"]', "preferences.on_bad_rows=quarantine")
    cards = _cards(home, "human-votes", "planted-flips", *of_people, f"sft.model.base={base}")
    assert cards["human-votes-planted-flips"]["table"]
