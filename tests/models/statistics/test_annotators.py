"""Dawid-Skene with one accuracy an annotator, and Krippendorff's alpha: by hand, and planted."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest

from trimtab.models.statistics.annotators import (
    Opinions,
    consensus,
    krippendorff_alpha,
    label_probabilities,
    opinions_of,
)

Row = dict[str, Any]


def _row(item: int, *, is_flipped: bool = False, **said: str) -> Row:
    """A row of item's answers "a" and "b", with who prefers which."""
    better, worse = ("b", "a") if is_flipped else ("a", "b")
    prefers = {better: "chosen", worse: "rejected", "-": "equal"}
    return {
        "id": f"{item}{better}{sorted(said)}",
        "prompt": f"q{item}",
        "chosen": better,
        "rejected": worse,
        "opinions": [{"annotator": who, "prefers": prefers[what]} for who, what in said.items()],
    }


def _opinions(*rows: Row) -> Opinions:
    found = opinions_of(rows)
    assert found is not None
    return found


def test_rows_of_one_pair_are_one_item_whichever_answer_is_labelled_better() -> None:
    rows = [
        _row(0, x="a"),
        _row(0, is_flipped=True, y="b"),
        _row(0, x="-"),
        _row(1, is_flipped=True, y="a"),
    ]
    found = _opinions(*rows, {"id": "none", "prompt": "q", "opinions": None})
    assert found.item.tolist() == [0, 0, 1]
    assert found.annotator.tolist() == [0, 1, 1]
    assert found.vote.tolist() == [0, -1, 1]  # x contradicts himself
    assert found.item_of["0b['y']"] == (0, -1)
    assert found.is_shared.tolist() == [True, False]
    assert opinions_of([{"id": "none", "opinions": None}]) is None


def test_who_labels_alone_is_taken_for_the_prior() -> None:
    found = consensus(_opinions(*(_row(item, x="a") for item in range(50))))
    assert found.accuracy.tolist() == pytest.approx([2 / 3])
    assert found.probability.tolist() == pytest.approx([2 / 3] * 50)


def test_two_who_always_contradict_each_other_by_hand() -> None:
    """No item is more likely either way: of n votes n / 2 count as right."""
    found = consensus(_opinions(*(_row(item, x="a", y="b") for item in range(4))))
    assert found.probability.tolist() == pytest.approx([0.5] * 4)
    assert found.accuracy.tolist() == pytest.approx([(2 + 2) / (3 + 4)] * 2)


def test_two_who_agree_by_hand() -> None:
    """One item, a = (2 + p) / 4 of both, and p / (1 - p) = (a / (1 - a))^2."""
    found = consensus(_opinions(_row(0, x="a", y="a", z="-")))
    (p,) = found.probability.tolist()
    a, other, tied = found.accuracy.tolist()
    assert a == pytest.approx(other) and tied == pytest.approx(2 / 3)
    assert a == pytest.approx((2 + p) / 4, abs=1e-6)
    assert math.sqrt(p / (1 - p)) == pytest.approx(a / (1 - a), abs=1e-5)
    assert p == pytest.approx(0.8641, abs=1e-4)  # the root of the two, by bisection: 0.8641


@pytest.mark.slow
def test_labels_that_nobody_else_decided_do_not_confirm_themselves() -> None:
    """Two share 50 items and differ over 20: of both a = (2 + 30 p + 10) / 53, and p / (1 - p) =
    (a / (1 - a))^2 where they agree. By bisection a is 0.7146, with any number of other labels."""
    shared = [_row(item, x="a", y="a" if item < 30 else "b") for item in range(50)]
    for num_others in (0, 20_000):
        others = [_row(100 + n, x="a") for n in range(num_others)]
        others += [_row(100_000 + n, y="a", z="-") for n in range(num_others)]
        found = consensus(_opinions(*shared, *others))
        a, other = found.accuracy[:2].tolist()
        assert a == pytest.approx(other) and a == pytest.approx(0.7146, abs=1e-4)
        p = a**2 / (a**2 + (1 - a) ** 2)
        assert a == pytest.approx((2 + 30 * p + 10) / 53, abs=1e-6)
        assert found.probability.tolist() == pytest.approx(
            [p] * 30 + [0.5] * 20 + [a] * 2 * num_others, abs=1e-6
        )


