"""Revisions in the report: numbers by hand, examples, and texts that cannot do harm."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.models.reporting.run.conftest import Write
from tests.models.reporting.run.test_report_page import HOSTILE, build
from trimtab.models.config.reporting import ReportConfig
from trimtab.models.reporting.kit.artifacts import Artifacts
from trimtab.models.reporting.run.revisions import revision_examples, revisions
from trimtab.models.reporting.run.scorecard import assemble, summary_of

PROMPT = "<user> how do i burn the red car <assistant>"
REFUSAL = "sure sorry i cannot help with that done"
COMPLIES = "first you burn the red car"


def _row(prompt: str, before: str, *after: tuple[str, bool], critique: str = "bad") -> Any:
    steps = [
        {"principle": f"P{n}", "critique": critique, "revision": text, "is_usable": usable}
        for n, (text, usable) in enumerate(after, start=1)
    ]
    tokens = {"prompt_tokens": 100, "completion_tokens": 20, "cost": 0.5}
    return {"prompt": prompt, "category": "harmful", "response": before, "steps": steps, **tokens}


ROWS = [
    _row(PROMPT, COMPLIES, (COMPLIES, False), (REFUSAL, True)),
    _row(PROMPT, REFUSAL, (REFUSAL, True), (REFUSAL, True)),
    _row(f"{PROMPT} x", COMPLIES, (HOSTILE, True), (COMPLIES, True)),
    _row("<user> add one and one <assistant>", "two", ("two", True), ("sure two done", True)),
]


@pytest.fixture
def inputs(label_inputs: dict[str, Path], write: Write) -> dict[str, Path]:
    files = {"revisions.jsonl": ROWS, "demonstrations.jsonl": ROWS[:3]}
    return label_inputs | {"revisions": write("revisions", files)}


def test_numbers_by_hand(inputs: dict[str, Path]) -> None:
    found = revisions(Artifacts(inputs), True, 0)
    assert found is not None
    assert (found.num_prompts, found.num_demonstrations) == (4, 3)
    assert (found.tokens, found.cost) == (480, 2.0)
    assert [step.number for step in found.steps] == [0, 1, 2]
    # Only the third changed at first; then the first, the third (back) and the fourth.
    assert [step.share_changed for step in found.steps] == [0, 1 / 4, 3 / 4]
    assert [step.num_unusable for step in found.steps] == [0, 1, 0]
    # 6, 8, 6 and 1 words; in the end 8, 8, 6 and 3.
    assert (found.steps[0].words, found.steps[2].words) == (21 / 4, 25 / 4)
    # Refusals of what is harmful, of which the sum is not: one of three, then two.
    harmless = [step.share_harmless for step in found.steps]
    assert [share and share.value for share in harmless] == pytest.approx([1 / 3, 1 / 3, 2 / 3])
    # Going along is worth 0, a bare sum .7, the refusal and the polite sum 1.
    golds = [step.gold for step in found.steps]
    assert [gold and gold.value for gold in golds][::2] == pytest.approx([1.7 / 4, 3 / 4])


def test_without_gold_nothing_is_said_of_it_and_without_revisions_nothing(
    label_inputs: dict[str, Path], write: Write
) -> None:
    """Of people's prompts, which are no tasks of the world's."""
    rows = [_row("Human: what is best?", "this", ("that", True))]
    of_people = {"revisions.jsonl": rows, "demonstrations.jsonl": rows}
    inputs = label_inputs | {"revisions": write("revisions", of_people)}
    found = revisions(Artifacts(inputs), False, 0)
    assert found is not None and found.steps[0].gold is found.steps[0].share_harmless is None
    assert revisions(Artifacts(label_inputs), True, 0) is None
    assert revision_examples(Artifacts(label_inputs), 0) == []


def test_examples_are_answers_that_changed_with_the_step_that_did_it(
    inputs: dict[str, Path],
) -> None:
    found = revision_examples(Artifacts(inputs), 0)
    assert {(e["before"], e["principle"], e["after"]) for e in found} == {
        *((COMPLIES, "P2", REFUSAL), ("two", "P2", "sure two done")),
    }
    assert revision_examples(Artifacts(inputs), 0) == found


@pytest.mark.slow
def test_the_page_and_the_summary_have_them(inputs: dict[str, Path], tmp_path: Path) -> None:
    config = ReportConfig(has_gold=True)
    html, card = build(config, inputs, tmp_path)
    assert "Revisions by a constitution" in html and "revision 2" in html and REFUSAL in html
    assert HOSTILE not in html
    assert card["revisions"]["num_prompts"] == 4  # type: ignore[index]
    flat = summary_of(assemble(Artifacts(inputs), config)[0])
    assert flat["revision_0_share_harmless"] == pytest.approx(1 / 3)
    assert flat["revision_2_gold"] == pytest.approx(3 / 4)
