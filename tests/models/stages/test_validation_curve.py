"""What a reward model leaves of its validation pairs by step, and of pairs that do not count."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from tests.models.conftest import run_stage
from tests.models.jobs import Killed, die_after
from trimtab.models.config.reward import RelabelConfig, RewardModelConfig
from trimtab.models.config.training import ZeroConfig
from trimtab.models.data.records import read_rows
from trimtab.models.nets.loading import load_scorer, load_tokenizer
from trimtab.models.training import loop
from trimtab.models.training.data import Pairs, read_pairs, write_rows


def _validation(comparisons: Path, policy: Path) -> Pairs:
    return read_pairs(comparisons / "validation.jsonl", load_tokenizer(policy / "model"))


def test_the_last_scoring_is_that_of_the_model_saved(
    tmp_path: Path, smoke_config: Any, comparisons: Path, policy: Path
) -> None:
    train = smoke_config.reward_model.train.model_copy(update={"num_epochs": 1})
    config = RewardModelConfig(train=train, score_every=1)
    made = run_stage("reward_model", config, tmp_path, policy=policy, preferences=comparisons)
    rows = read_rows(made / "validation.jsonl")
    pairs = _validation(comparisons, policy)
    steps = sorted({row["step"] for row in rows})
    assert steps == list(range(1, steps[-1] + 1))
    assert [row["id"] for row in rows if row["step"] == 1] == pairs.identifiers
    scored = {
        row["id"]: row["chosen_score"] - row["rejected_score"]
        for row in read_rows(made / "scores.jsonl")
        if row["split"] == "validation"
    }
    last = {row["id"]: row["gap"] for row in rows if row["step"] == steps[-1]}
    assert last == pytest.approx(scored, abs=1e-5)
    first = {row["id"]: row["gap"] for row in rows if row["step"] == 1}
    assert first != pytest.approx(scored, abs=1e-5)


def test_looking_changes_nothing(
    tmp_path: Path, smoke_config: Any, comparisons: Path, policy: Path
) -> None:
    train = smoke_config.reward_model.train.model_copy(update={"num_epochs": 1, "dropout": 0.1})
    made = [
        run_stage(
            "reward_model",
            RewardModelConfig(train=train, score_every=every),
            tmp_path / str(every),
            policy=policy,
            preferences=comparisons,
        )
        for every in (None, 2)
    ]
    plain, looked = (load_scorer(folder / "model").state_dict() for folder in made)
    assert all(torch.equal(plain[name], looked[name]) for name in plain)


@pytest.mark.slow
def test_one_that_goes_on_elsewhere_has_every_row_once(
    tmp_path: Path,
    smoke_config: Any,
    comparisons: Path,
    policy: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    train = smoke_config.reward_model.train.model_copy(
        update={"num_epochs": 2, "checkpoint_every": 2}
    )
    config = RewardModelConfig(train=train, score_every=1)
    inputs = {"policy": policy, "preferences": comparisons}
    whole = run_stage("reward_model", config, tmp_path / "whole", **inputs)
    die_after(monkeypatch, loop, 4)  # after its row of step 4, before its checkpoint
    with pytest.raises(Killed):
        run_stage("reward_model", config, tmp_path / "killed", **inputs)
    monkeypatch.undo()
    shutil.copytree(tmp_path / "killed/checkpoints", tmp_path / "elsewhere/checkpoints")
    resumed = run_stage("reward_model", config, tmp_path / "elsewhere", **inputs)
    rows = read_rows(resumed / "validation.jsonl")
    assert rows == read_rows(whole / "validation.jsonl")
    assert {row["step"] for row in rows} > {1, 2, 3, 4}


def test_pairs_outside_the_slice_are_not_trained_on(
    tmp_path: Path, smoke_config: Any, comparisons: Path, policy: Path
) -> None:
    rows = read_rows(comparisons / "train.jsonl")
    strength = [{"id": row["id"], "strength_mean": float(n)} for n, row in enumerate(rows)]
    write_rows(tmp_path / "strength" / "strength.jsonl", strength)
    kept = run_stage(
        "relabel",
        RelabelConfig(flip_below=None, keep_from=0.5, keep_to=0.75),
        tmp_path / "relabelled",
        preferences=comparisons,
        strength=tmp_path / "strength",
    )
    pairs = read_pairs(kept / "train.jsonl", load_tokenizer(policy / "model"))
    first, last = round(0.5 * len(rows)), round(0.75 * len(rows))
    assert pairs.identifiers == [row["id"] for row in rows[first:last]]
    made = run_stage(
        "reward_model",
        RewardModelConfig(train=smoke_config.reward_model.train),
        tmp_path / "scorer",
        policy=policy,
        preferences=comparisons,
        pairs=kept,
    )
    summary = json.loads((made / "summary.json").read_text())
    assert summary["num_trained_pairs"] == len(pairs.identifiers)


def test_fewer_pairs_are_some_of_more(tmp_path: Path, comparisons: Path) -> None:
    rows = read_rows(comparisons / "train.jsonl")
    strength = [{"id": row["id"], "strength_mean": float(n)} for n, row in enumerate(rows)]
    write_rows(tmp_path / "strength" / "strength.jsonl", strength)
    found = []
    for count in (10, 20, len(rows) + 1):
        output = run_stage(
            "relabel",
            RelabelConfig(flip_below=None, keep_from=0.5, max_pairs=count),
            tmp_path / str(count),
            preferences=comparisons,
            strength=tmp_path / "strength",
        )
        kept = [row["id"] for row in read_rows(output / "train.jsonl") if row["weight"] > 0]
        found.append(set(kept))
    assert [len(kept) for kept in found[:2]] == [10, 20]
    assert found[0] < found[1] < found[2] == {row["id"] for row in rows[round(len(rows) / 2) :]}


def test_a_slice_of_nothing_is_refused() -> None:
    with pytest.raises(ValidationError, match="keep_from must be below keep_to, found 0.5 and 0.2"):
        RelabelConfig(keep_from=0.5, keep_to=0.2)


def test_a_model_in_parts_is_not_scored_while_it_trains(smoke_config: Any) -> None:
    train = smoke_config.reward_model.train.model_copy(update={"zero": ZeroConfig(stage=3)})
    with pytest.raises(ValidationError, match="score_every must be none under stage 3"):
        RewardModelConfig(train=train, score_every=5)
