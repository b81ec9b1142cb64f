"""With DeepSpeed's ZeRO ranks learn what one learns without, and go on in any number."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from safetensors.torch import load_file

from tests.models.conftest import run_stage
from tests.models.jobs import Killed, die_after, job, kill_a_rank, stopped_at
from trimtab.infra.processes.launch import TrainerError, TrainerKilledError, launch
from trimtab.models.config.reward import MetaRMConfig
from trimtab.models.config.training import TrainConfig, ZeroConfig
from trimtab.models.training import loop
from trimtab.models.training.data import read_rows
from trimtab.models.training.progress import read_metrics

pytestmark = pytest.mark.slow


def _assert_same(ours: Path, alone: Path) -> None:
    """The same steps, the same model to the rounding of a few dozen of them."""
    rows, others = (read_metrics(folder.parent / "metrics.jsonl") for folder in (ours, alone))
    assert [row["step"] for row in rows] == [row["step"] for row in others]
    for row, other in zip(rows[:5], others, strict=False):
        assert row == pytest.approx(other, rel=1e-4, abs=1e-6)
    mine, theirs = (load_file(folder / "model/model.safetensors") for folder in (ours, alone))
    assert mine.keys() == theirs.keys()
    for name, value in theirs.items():
        assert (mine[name] - value).abs().max() < 2e-3 * value.abs().max(), name


# Tokens in a micro batch, such that a step takes several and not all ranks equally many.
TRAIN = {"micro_batch_tokens": 150, "trainable_layers": 1, "checkpoint_every": 2}


@pytest.fixture(scope="module")
def config(smoke_config: Any) -> Any:
    config = smoke_config.reward_model
    return config.model_copy(update={"train": config.train.model_copy(update=TRAIN)})


@pytest.fixture(scope="module")
def inputs(policy: Path, comparisons: Path) -> dict[str, Path]:
    return {"policy": policy, "preferences": comparisons}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory, config: Any, inputs: dict[str, Path]) -> Path:
    return run_stage("reward_model", config, tmp_path_factory.mktemp("alone"), **inputs)


def _launch(
    folder: Path, config: Any, inputs: dict[str, Path], num_ranks: int, **train: Any
) -> None:
    launch(job(folder, config, folder, num_ranks, stage="reward_model", inputs=inputs, **train))


def test_two_ranks_of_stage_3_stop_and_one_without_zero_goes_on(
    tmp_path: Path,
    config: Any,
    inputs: dict[str, Path],
    alone: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    zero = ZeroConfig(stage=3, offload=True)
    with stopped_at(3, monkeypatch):
        _launch(tmp_path, config, inputs, 2, zero=zero, gradient_checkpointing=True)
    assert max(int(path.name) for path in tmp_path.glob("checkpoints/[0-9]*")) == 3
    _launch(tmp_path, config, inputs, 1)
    _assert_same(tmp_path / "output", alone)


def test_two_ranks_of_stage_2_go_on_where_one_without_zero_was_killed(
    tmp_path: Path,
    config: Any,
    inputs: dict[str, Path],
    alone: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    die_after(monkeypatch, loop, 4)
    with pytest.raises(Killed):
        run_stage("reward_model", config, tmp_path, **inputs)
    monkeypatch.undo()
    _launch(tmp_path, config, inputs, 2, zero=ZeroConfig(stage=2))
    _assert_same(tmp_path / "output", alone)
    ours, theirs = (read_rows(folder / "scores.jsonl") for folder in (tmp_path / "output", alone))
    for row, other in zip(ours, theirs, strict=True):
        assert row["chosen_score"] == pytest.approx(other["chosen_score"], abs=1e-3)


@pytest.mark.narrow
def test_narrow_products_come_to_the_same_in_parts_and_whole(
    tmp_path: Path, config: Any, inputs: dict[str, Path], alone: Path
) -> None:
    """Every row is a micro batch of its own, so that both take the same products.

    A narrow product is rounded to 2^-9 of its size, and the rows that share it decide to which
    side: with others both would part by that, and the more the more steps Adam has taken. So they
    differ by the order of float32 sums over a step's rows alone.
    """
    narrow = {"precision": "bfloat16", "gradient_checkpointing": True, "micro_batch_tokens": 1}
    _launch(tmp_path / "whole", config, inputs, 1, **narrow)
    _launch(tmp_path / "parts", config, inputs, 2, zero=ZeroConfig(stage=3), **narrow)
    folders = (tmp_path / "whole", tmp_path / "parts", alone.parent)
    whole, parts, wide = (read_metrics(folder / "metrics.jsonl") for folder in folders)
    assert len(whole) == len(parts) == len(wide)
    # 16 float32 numbers in another order: 15 / 2^24 of the sum of their sizes, which may be a
    # hundred times that of what they come to.
    for row, other in zip(whole, parts, strict=True):
        assert row == pytest.approx(other, rel=1e-4, abs=1e-6)
    # Before the first step a score has a variance of 1. About 13 roundings a layer, two layers, in
    # the root mean square 2^-9 / 3^.5 of what they round, move it by .006, a margin by .008, and
    # the mean loss of 16 pairs by at most a quarter of that: five times so much is .01.
    assert whole[0]["loss"] == pytest.approx(wide[0]["loss"], abs=1e-2)
    assert whole[0]["loss"] != wide[0]["loss"]
    saved = load_file(tmp_path / "parts/output/model/model.safetensors")
    assert {str(value.dtype) for value in saved.values()} == {"torch.float32"}


def test_a_rank_that_fails_is_named(tmp_path: Path, config: Any, inputs: dict[str, Path]) -> None:
    train = {"zero": ZeroConfig(stage=1), "learning_rate": 100.0, "weight_decay": 100.0}
    with pytest.raises(TrainerError, match="NotFiniteError: .* became nan at step"):
        _launch(tmp_path, config, inputs, 1, **train)


def test_a_rank_that_is_killed_may_go_well_another_time(
    tmp_path: Path, config: Any, inputs: dict[str, Path]
) -> None:
    thread = kill_a_rank(tmp_path)
    with pytest.raises(TrainerKilledError, match="out-of-memory killer"):
        _launch(tmp_path, config, inputs, 1, zero=ZeroConfig(stage=1), num_epochs=1000)
    thread.join()


def test_meta_rm_refuses_stage_3() -> None:
    with pytest.raises(ValidationError, match="train.zero.stage of MetaRM must be 1 or 2, found 3"):
        MetaRMConfig(train=TrainConfig(zero=ZeroConfig(stage=3)))
