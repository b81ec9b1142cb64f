"""With DeepSpeed's ZeRO ranks learn what one learns without, and go on in any number."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from tests.models import counting_entry
from tests.models.conftest import run_stage
from tests.models.jobs import Killed, die_after, job, kill_a_rank, stopped_at
from trimtab.infra.processes.launch import TrainerError, TrainerKilledError, launch
from trimtab.models.config.training import ZeroConfig
from trimtab.models.data.records import read_rows
from trimtab.models.training import loop
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
    # Masters and two moments of every trained number once, half of them by each rank.
    parts = [load_file(path) for path in tmp_path.glob("checkpoints/3/part-*.safetensors")]
    numbers = [sum(value.numel() for value in part.values()) for part in parts]
    final = load_file(alone / "model/model.safetensors")
    trained = [name for name in final if "embed_tokens" not in name and "layers.0." not in name]
    assert sum(numbers) == 3 * sum(final[name].numel() for name in trained)
    assert len(numbers) == 2 and min(numbers) > 0.4 * sum(numbers)
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


@pytest.mark.parametrize("stage", [None, 2, 3])
def test_ranks_that_have_trained_share_out_what_is_scored(
    tmp_path: Path, config: Any, inputs: dict[str, Path], alone: Path, stage: Any
) -> None:
    """Under ZeRO each has the whole model for it, which the first alone has put together."""
    zero = None if stage is None else ZeroConfig(stage=stage)
    path = job(tmp_path, config, tmp_path, 2, "reward_model", inputs, zero=zero)
    launch(path, entry=counting_entry.__name__)
    first, second = (json.loads((tmp_path / f"scored_by_{n}.json").read_text()) for n in (0, 1))
    assert first["of"] == second["of"] == first["scored"] + second["scored"]
    assert min(first["scored"], second["scored"]) > 0
    ours, theirs = (read_rows(folder / "scores.jsonl") for folder in (tmp_path / "output", alone))
    for row, other in zip(ours, theirs, strict=True):
        assert row["chosen_score"] == pytest.approx(other["chosen_score"], abs=1e-3)


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
