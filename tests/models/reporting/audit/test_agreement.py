"""The panel of judges: shares, position bias and agreement derived on paper."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from trimtab.models.config.reporting import AuditConfig
from trimtab.models.reporting.audit.agreement import Panel, panel_of
from trimtab.models.reporting.audit.page import write_page
from trimtab.models.reporting.audit.pairs import AuditedPair
from trimtab.models.reporting.audit.summary import summarise
from trimtab.models.reporting.kit.audit_words import agreement

# Of the six pairs in their order: what three judges say when the chosen answer is shown first and
# when second, and their votes behind the vote of another voter. The second judge gives no answer on
# the second pair; the third was asked about two pairs, and said neither.
FIRST = [(0.9, 0.7), (0.8, 0.4), (0.2, 0.4), (0.9, 0.9), (0.6, 0.6), (0.3, 0.1)]
SECOND = [(0.6, 0.6), (0.5, 0.5), (0.9, 0.3), (0.3, 0.1), (0.7, 0.7), (0.4, 0.4)]
THIRD = [(1.0, 0.0), (1.0, 0.0)]
VOTES = [
    (2.0, 1.0, 0.4, None), (1.0, 0.4, None, None), (2.0, -0.8, 0.4, None),
    (1.0, 2.2, -1.4, None), (0.5, 0.4, 0.8, None), (1.0, -1.4, -0.4, None),
]  # fmt: skip
NAMES = ("gpt-4.1", "qwen3", "mute")


def _rows(
    pairs: Sequence[AuditedPair], said: Sequence[tuple[float, float]]
) -> list[dict[str, Any]]:
    return [
        {
            "id": pair.id,
            "shown_first": first,
            "shown_second": second,
            "num_unparsed": 2 * ((first, second) == (0.5, 0.5)),
        }
        for pair, (first, second) in zip(pairs, said, strict=False)
    ]


@pytest.fixture
def voted(pairs: list[AuditedPair]) -> list[AuditedPair]:
    return [replace(pair, differences=own) for pair, own in zip(pairs, VOTES, strict=True)]


@pytest.fixture
def panel(voted: list[AuditedPair]) -> Panel:
    found = panel_of(voted, NAMES, [_rows(voted, said) for said in (FIRST, SECOND, THIRD)])
    assert found is not None
    return found


def test_judges_by_hand(panel: Panel) -> None:
    first, second, third = panel.judges
    assert (first.name, first.num_judged, first.num_votes) == ("gpt-4.1", 6, 6)
    assert first.for_label is not None and first.for_label.value == pytest.approx(4 / 6)
    # All but the second pair; (.2 + .4 - .2 + 0 + 0 + .2) / 2 / 6.
    assert first.same_in_both_orders is not None
    assert first.same_in_both_orders.value == pytest.approx(5 / 6)
    assert first.position_bias == pytest.approx(0.05)
    # Of five understood pairs one has two answers; (0 + .6 + .2 + 0 + 0) / 2 / 5.
    assert (second.num_judged, second.num_votes) == (6, 5)
    assert second.for_label is not None and second.for_label.value == pytest.approx(3 / 5)
    assert second.same_in_both_orders is not None
    assert second.same_in_both_orders.value == pytest.approx(4 / 5)
    assert second.position_bias == pytest.approx(0.08)
    # Always the first: the orders outweigh each other.
    assert (third.num_judged, third.num_votes, third.for_label) == (2, 0, None)
    assert third.same_in_both_orders is not None and third.same_in_both_orders.value == 0
    assert third.position_bias == 0.5


def test_agreement_by_hand(panel: Panel) -> None:
    """Five pairs with two votes: alike on the first, fifth and sixth. Their ten votes are compared
    as annotators' are, either answer being as frequent: observed 2 * 2 votes that differ, expected
    10 * 10 / 2 / 9."""
    lowest, *others = panel.agreements
    assert (lowest.first, lowest.second) == ("gpt-4.1", "qwen3")
    assert lowest.share is not None and lowest.share.count == 5
    assert lowest.share.value == pytest.approx(3 / 5)
    assert [each.share for each in others] == [None, None]
    assert panel.alpha == pytest.approx(1 - 4 / (50 / 9))


def test_numbers_and_words_are_those_of_the_panel(panel: Panel, voted: list[AuditedPair]) -> None:
    numbers = summarise(voted, ("style", *NAMES), panel=panel).numbers()
    ours = {name: value for name, value in numbers.items() if name.startswith(("judge", "num_jud"))}
    assert ours == {
        "num_judges": 3,
        "judge_gpt-4.1_num_judged": 6,
        "judge_gpt-4.1_num_votes": 6,
        "judge_gpt-4.1_for_label": pytest.approx(4 / 6),
        "judge_gpt-4.1_same_in_both_orders": pytest.approx(5 / 6),
        "judge_gpt-4.1_position_bias": pytest.approx(0.05),
        "judge_qwen3_num_judged": 6,
        "judge_qwen3_num_votes": 5,
        "judge_qwen3_for_label": pytest.approx(3 / 5),
        "judge_qwen3_same_in_both_orders": pytest.approx(4 / 5),
        "judge_qwen3_position_bias": pytest.approx(0.08),
        "judge_mute_num_judged": 2,
        "judge_mute_num_votes": 0,
        "judge_mute_same_in_both_orders": 0.0,
        "judge_mute_position_bias": 0.5,
        "judges_gpt-4.1_and_qwen3_agree": pytest.approx(3 / 5),
        "judges_krippendorff_alpha": pytest.approx(0.28),
    }
    assert agreement(numbers) == [
        "Judge gpt-4.1 votes on 6 of 6 pairs, for the label on 66.7 % of them; its answer is the "
        "same in both orders on 83.3 %.",
        "Judge qwen3 votes on 5 of 6 pairs, for the label on 60.0 % of them; its answer is the "
        "same in both orders on 80.0 %.",
        "Judge mute votes on 0 of 2 pairs; its answer is the same in both orders on 0.0 %.",
        "Krippendorff's alpha of the 3 judges' votes is 0.28.",
    ]


def test_a_panel_of_one_has_no_alpha_and_none_is_no_panel(voted: list[AuditedPair]) -> None:
    alone = [replace(pair, differences=pair.differences[:2]) for pair in voted]
    found = panel_of(alone, NAMES[:1], [_rows(voted, FIRST)])
    assert found is not None
    assert (found.alpha, found.agreements, len(found.judges)) == (None, [], 1)
    assert not any("alpha" in name for name in found.numbers())
    assert panel_of(voted, (), []) is None
    assert agreement(summarise(voted).numbers()) == []


def test_judges_that_are_never_understood_have_nothing_but_their_names(
    voted: list[AuditedPair],
) -> None:
    silent = [replace(pair, differences=(1.0, None, None)) for pair in voted]
    rows = _rows(voted, [(0.5, 0.5)] * 6)
    found = panel_of(silent, NAMES[:2], [rows, rows])
    assert found is not None and found.alpha is None
    assert {key: value for key, value in found.numbers().items() if value} == {
        "num_judges": 2,
        "judge_gpt-4.1_num_judged": 6,
        "judge_qwen3_num_judged": 6,
    }


def test_a_pair_that_recurs_the_other_way_round_is_one_item(voted: list[AuditedPair]) -> None:
    """Judges say of it what they said before, whatever its label: alpha does not rise by that."""
    texts = {"chosen": voted[0].rejected, "rejected": voted[0].chosen, "prompt": voted[0].prompt}
    swapped = tuple(None if each is None else -each for each in VOTES[0])
    again = replace(voted[5], **texts, differences=swapped)
    rows = [_rows(voted, said) for said in (FIRST, SECOND, THIRD)]
    found = panel_of([*voted[:5], again], NAMES, rows)
    fewer = panel_of(voted[:5], NAMES, [each[:5] for each in rows])
    assert found is not None and fewer is not None
    assert found.alpha == fewer.alpha == pytest.approx(1 - 4 / (8 * 8 / 2 / 7))


def test_the_page_has_the_panel(panel: Panel, voted: list[AuditedPair], tmp_path: Path) -> None:
    voters = ("style", *(f"judge {name}" for name in NAMES))
    summary = summarise(voted, voters, panel=panel)
    path = tmp_path / "audit.html"
    config = AuditConfig(voters=voters, num_external=3, judges=NAMES)
    write_page(path, config, summary, voted)
    page = " ".join(path.read_text(encoding="utf-8").split())
    assert (
        "4 models vote: how an answer is written, judge gpt-4.1, judge qwen3, judge mute." in page
    )
    assert '<th scope="row">gpt-4.1</th><td class="n">6</td>' in page
    assert '<th scope="row">gpt-4.1, qwen3</th>' in page
    assert "Krippendorff's alpha (nominal) of the judges' votes is 0.28" in page
    assert '<td class="n">+0.50</td>' in page
    write_page(path, AuditConfig(voters=voters), summarise(voted, voters), voted)
    assert "Judges" not in path.read_text(encoding="utf-8")
