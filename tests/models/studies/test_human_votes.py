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


@pytest.mark.slow
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


@pytest.mark.slow
def test_turned_labels_at_the_weak_end_are_found(run: Run) -> None:
    """The first of four labels is turned: the longer answers, but the shorter one, are labelled."""
    truths = [truth(f"train{n}", n == 0, "flipped" if n == 0 else "clear") for n in range(4)]
    pairs = [{**pair, "chosen": "longer than it"} for pair in _pairs("train")]
    pairs[0] |= {"chosen": "short", "rejected": "longer than it"}
    scores = [
        {"id": f"train{n}", "split": "train", "chosen_score": score, "rejected_score": 0.0}
        for n, score in enumerate((-2.0, -3.0, 1.0, 1.0))
    ]
    own = {
        "preferences": {"truth.jsonl": truths, "train.jsonl": pairs},
        "strength": _strengths(3.0, -2.0, -1.0, 1.0),
        "strength_cross_fitted": _strengths(-1.0, 1.0, 2.0, 3.0),
        "embedding_linear": {"scores.jsonl": scores},
    }
    for row in own["strength_cross_fitted"]["strength.jsonl"]:
        row["num_members"] = 1 + (row["id"] == "train0")
    roles = {f"flips_{share}_{role}": files for share in (10, 25) for role, files in own.items()}
    # At the third share length finds nothing: the turned label has the longer answer too.
    pairs = [{**pair, "chosen": "longer than it", "rejected": "b"} for pair in pairs]
    third = own | {"preferences": {"truth.jsonl": truths, "train.jsonl": pairs}}
    roles |= {f"flips_40_{role}": files for role, files in third.items()}
    reading = planted_flips(run(roles))
    assert list(reading.table)[4:8] == [
        "25 % turned: in-sample vote",
        "25 % turned: cross-fitted vote",
        "25 % turned: linear on sentence embeddings",
        "25 % turned: difference in words",
    ]
    found = {name: row["AUROC among clear pairs"] for name, row in reading.table.items()}
    assert found["25 % turned: cross-fitted vote"] == found["10 % turned: difference in words"] == 1
    assert found["40 % turned: in-sample vote"] == 0.0
    assert found["40 % turned: linear on sentence embeddings"] == pytest.approx(2 / 3)
    row = reading.table["10 % turned: linear on sentence embeddings"]
    assert row["precision of strength below 0"] == 0.5
    assert row["recall of strength below 0"] == 1.0
    assert found["25 % turned: difference in words"] == 1.0
    assert found["40 % turned: difference in words"] == 0.5
    assert list(reading.checks.values()) == [False, False, True]


def _pair(identifier: str, given: Votes | None) -> PreferencePair:
    return PreferencePair(identifier, "p", f"good {identifier}", f"bad {identifier}", votes=given)


def test_only_clear_labels_are_turned_and_what_was_is_written_down() -> None:
    pairs = [_pair(f"{n}", Votes(5, 0, 0)) for n in range(8)]
    unclear = [_pair("u", Votes(4, 1, 0)), _pair("e", Votes(4, 0, 1))]
    flipped = plant_flips([*pairs, *unclear], 0.25, random.Random(0))
    changed = [
        (before, after)
        for before, after in zip([*pairs, *unclear], flipped, strict=True)
        if before != after
    ]
    assert len(changed) == 2  # a quarter of eight
    for before, after in changed:
        assert (after.chosen, after.rejected) == (before.rejected, before.chosen)
        assert after.votes == Votes(0, 5, 0)
        row = truth_of(before, after, "train")
        assert (row["kind"], row["is_wrong"]) == ("flipped", True)
        assert (row["gold_chosen"], row["gold_rejected"]) == (0.0, 1.0)
    assert flipped[8:] == unclear
    assert truth_of(unclear[0], unclear[0], "test")["kind"] == "ambiguous"


def test_pairs_without_votes_are_clear() -> None:
    pairs = [_pair(f"{n}", None) for n in range(4)]
    flipped = plant_flips(pairs, 0.25, random.Random(1))
    assert sum(a != b for a, b in zip(pairs, flipped, strict=True)) == 1
    row = truth_of(pairs[0], flipped[0], "train")
    assert {row["gold_chosen"], row["gold_rejected"]} == {0.0, 1.0}