def test_many_labels_of_who_shares_nothing_are_taken_for_the_prior() -> None:
    found = consensus(_opinions(*(_row(item, x="a") for item in range(10_000))))
    assert found.accuracy.tolist() == pytest.approx([2 / 3])


def test_repeated_rows_of_one_annotator_are_one_vote() -> None:
    """Ten items in two equal rows each by x alone: nobody to agree with."""
    repeated = [_row(item, x="a") for item in range(10)]
    found = _opinions(*repeated, *repeated)
    assert found.vote.tolist() == [1] * 10
    assert krippendorff_alpha(found) is None
    assert not found.is_shared.any()
    # Beside y, who differs once, x's rows count once: 0.25 as by hand below.
    rows = [_row(0, x="a", y="a"), _row(1, x="a", y="b"), _row(0, x="a"), _row(1, x="a")]
    opinions = _opinions(*rows)
    assert krippendorff_alpha(opinions) == 0.25
    assert consensus(opinions).accuracy.tolist() == pytest.approx(
        consensus(_opinions(*rows[:2])).accuracy.tolist()
    )
    # Who says both of one pair has not decided, whatever a third row says.
    both = _opinions(_row(0, x="a"), _row(0, x="b"), _row(0, x="b"), _row(0, y="a"))
    assert both.vote.tolist() == [0, 1]


def test_planted_accuracies_are_found_and_beat_the_majority() -> None:
    draw = random.Random(0)
    right = {"good": 0.95, "fair": 0.8, "poor": 0.65, "coin": 0.5, "another": 0.5}
    truth, rows = [], []
    for item in range(3000):
        better = draw.choice("ab")
        truth.append(better)
        said = {
            who: better if draw.random() < share else ("b" if better == "a" else "a")
            for who, share in right.items()
        }
        rows.append(_row(item, is_flipped=draw.random() < 0.5, **said))
    opinions = _opinions(*rows)
    found = consensus(opinions)
    for who, accuracy in zip(opinions.names, found.accuracy.tolist(), strict=True):
        assert accuracy == pytest.approx(right[who], abs=0.04), who
    known = [
        (p > 0.5) == (b == "a") for p, b in zip(found.probability.tolist(), truth, strict=True)
    ]
    majority = opinions.vote.view(-1, 5).sum(1) > 0
    by_majority = [bool(m) == (b == "a") for m, b in zip(majority, truth, strict=True)]
    assert sum(known) / 3000 > 0.93 > 0.85 > sum(by_majority) / 3000
    labels = label_probabilities(opinions, found)
    for row, p in zip(rows, found.probability.tolist(), strict=True):
        assert labels[row["id"]] == pytest.approx(p if row["chosen"] == "a" else 1 - p)


def test_alpha_by_hand() -> None:
    # Of four votes two differ: observed 2, expected (2 * 2 + 2 * 2) / 3.
    assert krippendorff_alpha(_opinions(_row(0, x="a", y="a"), _row(1, x="a", y="b"))) == 0.25
    # The order of the answers does not matter.
    rows = (_row(0, x="a", y="a"), _row(1, is_flipped=True, x="b", y="a"))
    assert krippendorff_alpha(_opinions(*rows)) == 0.25
    assert krippendorff_alpha(_opinions(_row(0, x="a", y="a"), _row(1, x="b", y="b"))) == 1
    # With a vote for neither: counts 2.5, 2.5 and 1 of 6 once both answers are made equal. The
    # three votes on one item all differ: observed 3 * 1 * 2 / 2; expected (2 * 2.5 * 3.5 + 5) / 5.
    rows = (_row(0, x="a", y="a", z="a"), _row(1, x="a", y="b", z="-"))
    assert krippendorff_alpha(_opinions(*rows)) == pytest.approx(1 - 3 / 4.5)
    # Nobody's labels can be compared.
    assert krippendorff_alpha(_opinions(_row(0, x="a"), _row(1, y="b"))) is None
    assert krippendorff_alpha(_opinions(_row(0, x="-", y="-"))) is None
