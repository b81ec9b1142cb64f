"""Records: a pair as stages write it, and counts that cannot be."""

from __future__ import annotations

import dataclasses

import pytest

from trimtab.models.data.records import PreferencePair, RecordError, Votes

PAIR = PreferencePair(
    id="a",
    prompt="\n\nHuman: Où?\u2028\n\nAssistant:",
    chosen=" Là.",
    rejected=" 🙂",
    category="qa",
    rating=3,
    votes=Votes(3, 1, 1),
    group="g",
    source="f.jsonl:1",
)


def test_a_pair_is_written_as_the_contract_says() -> None:
    assert PAIR.to_json() == {
        "id": "a",
        "prompt": "\n\nHuman: Où?\u2028\n\nAssistant:",
        "chosen": " Là.",
        "rejected": " 🙂",
        "category": "qa",
        "rating": 3,
        "votes": {"chosen": 3, "rejected": 1, "equal": 1},
        "group": "g",
        "source": "f.jsonl:1",
    }


def test_records_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        PAIR.prompt = "p"  # type: ignore[misc]


def test_negative_counts_of_votes_are_refused() -> None:
    with pytest.raises(RecordError, match="allowed: counts of 0 or more"):
        Votes(3, -1)
