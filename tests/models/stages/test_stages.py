"""Stages at smoke size: what they promise about their outputs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.models.conftest import run_stage
from trimtab.models.config.reward import RelabelConfig, StrengthConfig
from trimtab.models.data.records import read_rows
from trimtab.models.nets.packing import Candidates
from trimtab.models.training.batching import epoch_batches, micro_batches
from trimtab.models.training.progress import NotFiniteError, Progress


@pytest.fixture(scope="session")
def members(
    tmp_path_factory: pytest.TempPathFactory, smoke_config: Any, policy: Path, comparisons: Path
) -> list[Path]:
    return [
        run_stage(
            "reward_model",
            smoke_config.ensemble.member.model_copy(update={"seed": seed, "fold": seed % 2}),
            tmp_path_factory.mktemp("member"),
            policy=policy,
            preferences=comparisons,
        )
        for seed in range(2)
    ]


def test_members_say_how_far_their_scoring_is(members: list[Path]) -> None:
    """Each part ends at its whole, and follows the training, which has no part."""
    rows = [row for row in read_rows(members[0].parent / "metrics.jsonl") if "progress" in row]
    parts = list(dict.fromkeys(row.get("part") for row in rows))
    splits = [f"scoring {split} pairs" for split in ("train", "validation", "test")]
    assert parts == [None, *splits, "scoring probes"]
    last = {row.get("part"): row["progress"] for row in rows}
    assert all(done == total for done, total in last.values())


def test_splits_share_no_prompt_and_truth_covers_all(comparisons: Path) -> None:
    prompts = [
        {row["prompt"] for row in read_rows(comparisons / f"{split}.jsonl")}
        for split in ("train", "validation", "test")
    ]
    assert not prompts[0] & prompts[1]
    assert not (prompts[0] | prompts[1]) & prompts[2]
    truth = {row["id"]: row for row in read_rows(comparisons / "truth.jsonl")}
    rows = read_rows(comparisons / "train.jsonl")
    assert {row["id"] for row in rows} <= truth.keys()
    assert not {"kind", "gold_chosen", "is_wrong"} & rows[0].keys()


def test_further_pairs_of_a_prompt_leave_the_first_as_it_was(
    tmp_path: Path, smoke_config: Any, world: Path, policy: Path, comparisons: Path
) -> None:
    config = smoke_config.comparisons.model_copy(update={"pairs_per_prompt": 3})
    output = run_stage("comparisons", config, tmp_path, data=world, policy=policy)
    for split in ("train", "validation", "test"):
        rows = {row["id"]: row for row in read_rows(output / f"{split}.jsonl")}
        alone = read_rows(comparisons / f"{split}.jsonl")
        assert alone == [row for row in rows.values() if row["id"] == row["group"]]
        assert len(rows) > len(alone)
        together: dict[str, set[str]] = {}
        for row in rows.values():
            together.setdefault(row["group"], set()).add(row["prompt"])
        assert all(len(prompts) == 1 for prompts in together.values())
        assert len(
            {(row["group"], row["chosen"], row["rejected"]) for row in rows.values()}
        ) == len(rows)
        assert {row["rating"] for row in rows.values()} <= {1, 2, 3, 4}


def test_world_sets_are_disjoint(world: Path) -> None:
    def prompts(name: str) -> set[str]:
        return {row["prompt"] for row in read_rows(world / f"{name}.jsonl")}

    evaluation = prompts("eval/main") | prompts("eval/forget") | prompts("eval/held_out")
    assert not evaluation & prompts("demonstrations")
    assert not evaluation & (prompts("pair_prompts") | prompts("policy_prompts"))


def test_cross_fitted_votes_come_from_members_that_never_saw_the_pair(
    tmp_path: Path, members: list[Path]
) -> None:
    inputs = {f"member_{index}": member for index, member in enumerate(members)}
    output = run_stage("strength", StrengthConfig(mode="cross_fitted"), tmp_path, **inputs)
    scores = [read_rows(member / "scores.jsonl") for member in members]
    for index, row in enumerate(read_rows(output / "strength.jsonl")):
        voters = [member[index] for member in scores if not member[index]["was_trained_on"]]
        assert row["num_members"] == len(voters) == (1 if row["split"] == "train" else 2)
        mean = sum(v["chosen_score"] - v["rejected_score"] for v in voters) / len(voters)
        assert row["strength_mean"] == pytest.approx(mean)
        against = sum(vote["chosen_score"] < vote["rejected_score"] for vote in voters)
        assert (row["num_for"], row["num_against"]) == (len(voters) - against, against)


def test_relabelling_keeps_the_raw_pair(
    tmp_path: Path, members: list[Path], comparisons: Path
) -> None:
    inputs = {f"member_{index}": member for index, member in enumerate(members)}
    strength = run_stage("strength", StrengthConfig(), tmp_path / "strength", **inputs)
    output = run_stage(
        "relabel", RelabelConfig(), tmp_path / "relabel", preferences=comparisons, strength=strength
    )
    means = {row["id"]: row["strength_mean"] for row in read_rows(strength / "strength.jsonl")}
    raw = read_rows(comparisons / "train.jsonl")
    for before, after in zip(raw, read_rows(output / "train.jsonl"), strict=True):
        assert before.items() <= after.items()
        assert after["is_flipped"] == (means[before["id"]] < 0)


@pytest.mark.slow
def test_rehearsal_and_meta_rm_end_to_end(
    tmp_path: Path,
    smoke_config: Any,
    world: Path,
    policy: Path,
    advantage_model: Path,
    comparisons: Path,
) -> None:
    rehearsal = run_stage(
        "rehearsal",
        smoke_config.rehearsal.model_copy(update={"max_prompts": 50}),
        tmp_path / "rehearsal",
        data=world,
        policy=policy,
        scorer=advantage_model,
    )
    rows = read_rows(rehearsal / "rehearsal.jsonl")
    kept = dict.fromkeys(range(4), 0)
    for row in rows:
        kept[row["cluster"]] += 1
    assert all(0 < count <= smoke_config.rehearsal.per_cluster for count in kept.values())
    assert json.loads((rehearsal / "summary.json").read_text())["num_sampled"] == 50
    output = run_stage(
        "meta_rm",
        smoke_config.rounds.meta_rm,
        tmp_path / "meta_rm",
        scorer=advantage_model,
        policy=policy,
        data=world,
        preferences=comparisons,
    )
    assert json.loads((output / "model" / "config.json").read_text())["id2label"] == {
        "0": "reward",
        "1": "expected_reward",
    }


def test_batches_hold_every_index_once_and_depend_on_seed_and_epoch_alone() -> None:
    lengths = [index % 7 + 1 for index in range(101)]
    batches = epoch_batches(lengths, 8, seed=3, epoch=0)
    assert sorted(index for batch in batches for index in batch) == list(range(101))
    assert batches == epoch_batches(lengths, 8, seed=3, epoch=0)
    assert batches != epoch_batches(lengths, 8, seed=3, epoch=1)


def test_micro_batches_respect_the_token_budget() -> None:
    rows = [Candidates([1] * length, ([2],)) for length in (3, 9, 2, 30, 4)]
    parts = list(micro_batches(rows, max_tokens=20))
    assert sorted(index for part in parts for index in part) == [0, 1, 2, 3, 4]
    for part in parts:
        assert len(part) == 1 or sum(rows[index].num_tokens for index in part) <= 20


def test_a_nan_stops_training_and_says_where(tmp_path: Path) -> None:
    with pytest.raises(NotFiniteError, match="loss became nan at step 7"):
        Progress(tmp_path).log(7, {"loss": torch.tensor(float("nan"))})
