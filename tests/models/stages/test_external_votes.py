"""Votes from a file as scores, abstentions, and their turn in the copy of the self-test."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import pytest

from tests.models.conftest import run_stage
from trimtab.models.config.reward import ExternalVotesConfig, StrengthConfig
from trimtab.models.data.external_votes import VotesError
from trimtab.models.data.records import read_rows
from trimtab.models.data.row_account import RowAccount, RowCounts
from trimtab.models.training.data import write_rows

NUM_PAIRS = 8


@pytest.fixture
def preferences(tmp_path: Path) -> Path:
    """Pairs that were read from the lines of one file; one tie was dropped."""
    folder = tmp_path / "preferences"
    rows = [
        {"id": f"p{n}", "prompt": f"Q{n}", "chosen": "A", "rejected": "B", "source": f"f.jsonl:{n}"}
        for n in range(NUM_PAIRS)
    ]
    write_rows(folder / "train.jsonl", rows)
    for split in ("validation", "test"):
        write_rows(folder / f"{split}.jsonl", [])
    counts = RowCounts(NUM_PAIRS + 1, NUM_PAIRS, 0, 1, 0)
    account = RowAccount(counts, {"f.jsonl": counts}, {}, None, NUM_PAIRS, NUM_PAIRS, 0, 0, 0, 0)
    (folder / "rows.json").write_text(json.dumps(dataclasses.asdict(account)))
    return folder


def _votes(tmp_path: Path, preferences: Path, **votes: float) -> Path:
    write_rows(tmp_path / "given" / "mine.jsonl", ({"id": n, "vote": v} for n, v in votes.items()))
    return run_stage(
        "external_votes",
        ExternalVotesConfig(source="somewhere/mine.jsonl"),
        tmp_path / "work",
        preferences=preferences,
        votes=tmp_path / "given",
    )


def test_pairs_without_a_vote_are_abstained_from(tmp_path: Path, preferences: Path) -> None:
    output = _votes(tmp_path, preferences, p0=1.0, p3=-2.5, the_tie=1.0)
    rows = read_rows(output / "scores.jsonl")
    scores = [(row["chosen_score"], row["rejected_score"]) for row in rows]
    nothing = (None, None)
    assert scores == [(1.0, 0.0), nothing, nothing, (-2.5, 0.0), *[nothing] * 4]
    assert [row["id"] for row in rows] == [f"p{n}" for n in range(NUM_PAIRS)]
    summary = json.loads((output / "summary.json").read_text())
    assert summary == {"num_pairs": 8, "num_votes": 2, "share_for_the_label": 0.5}


def test_more_strangers_than_rows_set_aside_are_refused(tmp_path: Path, preferences: Path) -> None:
    with pytest.raises(VotesError, match=r"mine.jsonl:2: unknown_id in field 'id': found 'x'"):
        _votes(tmp_path, preferences, p0=1.0, x=1.0, y=1.0)


def test_in_the_self_test_an_outside_vote_turns_with_the_label(
    tmp_path: Path, preferences: Path
) -> None:
    """A vote that is right on all pairs but p6 and p7, of which p0 and p6 are planted flips."""
    votes = {f"p{n}": 1.0 if n < 6 else -1.0 for n in range(NUM_PAIRS - 1)}
    external = _votes(tmp_path, preferences, **votes)
    learned = tmp_path / "learned"
    write_rows(
        learned / "scores.jsonl",
        (
            {
                "id": f"p{n}",
                "split": "train",
                "chosen_score": 0.0,
                "rejected_score": 0.0,
                "was_trained_on": False,
                "is_planted": n in (0, 6),
            }
            for n in range(NUM_PAIRS)
        ),
    )
    config = StrengthConfig(mode="calibrated")
    for order in ((learned, external), (external, learned)):
        inputs = {f"member_{index}": member for index, member in enumerate(order)}
        rows = read_rows(run_stage("strength", config, tmp_path / "s", **inputs) / "strength.jsonl")
        assert [row["is_planted"] for row in rows] == [n in (0, 6) for n in range(NUM_PAIRS)]
        # Of seven votes six are for the labels of the copy: not that on p0, but that on p6.
        signs = [-1, 1, 1, 1, 1, 1, 1, 0]
        expected = [math.log(6) * sign for sign in signs]
        assert [row["strength_mean"] for row in rows] == pytest.approx(expected, abs=0.01)
        assert [row["num_members"] for row in rows] == [2] * 7 + [1]
    # On the labels as they are, where nothing was learned from a copy.
    row = read_rows(
        run_stage("strength", config, tmp_path / "t", member_0=external) / "strength.jsonl"
    )[0]
    assert row["strength_mean"] > 0 and "is_planted" not in row


def test_soft_labels_weigh_a_voter_by_their_certainty(tmp_path: Path, preferences: Path) -> None:
    """A vote for all labels, each of which is right with probability .7."""
    external = _votes(tmp_path, preferences, **{f"p{n}": 1.0 for n in range(NUM_PAIRS)})
    rows = read_rows(preferences / "train.jsonl")
    write_rows(preferences / "train.jsonl", ({**row, "label": 0.7} for row in reversed(rows)))
    inputs = {"member_0": external, "preferences": preferences}
    config = StrengthConfig(mode="calibrated")
    found = read_rows(run_stage("strength", config, tmp_path / "s", **inputs) / "strength.jsonl")
    assert [row["id"] for row in found] == [f"p{n}" for n in range(NUM_PAIRS)]
    expected = [math.log(7 / 3)] * NUM_PAIRS
    assert [row["strength_mean"] for row in found] == pytest.approx(expected, abs=2e-3)


def test_members_of_parts_vote_on_their_own_part_alone(tmp_path: Path) -> None:
    """However sure they are of what they were trained on; together they have one weight."""
    wrong = (1, 2, 4, 6)
    for part in (0, 1):
        write_rows(
            tmp_path / f"{part}" / "scores.jsonl",
            (
                {
                    "id": f"p{n}",
                    "split": "train",
                    "chosen_score": 100.0 if n % 2 != part else (-1.0 if n in wrong else 1.0),
                    "rejected_score": 0.0,
                    "was_trained_on": n % 2 != part,
                }
                for n in range(16)
            ),
        )
    members = {f"member_{part}": tmp_path / f"{part}" for part in (0, 1)}
    config = StrengthConfig(mode="calibrated")
    rows = read_rows(run_stage("strength", config, tmp_path / "s", **members) / "strength.jsonl")
    # One is right on five of its eight, the other on seven: together on three of four.
    expected = [math.log(3) * (-1 if n in wrong else 1) for n in range(16)]
    assert [row["strength_mean"] for row in rows] == pytest.approx(expected, abs=0.01)
    assert {row["num_members"] for row in rows} == {1}


def test_who_has_no_weight_is_not_counted_for_or_against(tmp_path: Path) -> None:
    """One member is right on nine of ten pairs, the other on one of ten."""
    for name, sign in (("good", 1.0), ("bad", -1.0)):
        write_rows(
            tmp_path / name / "scores.jsonl",
            (
                {
                    "id": f"p{n}",
                    "split": "train",
                    "chosen_score": sign * (-1.0 if n % 10 == 0 else 1.0),
                    "rejected_score": 0.0,
                    "was_trained_on": False,
                }
                for n in range(40)
            ),
        )
    output = run_stage(
        "strength",
        StrengthConfig(mode="calibrated"),
        tmp_path / "s",
        member_0=tmp_path / "good",
        member_1=tmp_path / "bad",
    )
    rows = read_rows(output / "strength.jsonl")
    assert [row["num_against"] for row in rows] == [int(n % 10 == 0) for n in range(40)]
    assert [row["num_for"] for row in rows] == [int(n % 10 != 0) for n in range(40)]
