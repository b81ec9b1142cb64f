"""Reward models under dropout, with further terms and on rankings: what that does, and resuming."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from pydantic import ValidationError
from safetensors.torch import load_file
from torch import Tensor

from tests.models.conftest import run_stage
from tests.models.jobs import Killed, die_after
from trimtab.models.config.policy import PPOConfig
from trimtab.models.config.reward import (
    ContrastiveConfig,
    RewardModelConfig,
)
from trimtab.models.config.training import LoraConfig, TrainConfig
from trimtab.models.data.records import read_rows
from trimtab.models.nets.loading import load_scorer, load_tokenizer
from trimtab.models.nets.packing import pack
from trimtab.models.nets.trunk import hidden_states
from trimtab.models.training import loop
from trimtab.models.training.data import read_pairs
from trimtab.models.training.progress import read_metrics
from trimtab.models.training.scoring import score_rows

SIMCSE = ContrastiveConfig(kind="simcse", coef=1.0)
SWAV = ContrastiveConfig(kind="swav", on="differences", coef=0.5, num_prototypes=20)


@pytest.fixture(scope="module")
def rankings(
    tmp_path_factory: pytest.TempPathFactory, smoke_config: Any, world: Path, policy: Path
) -> Path:
    """Up to four pairs of every prompt's answers."""
    return run_stage(
        "comparisons",
        smoke_config.comparisons.model_copy(update={"pairs_per_prompt": 4}),
        tmp_path_factory.mktemp("rankings"),
        data=world,
        policy=policy,
    )


def _config(smoke_config: Any, train: dict[str, Any], **changes: Any) -> RewardModelConfig:
    trainer = smoke_config.reward_model.train.model_copy(update=train)
    return RewardModelConfig(train=trainer, **changes)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("train", "changes"),
    [
        ({"dropout": 0.2}, {}),
        ({"dropout": 0.1}, {"contrastive": SIMCSE, "imitation_coef": 1.0}),
        (
            {"dropout": 0.1, "trainable_layers": 1, "gradient_checkpointing": True},
            {"contrastive": SWAV, "ranking": "k_wise", "imitation_coef": 0.5},
        ),
        ({"dropout": 0.1, "lora": LoraConfig(rank=4)}, {"contrastive": SWAV}),
    ],
)
def test_what_was_killed_goes_on_to_the_same_weights(
    tmp_path: Path,
    smoke_config: Any,
    policy: Path,
    rankings: Path,
    monkeypatch: pytest.MonkeyPatch,
    train: dict[str, Any],
    changes: dict[str, Any],
) -> None:
    """What a step drops, and what learns beside the model, is as it would have been."""
    train = {**train, "checkpoint_every": 2, "micro_batch_tokens": 400}
    config = _config(smoke_config, train, **changes)
    inputs = {"policy": policy, "preferences": rankings}
    whole = run_stage("reward_model", config, tmp_path / "whole", **inputs)
    die_after(monkeypatch, loop, 4)
    with pytest.raises(Killed):
        run_stage("reward_model", config, tmp_path / "killed", **inputs)
    monkeypatch.undo()
    torch.rand(3)  # whatever else has drawn numbers
    killed = run_stage("reward_model", config, tmp_path / "killed", **inputs)
    ours, theirs = (load_file(out / "model/model.safetensors") for out in (killed, whole))
    assert all(torch.equal(ours[name], value) for name, value in theirs.items())
    # Of the further heads nothing is left.
    start = load_file(policy / "model/model.safetensors")
    assert ours.keys() == start.keys() | {"score.weight"}
    assert (killed / "scores.jsonl").read_bytes() == (whole / "scores.jsonl").read_bytes()


def test_dropout_is_of_training_and_not_of_scoring(
    tmp_path: Path, smoke_config: Any, policy: Path, comparisons: Path
) -> None:
    inputs = {"policy": policy, "preferences": comparisons}
    plain, dropped = (
        run_stage(
            "reward_model", _config(smoke_config, {"dropout": share}), tmp_path / name, **inputs
        )
        for name, share in (("plain", 0.0), ("dropped", 0.3))
    )
    # From equal models the first step's loss already differs.
    first, other = (read_metrics(out.parent / "metrics.jsonl")[0] for out in (plain, dropped))
    assert first["loss"] != other["loss"]
    # What the stage scored is what the model that it saved scores, which knows no dropout.
    model, tokenizer = load_scorer(dropped / "model"), load_tokenizer(dropped / "model")
    found = score_rows(model, read_pairs(comparisons / "test.jsonl", tokenizer).rows)
    rows = [row for row in read_rows(dropped / "scores.jsonl") if row["split"] == "test"]
    expected = torch.tensor([[row["chosen_score"], row["rejected_score"]] for row in rows])
    torch.testing.assert_close(found, expected)


