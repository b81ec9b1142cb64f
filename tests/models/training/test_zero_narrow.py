"""Under ZeRO with precision bfloat16 parameters are bfloat16, and what is learned float32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.models.jobs import job, launch, stopped_at
from trimtab.models.config.training import ModelConfig, ZeroConfig
from trimtab.models.nets.loading import load_policy, load_tokenizer, save_model
from trimtab.models.training.progress import read_metrics

pytestmark = [pytest.mark.slow, pytest.mark.narrow]

NARROW = {"precision": "bfloat16", "gradient_checkpointing": True, "checkpoint_every": 2}
WEIGHTS = "output/model/model.safetensors"


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory, smoke_config: Any, policy: Path) -> Any:
    """Fine-tuning of a model whose weights are bfloat16 numbers, kept in float32."""
    model = load_policy(policy / "model")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.bfloat16())
    folder = tmp_path_factory.mktemp("rounded")
    save_model(model, load_tokenizer(policy / "model"), folder)
    train = smoke_config.sft.train.model_copy(update={"num_epochs": 1, "batch_size": 16})
    base = ModelConfig(base=str(folder), max_length=smoke_config.sft.model.max_length)
    return smoke_config.sft.model_copy(update={"model": base, "train": train})


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory, world: Path) -> Path:
    """Dialogues for three steps of 16."""
    folder = tmp_path_factory.mktemp("data")
    lines = (world / "demonstrations.jsonl").read_text().splitlines(keepends=True)[:48]
    (folder / "demonstrations.jsonl").write_text("".join(lines))
    (folder / "tokenizer").symlink_to(world / "tokenizer")
    return folder


@pytest.mark.parametrize("stage", [2, 3])
def test_the_first_step_is_that_of_wide_weights(
    tmp_path: Path, config: Any, data: Path, stage: int
) -> None:
    """Every row is a micro batch of its own, so that both take the same products of equal weights.

    The loss then differs by the order of float32 sums over a step's 16 rows, 15 / 2^24 of the sum
    of their sizes. The gradient of a weight is rounded to bfloat16 for each row, by at most 2^-9 of
    it, once or, where a weight is used twice, twice; its norm changes by no more. Later steps are
    of weights that are rounded anew, each by at most 2^-9, and losses that far from 1 % apart.
    """
    alone = {**NARROW, "micro_batch_tokens": 1}
    zero = {"zero": ZeroConfig(stage=stage)}
    launch(job(tmp_path / "whole", config, data, 1, **alone))
    launch(job(tmp_path / "parts", config, data, 2, **alone, **zero))
    folders = (tmp_path / "whole", tmp_path / "parts")
    whole, parts = (read_metrics(folder / "metrics.jsonl") for folder in folders)
    assert len(whole) == len(parts) == 3
    assert parts[0]["loss"] == pytest.approx(whole[0]["loss"], rel=1e-4)
    assert parts[0]["grad_norm"] == pytest.approx(whole[0]["grad_norm"], rel=2**-8)
    for row, other in zip(parts, whole, strict=True):
        assert row["loss"] == pytest.approx(other["loss"], rel=1e-2)
    for name, value in load_file(tmp_path / "parts" / WEIGHTS).items():
        assert value.dtype == torch.float32
        # What was learned is not rounded: a movement is far smaller than a weight.
        assert not torch.equal(value, value.bfloat16().float()), name


@pytest.mark.parametrize("stage", [2, 3])
def test_masters_go_on_bit_for_bit_and_what_is_frozen_stays(
    tmp_path: Path,
    smoke_config: Any,
    policy: Path,
    comparisons: Path,
    monkeypatch: pytest.MonkeyPatch,
    stage: int,
) -> None:
    config = smoke_config.reward_model
    inputs = {"policy": policy, "preferences": comparisons}
    train = {**NARROW, "trainable_layers": 1, "micro_batch_tokens": 150}

    def run(folder: Path) -> None:
        zero = {"zero": ZeroConfig(stage=stage)}
        launch(job(folder, config, folder, 2, "reward_model", inputs, **train, **zero))

    with stopped_at(3, monkeypatch):
        run(tmp_path / "stopped")
    run(tmp_path / "stopped")
    run(tmp_path / "whole")
    stopped, whole = (load_file(tmp_path / name / WEIGHTS) for name in ("stopped", "whole"))
    start = load_file(policy / "model/model.safetensors")
    for name, value in whole.items():
        assert torch.equal(stopped[name], value), name
        if "embed_tokens" in name or "layers.0." in name:
            assert torch.equal(value, start[name]), name


def test_ppo_samples_from_narrow_weights_and_leaves_what_all_models_share(
    tmp_path: Path, smoke_config: Any, world: Path, policy: Path, reward_model: Path
) -> None:
    """Under stage 2 policy, critic, reference and scorer have the frozen layers as modules."""
    changes = {"num_steps": 2, "critic_pretrain_steps": 1, "rehearsal_coef": 0.0}
    config = smoke_config.ppo.model_copy(
        update={**changes, **NARROW, "trainable_layers": 1, "zero": ZeroConfig(stage=2)}
    )
    inputs = {"policy": policy, "reference": policy, "data": world, "scorer": reward_model}
    launch(job(tmp_path, config, world, 2, "ppo_max", inputs))
    rows = read_metrics(tmp_path / "metrics.jsonl")
    # Until the policy moves its weights are the reference's, rounded: log-probabilities part by as
    # much as products are rounded, about 2^-9 of logits of some units.
    assert abs(rows[0]["kl"]) < 0.1
    assert rows[0]["score_std"] > 0
    for part, start in (("model", policy), ("critic", reward_model)):
        before = load_file(start / "model/model.safetensors")
        for name, value in load_file(tmp_path / "output" / part / "model.safetensors").items():
            is_frozen = "embed_tokens" in name or "layers.0." in name
            assert value.dtype == torch.float32
            assert torch.equal(value, before[name]) == is_frozen, name
