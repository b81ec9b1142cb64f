"""Reward models with further terms on several ranks, with ZeRO and without."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from torch import nn

from tests.models.jobs import job, launch, stopped_at
from trimtab.models.config.reward import (
    ContrastiveConfig,
    ExpectedRewardConfig,
    RewardModelConfig,
)
from trimtab.models.config.training import ZeroConfig
from trimtab.models.data.records import read_rows
from trimtab.models.nets.loading import load_policy, load_tokenizer, save_model
from trimtab.models.training.progress import read_metrics

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def config(smoke_config: Any) -> RewardModelConfig:
    """All terms at once, in several micro batches a step."""
    train = {"dropout": 0.1, "micro_batch_tokens": 300, "checkpoint_every": 2}
    return RewardModelConfig(
        train=smoke_config.reward_model.train.model_copy(update=train),
        ranking="k_wise",
        imitation_coef=0.5,
        contrastive=ContrastiveConfig(kind="swav", on="differences", coef=0.5),
    )


@pytest.fixture(scope="module", params=["tied", "untied"])
def inputs(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    policy: Path,
    comparisons: Path,
) -> dict[str, Path]:
    if request.param == "tied":
        return {"policy": policy, "preferences": comparisons}
    model = load_policy(policy / "model")
    model.lm_head.weight = nn.Parameter(model.lm_head.weight.detach() * 1.1)
    model.config.tie_word_embeddings = False
    folder = tmp_path_factory.mktemp("untied")
    save_model(model, load_tokenizer(policy / "model"), folder / "model")
    return {"policy": folder, "preferences": comparisons}


def _launch(
    folder: Path, config: Any, inputs: dict[str, Path], num_ranks: int, **train: Any
) -> Path:
    launch(job(folder, config, folder, num_ranks, stage="reward_model", inputs=inputs, **train))
    return folder / "output"


def _assert_same(ours: Path, theirs: Path) -> None:
    """The same steps, the same model to rounding."""
    rows, others = (read_metrics(folder.parent / "metrics.jsonl") for folder in (ours, theirs))
    assert len(rows) == len(others)
    for row, other in zip(rows[:5], others, strict=False):
        assert row == pytest.approx(other, rel=1e-4, abs=1e-6)
    mine, other = (load_file(folder / "model/model.safetensors") for folder in (ours, theirs))
    assert mine.keys() == other.keys()
    for name, value in other.items():
        assert (mine[name] - value).abs().max() < 2e-3 * value.abs().max(), name


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, config: Any, inputs: dict[str, Path]) -> Path:
    """Two ranks that hold the whole of everything; of their draws others drop the same."""
    return _launch(tmp_path_factory.mktemp("whole"), config, inputs, 2)


@pytest.mark.parametrize("stage", [2, 3])
def test_two_ranks_in_parts_learn_what_two_whole_ones_do(
    tmp_path: Path, config: Any, inputs: dict[str, Path], whole: Path, stage: Any
) -> None:
    zero = {"zero": ZeroConfig(stage=stage), "gradient_checkpointing": stage == 3}
    _assert_same(_launch(tmp_path, config, inputs, 2, **zero), whole)


def test_two_ranks_go_on_where_they_stopped(
    tmp_path: Path,
    config: Any,
    inputs: dict[str, Path],
    whole: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with stopped_at(2, monkeypatch):
        _launch(tmp_path, config, inputs, 2)
    stopped = _launch(tmp_path, config, inputs, 2)
    for name in ("model/model.safetensors", "scores.jsonl"):
        assert (stopped / name).read_bytes() == (whole / name).read_bytes()


def test_rankings_on_two_ranks_equal_those_on_one(
    tmp_path: Path, config: Any, inputs: dict[str, Path]
) -> None:
    """Where nothing is dropped, nor contrasted with what a rank happens to hold."""
    plain = config.model_copy(update={"contrastive": None})
    alone, both = (
        _launch(tmp_path / str(count), plain, inputs, count, dropout=0.0) for count in (1, 2)
    )
    _assert_same(both, alone)


def test_an_advantage_model_of_category_heads_on_two_ranks_equals_that_on_one(
    tmp_path: Path, smoke_config: Any, world: Path, policy: Path, comparisons: Path
) -> None:
    """The gate, through which e(x) sees the rewards of samples, is fitted to all ranks' prompts."""
    samples = ExpectedRewardConfig(num_prompts=23, num_responses=2, batch_size=8, num_held_out=9)
    config = smoke_config.advantage_model.model_copy(
        update={"expected_reward": samples, "category_heads": True}
    )
    given = {"policy": policy, "preferences": comparisons}
    folders = []
    for count in (1, 2):
        folder = tmp_path / str(count)
        launch(job(folder, config, world, count, stage="advantage_model", inputs=given))
        folders.append(folder / "output")
    alone, both = folders
    rows, others = (read_metrics(folder.parent / "metrics.jsonl") for folder in (both, alone))
    assert len(rows) == len(others)
    for row, other in zip(rows[:5], others, strict=False):
        assert row == pytest.approx(other, rel=1e-3, abs=1e-5)
    for name in ("scores.jsonl", "expected_rewards.jsonl"):
        for row, other in zip(read_rows(both / name), read_rows(alone / name), strict=True):
            numbers = {key: value for key, value in other.items() if isinstance(value, float)}
            assert len(numbers) == 2
            assert {key: row[key] for key in numbers} == pytest.approx(numbers, rel=0.05, abs=0.05)