@pytest.mark.slow
def test_imitation_keeps_the_trunk_a_language_model(
    tmp_path: Path, smoke_config: Any, policy: Path, comparisons: Path
) -> None:
    """As beta is next to nothing, the preferred answers' likelihood falls; at 1 it rises."""
    found = {}
    for coef in (1e-9, 1.0):
        config = _config(smoke_config, {"num_epochs": 8}, imitation_coef=coef)
        folder = tmp_path / str(coef)
        output = run_stage("reward_model", config, folder, policy=policy, preferences=comparisons)
        rows = read_metrics(output.parent / "metrics.jsonl")
        found[coef] = [sum(row["imitation_loss"] for row in part) for part in (rows[:3], rows[-3:])]
    assert found[1.0][1] < found[1.0][0]
    assert found[1.0][1] < found[1e-9][1]


def _overlap(output: Path, comparisons: Path) -> float:
    """Mean cosine of what the head reads of a pair's two answers, on pairs never trained on."""
    model, tokenizer = load_scorer(output / "model"), load_tokenizer(output / "model")
    cosines: list[Tensor] = []
    for pair in read_pairs(comparisons / "test.jsonl", tokenizer).rows:
        batch = pack([pair])
        with torch.no_grad():
            chosen, rejected = hidden_states(model, batch)[batch.response_end]
        cosines.append(F.cosine_similarity(chosen, rejected, dim=0))
    return float(torch.stack(cosines).mean())


@pytest.mark.slow
def test_simcse_parts_chosen_and_rejected_features(
    tmp_path: Path, smoke_config: Any, policy: Path, comparisons: Path
) -> None:
    """[RM figure 11]: their overlap falls, here the cosine of the two answers of a pair."""
    overlap = {}
    for term in (None, SIMCSE):
        config = _config(smoke_config, {"dropout": 0.1, "num_epochs": 6}, contrastive=term)
        inputs = {"policy": policy, "preferences": comparisons}
        output = run_stage("reward_model", config, tmp_path / str(term is None), **inputs)
        overlap[term is None] = _overlap(output, comparisons)
    assert overlap[False] < overlap[True] - 0.05


@pytest.mark.slow
def test_rankings_are_trained_on_as_examples(
    tmp_path: Path, smoke_config: Any, policy: Path, rankings: Path
) -> None:
    """Fewer and larger examples, of the same pairs; what is scored are pairs as ever."""
    inputs = {"policy": policy, "preferences": rankings}
    rows = read_rows(rankings / "train.jsonl")
    prompts = len({row["group"] for row in rows})
    assert prompts < len(rows)
    outputs = {
        ranking: run_stage(
            "reward_model",
            _config(smoke_config, {"batch_size": 8}, ranking=ranking),
            tmp_path / ranking,
            **inputs,
        )
        for ranking in ("pairs", "k_wise")
    }
    steps = {name: len(read_metrics(out.parent / "metrics.jsonl")) for name, out in outputs.items()}
    assert steps == {"pairs": -(-len(rows) // 8), "k_wise": -(-prompts // 8)}
    scored = [[row["id"] for row in read_rows(out / "scores.jsonl")] for out in outputs.values()]
    assert scored[0] == scored[1]


def test_two_views_without_dropout_are_refused() -> None:
    with pytest.raises(ValidationError, match=r"train.dropout must be above 0.*found 0"):
        RewardModelConfig(contrastive=SIMCSE)
    config = RewardModelConfig(contrastive=SIMCSE, train=TrainConfig(dropout=0.05))
    assert config.contrastive == SIMCSE


def test_ppo_has_no_dropout() -> None:
    """The policy that learns must be the one that sampled: its first ratio is 1."""
    with pytest.raises(ValidationError, match="dropout"):
        PPOConfig(dropout=0.1)
