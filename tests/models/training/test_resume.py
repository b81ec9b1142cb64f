"""Interrupted and continued equals never interrupted, bit for bit."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from tests.models.conftest import run_stage
from tests.models.jobs import Killed, die_after
from trimtab.flows.config.config import ppo_of
from trimtab.models.stages.ppo_max import trainer
from trimtab.models.training import checkpoint, loop


def _assert_same_weights(ours: Path, theirs: Path) -> None:
    left, right = load_file(ours / "model.safetensors"), load_file(theirs / "model.safetensors")
    assert left.keys() == right.keys()
    assert all(bool((left[name] == right[name]).all()) for name in left)


def _steps(path: Path) -> list[int]:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [row["step"] for row in rows if "metrics" in row]


def _elsewhere(workdir: Path) -> Path:
    """What another machine finds of a work folder: its checkpoints, and nothing else."""
    other = workdir.with_name(f"{workdir.name}-elsewhere")
    shutil.copytree(workdir / "checkpoints", other / "checkpoints")
    return other


@pytest.mark.slow
def test_sft(
    tmp_path: Path, smoke_config: Any, world: Path, policy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    often = smoke_config.sft.train.model_copy(update={"checkpoint_every": 10})
    config = smoke_config.sft.model_copy(update={"train": often})
    die_after(monkeypatch, loop, 24)
    with pytest.raises(Killed):
        run_stage("sft", config, tmp_path / "killed", data=world)
    monkeypatch.undo()
    workdir = _elsewhere(tmp_path / "killed")
    output = run_stage("sft", config, workdir, data=world)
    _assert_same_weights(output / "model", policy / "model")
    steps = _steps(workdir / "metrics.jsonl")
    assert steps == list(range(1, len(steps) + 1))


TRICKS = {
    "score_treatment": "scaled",
    "advantage_clip": 0.5,
    "ratio_denominator": "reference",
    "entropy_coef": 0.1,
    "ptx_coef": 0.1,
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("killed_at", "elsewhere", "changes"),
    [
        (1, False, {}),
        (3, False, {}),
        (3, True, {}),
        (4, True, {}),
        (3, True, {"trainable_layers": 1}),
        (3, True, TRICKS),
        (1, False, "rloo"),
        (3, True, "grpo"),
        (4, True, "reinforce_pp"),
    ],
)
def test_ppo(
    tmp_path: Path,
    smoke_config: Any,
    world: Path,
    policy: Path,
    advantage_model: Path,
    several_scorers: dict[str, Path],
    monkeypatch: pytest.MonkeyPatch,
    killed_at: int,
    elsewhere: bool,
    changes: dict[str, Any] | str,
) -> None:
    """changes: of PPO-max, or an arm without a critic."""
    if isinstance(changes, str):
        config = ppo_of(smoke_config, changes)
    else:
        config = smoke_config.ppo.model_copy(update=changes)
    scorers = several_scorers if changes is TRICKS else {"scorer": advantage_model}
    inputs = {"policy": policy, "reference": policy, "data": world, **scorers}
    whole = run_stage("ppo_max", config, tmp_path / "whole", **inputs)
    die_after(monkeypatch, trainer, killed_at)
    with pytest.raises(Killed):
        run_stage("ppo_max", config, tmp_path / "killed", **inputs)
    monkeypatch.undo()
    workdir = tmp_path / "killed"
    workdir = _elsewhere(workdir) if elsewhere else workdir
    resumed = run_stage("ppo_max", config, workdir, **inputs)
    for part in ("model", *(["critic"] if config.objective.has_critic else [])):
        _assert_same_weights(resumed / part, whole / part)
    for record in ("rollouts.jsonl", "summary.json"):
        assert (resumed / record).read_text() == (whole / record).read_text()
    assert _steps(resumed / "metrics.jsonl") == _steps(whole / "metrics.jsonl")


def test_a_half_written_checkpoint_is_no_checkpoint(tmp_path: Path) -> None:
    checkpoint.save_checkpoint(tmp_path, 3, {"value": 3})
    (tmp_path / "checkpoints" / ".5.partial").mkdir()
    (tmp_path / "checkpoints" / ".5.partial" / checkpoint.STATE_FILE).write_bytes(b"half")
    state = checkpoint.newest_checkpoint(tmp_path)
    assert state is not None
    assert state["value"] == 3
