"""Strength against votes, and labels turned round, on a few pairs by hand."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.models.studies.conftest import Row, Run, strength, truth
from trimtab.models.data.records import PreferencePair, Votes
from trimtab.models.data.splits import plant_flips, truth_of
from trimtab.models.reporting.kit.artifacts import ReportInputError
from trimtab.models.studies.human_votes import BOTH, STRONGEST, WEAKEST, planted_flips, votes


def _pairs(split: str) -> list[Row]:
    """Four pairs with 5, 4, 3 and 3 of five votes for the label."""
    return [
        {
            "id": f"{split}{n}",
            "prompt": "p",
            "chosen": f"{split} chosen {n}",
            "rejected": f"{split} rejected {n}",
            "category": None,
            "votes": {"chosen": count, "rejected": 5 - count, "equal": 0},
        }
        for n, count in enumerate((5, 4, 3, 3))
    ]


def _strengths(*means: float) -> dict[str, Any]:
    rows = [
        strength(f"{split}{n}", mean, split=split)
        for split in ("train", "test")
        for n, mean in enumerate(means)
    ]
    return {"strength.jsonl": rows}


def _members(number: int) -> dict[str, dict[str, Any]]:
    return {f"member_{index}": {} for index in range(number)}


def test_an_ensemble_that_orders_pairs_as_people_do_correlates(run: Run) -> None:
    preferences = {"train.jsonl": _pairs("train"), "test.jsonl": _pairs("test")}
    roles = {
        "preferences": preferences,
        "strength_in_sample_1": _strengths(0.1, 0.2, 0.3, 0.4),
        "strength_in_sample_3": _strengths(4.0, 3.0, 2.0, 1.0),
        **_members(3),
    }
    reading = votes(run(roles))
    assert list(reading.table) == ["in-sample, M = 1", "in-sample, M = 3"]
    good = reading.table["in-sample, M = 3"]
    assert good[STRONGEST] == 1.0
    assert good[WEAKEST] == pytest.approx(0.6)
    assert good[BOTH] > reading.table["in-sample, M = 1"][BOTH]
    assert all(reading.checks.values())


def test_pairs_without_votes_are_refused(run: Run) -> None:
    roles = {"strength_in_sample_1": _strengths(1.0), **_members(1)}
    with pytest.raises(ReportInputError, match="carry no votes"):
        votes(run(roles))


def test_turned_labels_at_the_weak_end_are_found(run: Run) -> None:
    truths = [truth(f"train{n}", n == 0, "flipped" if n == 0 else "clear") for n in range(4)]
    found, missed = _strengths(-1.0, 1.0, 2.0, 3.0), _strengths(3.0, -2.0, -1.0, 1.0)
    roles = {
        "preferences": {"truth.jsonl": truths},
        **{f"strength_in_sample_{size}": missed for size in (1, 3, 5, 10)},
        **{f"strength_cross_fitted_{size}": found for size in (3, 5, 10)},
        **_members(10),
    }
    reading = planted_flips(run(roles))
    row = reading.table["cross-fitted, M = 10"]
    assert list(row.values()) == [1.0, 1.0, 1.0]
    assert reading.table["in-sample, M = 10"]["AUROC among clear pairs"] == 0.0
    assert list(reading.checks.values()) == [False, True]


def _pair(identifier: str, given: Votes | None) -> PreferencePair:
    return PreferencePair(identifier, "p", f"good {identifier}", f"bad {identifier}", votes=given)


def test_only_clear_labels_are_turned_and_what_was_is_written_down() -> None:
    pairs = [_pair(f"{n}", Votes(5, 0, 0)) for n in range(8)]
    unclear = [_pair("u", Votes(4, 1, 0)), _pair("e", Votes(4, 0, 1))]
    turned = plant_flips([*pairs, *unclear], 0.25, random.Random(0))
    changed = [
        (before, after)
        for before, after in zip([*pairs, *unclear], turned, strict=True)
        if before != after
    ]
    assert len(changed) == 2  # a quarter of eight
    for before, after in changed:
        assert (after.chosen, after.rejected) == (before.rejected, before.chosen)
        assert after.votes == Votes(0, 5, 0)
        row = truth_of(before, after, "train")
        assert (row["kind"], row["is_wrong"]) == ("flipped", True)
        assert (row["gold_chosen"], row["gold_rejected"]) == (0.0, 1.0)
    assert turned[8:] == unclear
    assert truth_of(unclear[0], unclear[0], "test")["kind"] == "ambiguous"


def test_pairs_without_votes_are_clear() -> None:
    pairs = [_pair(f"{n}", None) for n in range(4)]
    turned = plant_flips(pairs, 0.25, random.Random(1))
    assert sum(a != b for a, b in zip(pairs, turned, strict=True)) == 1
    row = truth_of(pairs[0], turned[0], "train")
    assert {row["gold_chosen"], row["gold_rejected"]} == {0.0, 1.0}
