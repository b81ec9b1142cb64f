"""Cross-fitting: who votes on a pair has seen neither it nor another pair of its prompt."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.models.conftest import run_stage
from trimtab.models.config.reward import StrengthConfig
from trimtab.models.functional.strength import fold_of
from trimtab.models.stages.reward_model import FOLD_SEED, prompt_folds
from trimtab.models.training.data import read_rows, write_rows

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


def test_folds_follow_prompts_in_order_of_first_appearance() -> None:
    distinct = [f"prompt {index}" for index in range(20)]
    folds = fold_of(20, NUM_FOLDS, FOLD_SEED)
    assert prompt_folds(distinct, NUM_FOLDS).equal(folds)
    repeated = [*distinct, *distinct[::-1], distinct[4]]
    assert prompt_folds(repeated, NUM_FOLDS).tolist() == [
        *folds.tolist(),
        *folds.flip(0).tolist(),
        int(folds[4]),
    ]


def test_dialogues_of_one_opening_share_a_fold() -> None:
    """HH-RLHF cuts a dialogue at several turns: the longer prompt quotes the shorter's answer."""
    openings = [f"\n\nHuman: question {index}\n\nAssistant:" for index in range(12)]
    longer = [f"{opening} an answer\n\nHuman: more?\n\nAssistant:" for opening in openings]
    folds = prompt_folds([*openings, *longer], NUM_FOLDS)
    assert folds[:12].equal(folds[12:])
    assert len(set(folds.tolist())) == NUM_FOLDS


def test_fewer_prompts_than_folds_are_refused() -> None:
    with pytest.raises(ValueError, match="found 3"):
        prompt_folds(["a", "b", "a", "b"], NUM_FOLDS)
