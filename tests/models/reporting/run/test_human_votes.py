"""Strength against people's votes: every number by hand, and the page with and without votes."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trimtab.models.config.reporting import ReportConfig
from trimtab.models.reporting.kit.artifacts import Artifacts, ReportInputError
from trimtab.models.reporting.run.human_votes import human_votes, vote_agreement
from trimtab.models.reporting.run.labels import embedding_models, strength_roles
from trimtab.models.reporting.run.scorers import measure
from trimtab.models.stages import report
from trimtab.models.statistics.measured import Estimate
from trimtab.models.training.stage import Stage

Row = dict[str, Any]
Inputs = dict[str, Path]
Write = Callable[[str, dict[str, Any]], Path]

# id, strength, votes (chosen, rejected, equal), words that chosen has more than rejected
VOTED = [
    ("a", -1.0, (2, 1, 2), 1),
    ("b", 1.0, (3, 2, 0), 2),
    ("c", 0.0, (5, 0, 0), 3),
    ("d", 2.0, (4, 0, 1), 4),
]


@pytest.fixture(autouse=True)
def few_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    """No value here depends on how exact its interval is."""
    monkeypatch.setattr("trimtab.models.statistics.estimates.NUM_RESAMPLES", 20)


def voted_pairs(prefix: str = "") -> list[Row]:
    return [
        {
            "id": prefix + identifier,
            "prompt": "Which is more convincing?",
            "chosen": f"{identifier} " + "word " * longer,
            "rejected": identifier,
            "category": "topic",
            "votes": dict(zip(("chosen", "rejected", "equal"), votes, strict=True)),
        }
        for identifier, _, votes, longer in VOTED
    ]


def voted_rows() -> list[Row]:
    strength = {identifier: mean for identifier, mean, *_ in VOTED}
    return [{**pair, "strength_mean": strength[pair["id"]]} for pair in voted_pairs()]


@pytest.fixture
def voted_inputs(write: Write) -> Inputs:
    """Four training and four test pairs, the same but for their ids, and two ways of voting."""

    def strength(scale: float, num_members: int) -> list[Row]:
        return [
            {
                "id": prefix + identifier,
                "split": split,
                "strength_mean": scale * mean,
                "strength_std": 0.1,
                "num_members": num_members if split == "train" else 2,
            }
            for prefix, split in (("", "train"), ("test-", "test"))
            for identifier, mean, *_ in VOTED
        ]

    pairs = {"train.jsonl": voted_pairs(), "test.jsonl": voted_pairs("test-")}
    return {
        "preferences": write("preferences", pairs),
        "strength": write("strength", {"strength.jsonl": strength(1.0, 2)}),
        "strength_cross_fitted": write(
            "strength_cross_fitted", {"strength.jsonl": strength(-1.0, 1)}
        ),
    }


def value(estimate: Estimate | None) -> float:
    assert estimate is not None
    return estimate.value


def test_votes_by_hand() -> None:
    found = vote_agreement(voted_rows(), 0, is_unseen=True)
    # Shares for: 2/5, 3/5, 1, 4/5; only c is unanimous.
    assert value(found.overall.share_for) == pytest.approx(0.7)
    assert value(found.overall.share_unanimous) == pytest.approx(0.25)
    # Four pairs make four groups; by strength they are a, c, b, d.
    assert [group.strength for group in found.groups] == [-1.0, 0.0, 1.0, 2.0]
    assert [value(g.share_for) for g in found.groups] == pytest.approx([0.4, 1.0, 0.6, 0.8])
    assert [value(g.share_unanimous) for g in found.groups] == [0.0, 1.0, 0.0, 0.0]
    # Minus the strength: not unanimous a 1, b -1, d -2, of which one is above c's 0.
    assert value(found.auroc_not_unanimous) == pytest.approx(1 / 3)
    # Opposed a 1, b -1 against c 0, d -2: three of four.
    assert value(found.auroc_opposed) == pytest.approx(3 / 4)
    assert (found.num_pairs, found.num_texts) == (4, 8)


def test_rank_correlation_in_the_label_order_by_hand() -> None:
    ranks = vote_agreement(voted_rows(), 0, is_unseen=False).in_label_order
    assert ranks is not None
    # Margins 0.2, 0.2, 1, 0.8 rank 1.5, 1.5, 4, 3; strengths 1, 3, 2, 4; words 1, 2, 3, 4. From
    # the middle 2.5, margins are -1, -1, 1.5, 0.5 (squares 4.5); products with strength's
    # -1.5, 0.5, -0.5, 1.5 sum to 1, with words' -1.5, -0.5, 0.5, 1.5 to 3.5 (squares 5 each).
    assert value(ranks.strength) == pytest.approx(1 / math.sqrt(4.5 * 5))
    assert value(ranks.length) == pytest.approx(3.5 / math.sqrt(4.5 * 5))
    # One run of two equal margins: 1 - (8 - 2) / (64 - 4).
    assert ranks.ceiling == pytest.approx(math.sqrt(0.9))


def test_rank_correlation_over_both_orders_by_hand() -> None:
    ranks = vote_agreement(voted_rows(), 0, is_unseen=True).in_both_orders
    assert ranks is not None
    # The hash, taken apart from this code, puts chosen first for c alone. Strengths 1, -1, 0, -2
    # rank 4, 2, 3, 1; margins -0.2, -0.2, 1, -0.8 rank 2.5, 2.5, 4, 1; words -1, -2, 3, -4 rank
    # 3, 2, 4, 1. From the middle, margins are 0, 0, 1.5, -1.5 (squares 4.5); products with
    # strength's 1.5, -0.5, 0.5, -1.5 sum to 3, with words' 0.5, -0.5, 1.5, -1.5 to 4.5.
    assert value(ranks.strength) == pytest.approx(3 / math.sqrt(4.5 * 5))
    assert value(ranks.length) == pytest.approx(4.5 / math.sqrt(4.5 * 5))
    assert ranks.ceiling == pytest.approx(math.sqrt(0.9))
    assert vote_agreement(voted_rows(), 0, is_unseen=False).in_both_orders is None


def test_both_orders_do_not_know_the_label() -> None:
    def swapped(row: Row) -> Row:
        """The same texts, votes and scores under the opposite label."""
        for_it, against, equal = (row["votes"][key] for key in ("chosen", "rejected", "equal"))
        return row | {
            "chosen": row["rejected"],
            "rejected": row["chosen"],
            "strength_mean": -row["strength_mean"],
            "votes": {"chosen": against, "rejected": for_it, "equal": equal},
        }

    rows = voted_rows()
    other = [swapped(row) if row["id"] in "ac" else row for row in rows]
    first, second = (vote_agreement(part, 0, is_unseen=True) for part in (rows, other))
    assert first.in_label_order != second.in_label_order
    assert first.in_both_orders == second.in_both_orders


def test_what_cannot_be_measured_is_none() -> None:
    rows = [row | {"votes": {"chosen": 5, "rejected": 0, "equal": 0}} for row in voted_rows()]
    found = vote_agreement(rows, 0, is_unseen=True)
    assert found.in_label_order is None
    assert found.auroc_not_unanimous is None
    assert found.auroc_opposed is None
    rows = [row | {"chosen": "x y", "rejected": "z"} for row in voted_rows()]
    ranks = vote_agreement(rows, 0, is_unseen=True).in_label_order
    assert ranks is not None
    assert ranks.length is None


def test_twenty_groups_need_twenty_pairs_each() -> None:
    assert len(vote_agreement(voted_rows() * 100, 0, is_unseen=True).groups) == 20
    assert len(vote_agreement((voted_rows() * 100)[1:], 0, is_unseen=True).groups) == 10


def test_both_ways_of_voting_and_both_splits(voted_inputs: Inputs) -> None:
    artifacts = Artifacts(voted_inputs)
    roles = strength_roles(artifacts)
    assert roles == {"in_sample": "strength", "cross_fitted": "strength_cross_fitted"}
    found = human_votes(artifacts, roles, 0)
    assert {mode: list(by_split) for mode, by_split in found.items()} == {
        "in_sample": ["train", "test"],
        "cross_fitted": ["train", "test"],
    }
    # Members voting in sample were told who won.
    assert found["in_sample"]["train"].in_both_orders is None
    assert found["in_sample"]["test"].in_both_orders is not None
    assert found["cross_fitted"]["train"].in_both_orders is not None
    # The other vote's strengths are the negatives, so what it orders is turned round.
    assert value(found["cross_fitted"]["test"].auroc_opposed) == pytest.approx(1 / 4)


def test_a_scorer_is_calibrated_by_people_s_shares(voted_inputs: Inputs, write: Write) -> None:
    """By hand: of decided votes a has 2 of 3 for its label, b 3 of 5, c 5 of 5, d 4 of 4."""
    gaps = {"a": -2.0, "b": 2.0, "c": -2.0, "d": 2.0}
    scores = [
        {"id": f"test-{name}", "split": "test", "chosen_score": gap, "rejected_score": 0.0}
        for name, gap in gaps.items()
    ]
    folder = write("member_0", {"scores.jsonl": scores, "summary.json": {"num_trained_pairs": 4}})
    artifacts = Artifacts({**voted_inputs, "member_0": folder})
    found = measure(artifacts, "member_0", 0)
    # One bin: as sure as 1 / (1 + exp(-2)), of a and c that the other answer is better.
    sure = 1 / (1 + math.exp(-2.0))
    assert value(found.votes_ece_width) == pytest.approx(sure - (1 / 3 + 3 / 5 + 0 + 1) / 4)
    path = voted_inputs["preferences"] / "test.jsonl"
    rows = [{**json.loads(line), "votes": None} for line in path.read_text().splitlines()]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    assert measure(Artifacts(artifacts.inputs), "member_0", 0).votes_ece_mass is None


def test_embedding_models_stand_beside_the_ensemble(voted_inputs: Inputs, write: Write) -> None:
    """One whose differences are the strengths: the same agreement, of pairs unseen."""
    strength = {identifier: mean for identifier, mean, *_ in VOTED}
    scores = [
        {"id": prefix + name, "split": split, "chosen_score": mean + 1, "rejected_score": 1.0}
        for prefix, split in (("", "train"), ("test-", "test"))
        for name, mean in strength.items()
    ]
    folder = write("states_linear", {"scores.jsonl": scores})
    artifacts = Artifacts({**voted_inputs, "states_linear": folder})
    assert embedding_models(artifacts) == ["states_linear"]
    roles = strength_roles(artifacts) | {"states_linear": "states_linear"}
    found = human_votes(artifacts, roles, 0)
    assert list(found) == ["in_sample", "cross_fitted", "states_linear"]
    assert found["states_linear"]["test"] == found["in_sample"]["test"]
    assert found["states_linear"]["train"].in_both_orders is not None


def test_pairs_without_votes_are_left_out(voted_inputs: Inputs) -> None:
    path = voted_inputs["preferences"] / "train.jsonl"
    rows = voted_pairs()
    rows[0]["votes"] = None
    del rows[1]["votes"]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    artifacts = Artifacts(voted_inputs)
    found = human_votes(artifacts, strength_roles(artifacts), 0)["in_sample"]
    assert (found["train"].num_pairs, found["test"].num_pairs) == (2, 4)


def test_strength_of_other_pairs_is_refused(voted_inputs: Inputs) -> None:
    path = voted_inputs["strength"] / "strength.jsonl"
    kept = [line for line in path.read_text().splitlines() if '"test-b"' not in line]
    path.write_text("".join(f"{line}\n" for line in kept))
    artifacts = Artifacts(voted_inputs)
    with pytest.raises(ReportInputError, match="1 pairs of test have no strength.*'test-b'"):
        human_votes(artifacts, strength_roles(artifacts), 0)


@pytest.mark.slow
def test_page_and_scorecard_with_votes(voted_inputs: Inputs, tmp_path: Path) -> None:
    report.run(ReportConfig(), Stage(voted_inputs, tmp_path))
    output = tmp_path / "output"
    html = (output / "report.html").read_text(encoding="utf-8")
    assert "Strength against people's votes" in html
    for mode in ("in-sample", "cross-fitted"):
        for split in ("train", "test"):
            assert f"{split} pairs, {mode} vote" in html
    # Strength is lowest at a (2 of 5 votes for) and highest at d (4 of 5).
    assert "Test pairs, in-sample vote: 40 % of people&#39;s votes" in html
    assert "0.211 [" in html  # 1 / sqrt(22.5), in the label's order
    card = json.loads((output / "scorecard.json").read_text())
    test = card["human_votes"]["in_sample"]["test"]
    assert test["auroc_opposed"]["value"] == pytest.approx(3 / 4)
    assert [group["share_for"]["value"] for group in test["groups"]] == [0.4, 1.0, 0.6, 0.8]
    summary = json.loads((output / "summary.json").read_text())
    assert summary["votes_in_sample_test_auroc_opposed"] == pytest.approx(3 / 4)
    assert summary["votes_in_sample_test_in_label_order_strength"] == pytest.approx(
        1 / math.sqrt(22.5)
    )


@pytest.mark.slow
def test_page_without_votes_does_not_mention_them(label_inputs: Inputs, tmp_path: Path) -> None:
    report.run(ReportConfig(), Stage(label_inputs, tmp_path))
    output = tmp_path / "output"
    assert "people" not in (output / "report.html").read_text(encoding="utf-8")
    assert json.loads((output / "scorecard.json").read_text())["human_votes"] == {}
