"""Every table and figure is declared once, and has a reader."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from prefect.utilities.callables import parameter_schema

from trimtab.flows.cli.cli import main
from trimtab.flows.study import study
from trimtab.models.config.data import WORLD_VERSION
from trimtab.models.stages.study import READERS
from trimtab.models.studies.papers import (
    EARLIER_WORLD,
    TOSSED,
    all_tables,
    cards_below,
    chance_line,
    index_page,
    paper_page,
)
from trimtab.models.studies.registry import EXHIBITS, TITLES, Exhibit, _declarations, exhibits_of
from trimtab.models.studies.variants import SCORES

# As the papers are asked for: Part I figures 3, 4 and 6 to 9; Part II figures 1 to 13 and 15 to 17,
# tables 2 and 3; Advantage Model figures 1 to 6, tables 1 and 2; every free constant.
WANTED = {
    *(f"part-1-figure-{n}" for n in (3, 4, 6, 7, 8, 9)),
    *(f"part-1-{name}" for name in ("score-distributions", "joint-clips", "alignment-tax")),
    *(f"part-2-figure-{n}" for n in (*range(1, 14), 15, 16, 17)),
    *("part-2-table-2", "part-2-table-3"),
    *(f"advantage-model-figure-{n}" for n in range(1, 7)),
    *("advantage-model-table-1", "advantage-model-table-2"),
    *(f"advantage-model-{name}" for name in ("rehearsal", "rehearsal-criteria", "calibration")),
    *("human-votes-votes", "human-votes-planted-flips", "rlaif-alignment", "rlaif-feedback"),
    *("methods-frontier", "methods-temperature"),
    *(
        f"constants-{name}"
        for name in (
            *("smoothing", "margin-clip", "temperature", "num-policies"),
            *("num-clusters", "per-cluster", "meta-step"),
            *("entropy-coef", "policy-clip", "gradient-clip", "gae-lambda"),
        )
    ),
}


def test_none_is_missing() -> None:
    slugs = [exhibit.slug for exhibit in EXHIBITS]
    assert len(slugs) == len(set(slugs))
    assert set(slugs) >= WANTED


def test_what_flows_read_of_the_source_is_what_the_stage_registers() -> None:
    assert {exhibit.slug for exhibit in EXHIBITS} == READERS.keys()
    assert all(each.shows and each.claim for each in EXHIBITS)


def test_a_function_declares_the_exhibit_that_it_reads() -> None:
    source = '''
exhibit = exhibits_in("part-1")

@exhibit(arms="vanilla_ppo", varied=variants.SCORES, claim="It rises", remark=said)
def figure_5(artifacts):
    """A curve
    of two lines.

    How it is read.
    """
'''
    (declared,) = _declarations(source)
    assert declared == Exhibit("part-1", "figure-5", "A curve of two lines", "It rises")
    assert (declared.arms, declared.varied) == ("vanilla_ppo", SCORES)
    assert (declared.slug, declared.title) == ("part-1-figure-5", "Figure 5")


def test_a_form_offers_every_paper_and_exhibit() -> None:
    form = parameter_schema(study).properties
    assert form["paper"]["enum"] == list(TITLES)
    assert set(form["exhibit"]["enum"]) == {"all", *(each.name for each in EXHIBITS)}


def test_a_paper_has_its_own_exhibits() -> None:
    assert [each.slug for each in exhibits_of("part-2", "table-2")] == ["part-2-table-2"]
    assert exhibits_of("part-1", "table-2") == []
    assert len(exhibits_of("part-1", "all")) == 10


COMMAND = "trimtab study part-2 figure-3"
CARD: dict[str, Any] = {
    "paper": "part-2",
    "name": "figure-3",
    "claim": "The stronger the preference, the more often a judge agrees with its label",
    "remark": "",
    "seeds": [2, 3],
    "scale": "default",
    "command": f"{COMMAND} --seeds 2 3",
    "status": "in part",
    "seconds": 1234.5,
    "world_version": WORLD_VERSION,
    "checks": {"it rises": [True, False]},
    "table": {"row": {"column": {"mean": 0.5, "std": 0.1, "values": [0.4, 0.6]}}},
}


def test_the_page_has_a_row_for_each_whether_run_or_not() -> None:
    cards = {"study-part-2-figure-3-default": CARD}
    title = "[Secrets of RLHF Part II: reward modeling](papers/part-2.md)"
    assert f"| {title} | 0 | 1 | 0 | 0 | 22 |" in index_page(cards)
    papers = all_tables(cards).split("## ")[1:]
    rows = [line for paper in papers for line in paper.splitlines()[4:] if line]
    assert len(rows) == len(EXHIBITS)
    assert sum("not run yet" in row for row in rows) == len(EXHIBITS) - 1
    (mine,) = [row for row in rows if "not run yet" not in row]
    assert mine.startswith(
        "| Figure 3 | The stronger the preference, the more often a judge agrees "
    )
    assert mine.endswith(" with its label | default | in part, 1 of 2 |")


def test_the_page_says_how_much_would_hold_by_chance(tmp_path: Path) -> None:
    # Of parts in two seeds a quarter by chance, in three an eighth: 3/4 + 1/8; 1/4 + 1/8 exhibits.
    # A part that no seed tells cannot be shown.
    two = {"a": [True, True], "b": [True, None], "c": [False, True], "d": [None, None]}
    cards = {
        "x": {**CARD, "checks": two},
        "y": {**CARD, "checks": {"a": [True] * 3}, "seeds": [2, 3, 4], "status": "held"},
    }
    words = (
        "If every part of a claim tossed a coin in every seed, 0.9 of the 4 parts that some seed "
        "tells would be shown by all seeds by chance, and 2 are; at most 0.4 of the 2 exhibits "
        "would be held, and 1 are. Parts that ask for no difference, as those of the constants, "
        "are shown more often than by a coin."
    )
    assert chance_line(cards) == words
    assert index_page(cards).endswith(f"\n\n{words}\n")
    assert "| in part, 4 of 8, 3 cannot tell |" in all_tables({"x": cards["x"]})


def test_what_was_measured_in_an_earlier_world_says_so(tmp_path: Path) -> None:
    old = {name: value for name, value in CARD.items() if name != "world_version"} | {
        "claim": "Another claim"
    }
    page = paper_page("part-2", {"any": old}, tmp_path)
    assert "| Another claim | " in page
    assert "in part, 1 of 2 † |" in page and page.count(EARLIER_WORLD) == 2
    assert "†" not in paper_page("part-2", {"any": {**CARD, "world_version": None}}, tmp_path)


def test_an_exhibit_s_section_has_all_there_is_to_say_at_every_scale(tmp_path: Path) -> None:
    two = {"a": {**CARD, "remark": "It is odd."}, "b": {**CARD, "scale": "hh", "status": "held"}}
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "plot.svg").write_text("<svg/>")
    page = paper_page("part-2", two, tmp_path)
    first, second = page.partition("\n## Figure 3\n")[2].split("\n### Recipe ")[1:]
    assert first.startswith("`default`: in part\n\nIt is odd.\n")
    assert second.startswith("`hh`: held\n")
    assert "| it rises | 1 of 2 |" in first
    assert "| row | 0.500 ± 0.100 |" in first
    assert "(a/plot.svg)" in first
    assert "svg" not in second
    assert f"```bash\n{COMMAND} --seeds 2 3\n```\n\n1,234 s " in first


def test_what_was_kept_stays_until_it_is_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRIMTAB_HOME", str(tmp_path / "home"))
    (tmp_path / "docs").mkdir()
    conclusions = tmp_path / "docs" / "what-holds.md"
    conclusions.write_text(f"# What holds\n\n{TOSSED}, nobody knows.\n\nMore.\n")
    for name, status in (("figure-3", "held"), ("figure-4", "in part"), ("figure-3", "not held")):
        shutil.rmtree(tmp_path / "home", ignore_errors=True)  # as on another machine
        study = tmp_path / "home" / "reports" / f"study-part-2-{name}-default"
        study.mkdir(parents=True)
        if name == "figure-3":  # a table has none
            (study / "plots").mkdir()
            (study / "plots" / f"{status}.svg").write_text("<svg/>")
        card = json.dumps({**CARD, "name": name, "status": status})
        (study / "scorecard.json").write_text(card)
        assert main(["papers", "--into", str(tmp_path / "docs")]) == 0
    page = (tmp_path / "docs" / "papers" / "part-2.md").read_text()
    rows = [line for line in page.splitlines() if "| [Figure" in line]
    assert [row.split(" | ")[3] for row in rows] == ["not held, 1 of 2 |", "in part, 1 of 2 |"]
    assert "[Figure 3](#figure-3)" in rows[0]
    assert "not held.svg" in page
    # Both parts in two seeds, none of them shown by both.
    words = chance_line(cards_below(tmp_path / "docs" / "papers"))
    assert words.startswith(f"{TOSSED}, 0.5 of the 2 parts that some seed tells would be ")
    assert conclusions.read_text() == f"# What holds\n\n{words}\n\nMore.\n"
    kept = tmp_path / "docs" / "papers" / "study-part-2-figure-3-default"
    assert {path.name for path in kept.iterdir()} == {"not held.svg", "scorecard.json"}


def test_the_papers_pages_are_made_of_the_scorecards_beside_them() -> None:
    docs = Path(__file__).parents[3] / "docs"
    cards = cards_below(docs / "papers")
    assert (docs / "papers.md").read_text(encoding="utf-8") == index_page(cards)
    kept = {path.stem: path.read_text(encoding="utf-8") for path in docs.glob("papers/*.md")}
    assert kept == {paper: paper_page(paper, cards, docs / "papers") for paper in TITLES}
    assert f"\n{chance_line(cards)}\n" in (docs / "what-holds.md").read_text(encoding="utf-8")
