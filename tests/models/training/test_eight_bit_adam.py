"""AdamW with moments of 8 bits: close to that of 32, a quarter of its state, resumed exactly."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load_file
from torch import nn

from tests.models.jobs import killed_and_whole
from trimtab.models.config.training import Optimiser, TrainConfig, ZeroConfig
from trimtab.models.stages.ppo_max import trainer
from trimtab.models.training import loop
from trimtab.models.training.optimiser import adamw, set_rate


def _trained(kind: Optimiser) -> tuple[nn.Module, torch.optim.Optimizer]:
    """A map of 64 by 128 after twenty steps towards another one."""
    draw = torch.Generator().manual_seed(0)
    model = nn.Linear(64, 128)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=draw) / 8)
    inputs, targets = (torch.randn(256, width, generator=draw) for width in (64, 128))
    optimiser = adamw(model, 0.1, kind)
    set_rate(optimiser, 1e-3)
    for _ in range(20):
        (model(inputs) - targets).square().mean().backward()
        optimiser.step()
        optimiser.zero_grad()
    return model, optimiser


def test_it_goes_where_adamw_goes() -> None:
    start = torch.randn(128, 64, generator=torch.Generator().manual_seed(0)) / 8
    (ours, _), (theirs, _) = _trained("adamw_8bit"), _trained("adamw")
    moved, expected = (each.weight.detach() - start for each in (ours, theirs))
    assert float((moved - expected).norm() / expected.norm()) < 0.05


def test_its_moments_take_two_bytes_a_parameter() -> None:
    model, optimiser = _trained("adamw_8bit")
    found = {
        name: [
            each.dtype
            for each in optimiser.state[value].values()
            if isinstance(each, torch.Tensor) and each.shape == value.shape
        ]
        for name, value in model.named_parameters()
    }
    # A scale for each 256 numbers would save nothing of a few.
    assert found == {"weight": 2 * [torch.uint8], "bias": 2 * [torch.float32]}


def test_a_reward_model_goes_on_where_it_was_killed(
    tmp_path: Path,
    smoke_config: Any,
    policy: Path,
    comparisons: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = smoke_config.reward_model
    train = {"optimiser": "adamw_8bit", "checkpoint_every": 2}
    config = config.model_copy(update={"train": config.train.model_copy(update=train)})
    inputs = {"policy": policy, "preferences": comparisons}
    killed, whole = killed_and_whole(
        monkeypatch, loop, 4, "reward_model", config, tmp_path, **inputs
    )
    _assert_same(killed / "model", whole / "model")


@pytest.mark.slow
def test_ppo_goes_on_where_it_was_killed(
    tmp_path: Path,
    smoke_config: Any,
    world: Path,
    policy: Path,
    advantage_model: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    inputs = {"policy": policy, "reference": policy, "scorer": advantage_model, "data": world}
    config = smoke_config.ppo.model_copy(update={"optimiser": "adamw_8bit"})
    killed, whole = killed_and_whole(monkeypatch, trainer, 3, "ppo_max", config, tmp_path, **inputs)
    for part in ("model", "critic"):
        _assert_same(killed / part, whole / part)


def test_not_with_zero() -> None:
    with pytest.raises(
        ValidationError, match="found optimiser adamw_8bit with zero; allowed: only one of the two"
    ):
        TrainConfig(optimiser="adamw_8bit", zero=ZeroConfig())


def test_without_its_package_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "bitsandbytes.optim", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'trimtab\[eight-bit\]'"):
        adamw(nn.Linear(2, 2), 0.0, "adamw_8bit")


def _assert_same(ours: Path, theirs: Path) -> None:
    left, right = (load_file(each / "model.safetensors") for each in (ours, theirs))
    assert left.keys() == right.keys()
    assert all(torch.equal(value, right[name]) for name, value in left.items())
