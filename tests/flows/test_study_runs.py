"""Every table and figure at smoke size: its arms are computed, and its page is read from them.

Stages run as a flow runs them, each a trainer of its own whose result is in the store, but without
Prefect and MLflow; the command, which people use, then finds the results of one paper.
"""

from __future__ import annotations

import html
import json
import math
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.flows.command import from_store, trimtab
from tests.flows.direct import submit_directly
from trimtab.flows import study as flow
from trimtab.flows.config.overrides import apply_changes, parse_overrides
from trimtab.flows.config.recipes import recipe_named
from trimtab.flows.pipeline.run import SharedRun
from trimtab.infra.processes.launch import close_servers
from trimtab.models.studies.registry import TITLES, Exhibit, exhibits_of
from trimtab.tasks import report_export
from trimtab.tasks.execution import StageContext, StageResult

pytestmark = pytest.mark.slow
# Nothing here depends on what the policies learn: few steps, and answers that are cut early.
SHORT = (
    "ppo.num_steps=2",
    *(f"{section}.max_new_tokens=6" for section in ("ppo", "rounds.meta_rm", "evaluate")),
)
HOW = ("--scale", "smoke", "--seeds", "0")


@pytest.fixture(scope="module")
def fork_server() -> Iterator[str]:
    """One for all papers; gives what it loads."""
    yield "tests.flows.preload_all"
    close_servers()


@pytest.fixture
def direct(home: Path, fork_server: str, monkeypatch: pytest.MonkeyPatch) -> StageContext:
    """Stages of all runs are computed where they are submitted."""
    context = submit_directly(home, fork_server, monkeypatch)
    monkeypatch.setattr(report_export, "base_context", lambda: context)
    return context


def _pages(
    direct: StageContext, monkeypatch: pytest.MonkeyPatch, paper: str
) -> Iterator[tuple[Exhibit, str, Path]]:
    """Each exhibit of a paper with its status and the folder of its page."""
    config = apply_changes(recipe_named("smoke"), {"seed": 0, **parse_overrides(SHORT)})
    made: dict[Any, Any] = {}
    runs = {each: {0: SharedRun(config, submitted=made)} for each in exhibits_of(paper, "all")}
    keys: list[str] = []

    def exported(_: None, found: StageResult, *_others: object) -> dict[str, Any]:
        keys.append(found.ref.key)
        return found.summary

    monkeypatch.setattr(flow, "export_report", exported)
    for each, of_seeds in runs.items():
        flow.submit_arms(each, of_seeds[0])
    how = (*SHORT, *HOW)
    found = flow.read_all(
        runs, lambda each, of_seeds: flow._read(each, of_seeds, config, None, how)
    )
    for each, key in zip(runs, keys, strict=True):
        (folder,) = direct.settings.home.glob(f"store/artifacts/study/{key}/*/")
        yield each, found[each.slug], folder


# With the most arms; those of the others, and what reads them, are of the same kinds.
LONGEST = ("part-1", "part-2", "advantage-model", "methods")
PAPERS = [
    pytest.param(paper, marks=[pytest.mark.nightly] if paper in LONGEST else [])
    for paper in TITLES
    if paper != "human-votes"
]


@pytest.mark.parametrize("paper", PAPERS)
def test_every_exhibit_is_read_from_its_own_arms(
    direct: StageContext, monkeypatch: pytest.MonkeyPatch, paper: str
) -> None:
    for each, status, folder in _pages(direct, monkeypatch, paper):
        card = _card(each, folder, (*SHORT, *HOW))
        assert card["status"] == status
        assert card["checks"], each.slug
        cells = [cell for row in card["table"].values() for cell in row.values()]
        assert cells and all(math.isfinite(cell["mean"]) for cell in cells), each.slug


def _card(exhibit: Exhibit, folder: Path, how: Sequence[str]) -> dict[str, Any]:
    """The scorecard of an exhibit, beside its page."""
    card: dict[str, Any] = json.loads((folder / "scorecard.json").read_text())
    page = html.unescape((folder / "report.html").read_text())
    assert f"Here: {next(iter(card['table']))}: " in page
    assert card["command"] == shlex.join(["trimtab", "study", exhibit.paper, exhibit.name, *how])
    return card


def _cards(home: Path, paper: str, asked: str, *overrides: str) -> tuple[dict[str, Any], str]:
    """Scorecards of what the command is asked of a paper, by slug, and what it printed."""
    how = (*overrides, *HOW)
    output = trimtab(home, "study", paper, asked, *how)
    cards = {}
    for exhibit in exhibits_of(paper, asked):
        (folder,) = home.glob(f"reports/study-{exhibit.slug}-smoke*")
        card = cards[exhibit.slug] = _card(exhibit, folder, how)
        assert f"{exhibit.slug}: {card['status']}\n" in output
    return cards, output


def test_the_command_finds_all_of_a_paper(
    home: Path, direct: StageContext, prefect: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages = list(_pages(direct, monkeypatch, "constants"))
    cards, output = _cards(home, "constants", "all", *SHORT)
    assert cards.keys() == {each.slug for each, _, _ in pages} and len(pages) > 1
    num_found, num_stages = from_store(output)
    assert num_found == num_stages


def test_people_s_votes_are_read(finished: Path, home: Path, tmp_path: Path, prefect: None) -> None:
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
    cards, _ = _cards(home, "human-votes", "planted-flips", *of_people, f"sft.model.base={base}")
    assert cards["human-votes-planted-flips"]["table"]
