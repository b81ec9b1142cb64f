"""PPO's policy and critic, an engine of DeepSpeed's each, learn what they do without.

Of several scorers, each in parts under stage 3.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from tests.models.conftest import run_stage
from tests.models.jobs import job, launch, stopped_at
from trimtab.models.config.training import ZeroConfig
from trimtab.models.training.progress import read_metrics

pytestmark = pytest.mark.slow

# Of 9 responses a rollout, 4 a step: the last step has one, fewer than ranks, and several take more
# than one micro batch. The critic alone learns in the first two.
CHANGES = {
    "rollout_batch": 9,
    "train_batch": 4,
    "critic_pretrain_steps": 2,
    "num_steps": 4,
    "ptx_coef": 0.1,
    "entropy_coef": 0.1,
    "rehearsal_batch": 6,
    "micro_batch_tokens": 100,
    "checkpoint_every": 2,
    # So slow that no response differs for the rounding of another order of sums.
    "policy_learning_rate": 1e-6,
}


@pytest.fixture(scope="module")
def config(smoke_config: Any) -> Any:
    return smoke_config.ppo.model_copy(update=CHANGES)


@pytest.fixture(scope="module")
def inputs(world: Path, policy: Path, several_scorers: dict[str, Path]) -> dict[str, Path]:
    return {"policy": policy, "reference": policy, "data": world, **several_scorers}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory, config: Any, inputs: dict[str, Path]) -> Path:
    return run_stage("ppo_max", config, tmp_path_factory.mktemp("alone"), **inputs)


def _launch(
    folder: Path, config: Any, inputs: dict[str, Path], num_ranks: int, **changes: Any
) -> None:
    changed = config.model_copy(update=changes)
    launch(job(folder, changed, inputs["data"], num_ranks, "ppo_max", inputs))


def _assert_same(ours: Path, alone: Path) -> None:
    rows, others = (read_metrics(folder.parent / "metrics.jsonl") for folder in (ours, alone))
    assert [row["step"] for row in rows] == [row["step"] for row in others] == [1, 2, 3, 4, 5, 6]
    for row, other in zip(rows, others, strict=True):
        of_scorers = ("score", "ensemble_std", "safety_fraction")
        of_steps = ("policy_loss", "policy_entropy", "ptx_loss", "value_loss", "value_grad_norm")
        for name in (*of_scorers, "kl", *of_steps):
            if name in other:
                assert row[name] == pytest.approx(other[name], rel=1e-3, abs=1e-5), name
    for part in ("model", "critic"):
        mine, theirs = (load_file(where / part / "model.safetensors") for where in (ours, alone))
        assert mine.keys() == theirs.keys()
        for name, value in theirs.items():
            assert (mine[name] - value).abs().max() < 2e-3 * value.abs().max(), name


def test_two_ranks_in_parts_and_one_with_the_whole_go_on_for_one_another(
    tmp_path: Path,
    config: Any,
    inputs: dict[str, Path],
    alone: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Stage 3 before the policy has learned at all, stage 2 until it has, then no ZeRO."""
    parts: list[tuple[int, dict[str, Any]]] = [
        (1, {"zero": ZeroConfig(stage=3, offload=True), "gradient_checkpointing": True}),
        (3, {"zero": ZeroConfig(stage=2)}),
    ]
    for last_step, changes in parts:
        with stopped_at(last_step, monkeypatch):
            _launch(tmp_path, config, inputs, 2, **changes)
    assert len(read_metrics(tmp_path / "metrics.jsonl")) < 6
    _launch(tmp_path, config, inputs, 1)
    _assert_same(tmp_path / "output", alone)


def test_two_ranks_of_stage_3_go_on_where_they_stopped(
    tmp_path: Path,
    config: Any,
    inputs: dict[str, Path],
    alone: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with stopped_at(4, monkeypatch):
        _launch(tmp_path, config, inputs, 2, zero=ZeroConfig(stage=3))
    _launch(tmp_path, config, inputs, 2, zero=ZeroConfig(stage=3))
    _assert_same(tmp_path / "output", alone)
