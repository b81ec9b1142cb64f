"""Cross-fitting: who votes on a pair has seen neither it nor another pair of its prompt."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from tests.models.conftest import run_stage
from trimtab.models.config.reward import StrengthConfig, TrunkCacheConfig
from trimtab.models.data.records import read_rows
from trimtab.models.data.self_test import planted_flips
from trimtab.models.functional.strength import fold_of
from trimtab.models.stages.reward_model import FOLD_SEED, folds_of
from trimtab.models.training.data import write_rows

NUM_FOLDS = 3


@pytest.fixture(scope="session")
def rankings(tmp_path_factory: pytest.TempPathFactory, comparisons: Path) -> Path:
    """The comparisons with three answers ranked for every prompt, so three pairs of each.

    A third of the prompts keeps one pair; the pairs of a prompt do not stand together.
    """
    folder = tmp_path_factory.mktemp("rankings")
    for split in ("train", "validation", "test"):
        rows = read_rows(comparisons / f"{split}.jsonl")
        ranked = [row for index, row in enumerate(rows) if index % 3]
        second = [{**row, "id": f"{row['id']}#1-3", "rejected": "third"} for row in ranked]
        third = [
            {**row, "id": f"{row['id']}#2-3", "chosen": row["rejected"], "rejected": "third"}
            for row in ranked
        ]
        write_rows(folder / f"{split}.jsonl", rows + second + third)
    return folder


@pytest.mark.slow
def test_pairs_of_one_prompt_share_a_fold_and_every_pair_is_counted(
    tmp_path: Path, smoke_config: Any, policy: Path, rankings: Path
) -> None:
    members = {}
    for fold in range(NUM_FOLDS):
        config = smoke_config.ensemble.member.model_copy(
            update={"seed": fold, "fold": fold, "num_folds": NUM_FOLDS}
        )
        members[f"member_{fold}"] = run_stage(
            "reward_model", config, tmp_path / f"member_{fold}", policy=policy, preferences=rankings
        )
    prompt_of = {row["id"]: row["prompt"] for row in read_rows(rankings / "train.jsonl")}
    holders: dict[str, set[str]] = {prompt: set() for prompt in prompt_of.values()}
    for name, member in members.items():
        trained, left_out = set(), set()
        for row in read_rows(member / "scores.jsonl"):
            is_vote = row["chosen_score"] is not None and row["rejected_score"] is not None
            assert is_vote != row["was_trained_on"]
            if row["split"] == "train":
                (trained if row["was_trained_on"] else left_out).add(prompt_of[row["id"]])
        assert trained
        assert left_out
        assert not trained & left_out
        for prompt in left_out:
            holders[prompt].add(name)
    assert {len(names) for names in holders.values()} == {1}
    output = run_stage("strength", StrengthConfig(mode="cross_fitted"), tmp_path / "s", **members)
    votes = {row["id"]: row["num_members"] for row in read_rows(output / "strength.jsonl")}
    assert {votes[identifier] for identifier in prompt_of} == {1}


def _prompt_folds(prompts: list[str]) -> Tensor:
    return folds_of([{"prompt": prompt} for prompt in prompts], NUM_FOLDS, "prompt")


def test_folds_follow_prompts_in_order_of_first_appearance() -> None:
    distinct = [f"prompt {index}" for index in range(20)]
    folds = fold_of(20, NUM_FOLDS, FOLD_SEED)
    assert _prompt_folds(distinct).equal(folds)
    repeated = [*distinct, *distinct[::-1], distinct[4]]
    assert _prompt_folds(repeated).tolist() == [
        *folds.tolist(),
        *folds.flip(0).tolist(),
        int(folds[4]),
    ]


def test_dialogues_of_one_opening_share_a_fold() -> None:
    """HH-RLHF cuts a dialogue at several turns: the longer prompt quotes the shorter's answer."""
    openings = [f"\n\nHuman: question {index}\n\nAssistant:" for index in range(12)]
    longer = [f"{opening} an answer\n\nHuman: more?\n\nAssistant:" for opening in openings]
    folds = _prompt_folds([*openings, *longer])
    assert folds[:12].equal(folds[12:])
    assert len(set(folds.tolist())) == NUM_FOLDS


def test_fewer_prompts_than_folds_are_refused() -> None:
    with pytest.raises(ValueError, match="found 3"):
        _prompt_folds(["a", "b", "a", "b"])


def test_a_member_learns_from_and_scores_the_copy_with_planted_flips(
    tmp_path: Path, smoke_config: Any, policy: Path, comparisons: Path
) -> None:
    """As if the file had them so; with the frozen layers' states, and a split without pairs."""
    rows = read_rows(comparisons / "train.jsonl")
    is_flipped = planted_flips(rows, 0.2).tolist()
    assert 0 < sum(is_flipped) < len(rows)
    swapped = [
        {**row, "chosen": row["rejected"], "rejected": row["chosen"]} if flip else row
        for row, flip in zip(rows, is_flipped, strict=True)
    ]
    for name, own in (("raw", rows), ("copy", swapped)):
        write_rows(tmp_path / name / "train.jsonl", own)
        write_rows(tmp_path / name / "validation.jsonl", [])
        write_rows(tmp_path / name / "test.jsonl", read_rows(comparisons / "test.jsonl"))
    trunk = run_stage(
        "trunk_cache",
        TrunkCacheConfig(trainable_layers=1),
        tmp_path / "trunk",
        policy=policy,
        preferences=tmp_path / "raw",
    )
    member = smoke_config.ensemble.member
    train = member.train.model_copy(update={"trainable_layers": 1})
    own = {"train": train, "fold": 1, "num_folds": NUM_FOLDS, "fold_by": "pair"}
    member = member.model_copy(update=own)
    on_purpose = member.model_copy(update={"planted_share": 0.2, "saves_model": False})
    inputs = {"policy": policy, "preferences": tmp_path / "raw", "trunk": trunk}
    output = run_stage("reward_model", on_purpose, tmp_path / "a", **inputs)
    inputs = {"policy": policy, "preferences": tmp_path / "copy"}
    expected = run_stage("reward_model", member, tmp_path / "b", **inputs)
    assert (expected / "model").is_dir() and not (output / "model").exists()
    found, others = (read_rows(each / "scores.jsonl") for each in (output, expected))
    train_rows = [row for row in found if row["split"] == "train"]
    assert [row["is_planted"] for row in train_rows] == is_flipped
    assert {row["split"] for row in found} == {"train", "test"}
    assert not any(row["is_planted"] for row in found if row["split"] == "test")
    for row, other in zip(found, others, strict=True):
        assert (row["id"], row["was_trained_on"]) == (other["id"], other["was_trained_on"])
        for name in ("chosen_score", "rejected_score"):
            is_vote = not row["was_trained_on"]
            assert row[name] == (pytest.approx(other[name], abs=1e-4) if is_vote else None)
    left_out = sum(not row["was_trained_on"] for row in train_rows)
    assert abs(left_out - len(rows) / NUM_FOLDS) <= 1
