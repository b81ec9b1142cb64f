"""Training on batches that tokens fill [PPO section 4.1]."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from tests.models.conftest import run_stage
from tests.models.jobs import Killed, die_after, job, launch
from trimtab.models.config.training import TrainConfig
from trimtab.models.training import loop
from trimtab.models.training.optimiser import scheduled_rate
from trimtab.models.training.progress import read_metrics

WEIGHTS = "model/model.safetensors"


@pytest.fixture
def config(smoke_config: Any) -> Any:
    """Some seven pairs a step."""
    tokens = {"batch_tokens": 200, "batch_size": 64, "checkpoint_every": 2}
    train = smoke_config.reward_model.train.model_copy(update=tokens)
    return smoke_config.reward_model.model_copy(update={"train": train})


def test_a_run_that_was_killed_goes_on_to_the_same_bits(
    tmp_path: Path,
    config: Any,
    policy: Path,
    comparisons: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    inputs = {"policy": policy, "preferences": comparisons}
    whole = run_stage("reward_model", config, tmp_path / "whole", **inputs)
    die_after(monkeypatch, loop, 5)
    with pytest.raises(Killed):
        run_stage("reward_model", config, tmp_path / "killed", **inputs)
    monkeypatch.undo()
    resumed = run_stage("reward_model", config, tmp_path / "killed", **inputs)
    for name in (WEIGHTS, "scores.jsonl", "summary.json"):
        assert (resumed / name).read_bytes() == (whole / name).read_bytes()
    steps = read_metrics(tmp_path / "whole/metrics.jsonl")
    assert len(steps) > 10
    rates = [scheduled_rate(config.train, step, len(steps)) for step in range(len(steps))]
    assert [row["learning_rate"] for row in steps] == pytest.approx(rates)


@pytest.mark.slow
def test_two_ranks_learn_what_one_does(
    tmp_path: Path, config: Any, policy: Path, comparisons: Path
) -> None:
    inputs, rows = {"policy": policy, "preferences": comparisons}, []
    for count in (1, 2):
        folder = tmp_path / str(count)
        launch(job(folder, config, folder, count, stage="reward_model", inputs=inputs))
        rows.append(read_metrics(folder / "metrics.jsonl"))
    alone, both = rows
    assert len(alone) == len(both)
    for row, other in zip(both[:5], alone, strict=False):
        assert row == pytest.approx(other, rel=1e-4, abs=1e-6)


def test_bounds_of_a_batch_fit_together() -> None:
    with pytest.raises(ValidationError, match="least_batch_size must be at most batch_size"):
        TrainConfig(batch_tokens=100, batch_size=3)
    with pytest.raises(
        ValidationError, match="num_ranks must be at most least_batch_size, found 8"
    ):
        TrainConfig(batch_tokens=100, num_ranks=8)
    assert TrainConfig(batch_size=3, num_ranks=3).batch_tokens is None
