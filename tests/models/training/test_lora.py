"""Stages that train adapters: bit-identical resume, plain models out, one copy in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.models.jobs import killed_and_whole
from trimtab.models.config.training import LoraConfig
from trimtab.models.nets.packing import pack
from trimtab.models.nets.scoring import response_logprobs
from trimtab.models.stages.ppo_max import trainer
from trimtab.models.stages.ppo_max.trainer import PPORun
from trimtab.models.training import loop
from trimtab.models.training.stage import Stage

LORA = LoraConfig(rank=4, alpha=8.0)


@pytest.fixture
def inputs(world: Path, policy: Path, advantage_model: Path) -> dict[str, Path]:
    return {"policy": policy, "reference": policy, "scorer": advantage_model, "data": world}


def test_a_reward_model_goes_on_where_it_was_killed(
    tmp_path: Path,
    smoke_config: Any,
    policy: Path,
    comparisons: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = smoke_config.reward_model
    train = {"lora": LORA, "trainable_layers": 1, "checkpoint_every": 2}
    config = config.model_copy(update={"train": config.train.model_copy(update=train)})
    inputs = {"policy": policy, "preferences": comparisons}
    killed, whole = killed_and_whole(
        monkeypatch, loop, 4, "reward_model", config, tmp_path, **inputs
    )
    ours, theirs = (load_file(out / "model/model.safetensors") for out in (killed, whole))
    start = load_file(policy / "model/model.safetensors")
    assert all(torch.equal(value, ours[name]) for name, value in theirs.items())
    assert ours.keys() - start.keys() == {"score.weight"}
    learned = {name for name, value in start.items() if not torch.equal(value, ours[name])}
    assert learned
    assert all("_proj" in name for name in learned)


@pytest.mark.slow
def test_ppo_goes_on_where_it_was_killed(
    tmp_path: Path,
    smoke_config: Any,
    inputs: dict[str, Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = smoke_config.ppo.model_copy(update={"lora": LORA})
    killed, whole = killed_and_whole(monkeypatch, trainer, 3, "ppo_max", config, tmp_path, **inputs)
    start = load_file(inputs["policy"] / "model/model.safetensors")
    for part in ("model", "critic"):
        ours, theirs = (load_file(out / part / "model.safetensors") for out in (killed, whole))
        assert all(torch.equal(value, ours[name]) for name, value in theirs.items())
    ours = load_file(killed / "model/model.safetensors")
    assert ours.keys() == start.keys()
    assert not all(torch.equal(value, ours[name]) for name, value in start.items())


def test_reference_and_scorer_are_no_second_copies(
    tmp_path: Path, smoke_config: Any, inputs: dict[str, Path]
) -> None:
    config = smoke_config.ppo.model_copy(update={"lora": LORA})
    run = PPORun(config, Stage(inputs, tmp_path))
    trained = {p.data_ptr() for m in (run.policy, run.critic) for p in m.parameters()}
    apart = {
        name
        for held in (run.reference, *run.scorers.models)
        for name, value in held.model.named_parameters()
        if value.data_ptr() not in trained
    }
    assert apart == {"score.weight"}
    run.learner.update(run._collect(list(range(8))), updates_policy=True)
    experience = run._collect(list(range(8)))
    assert float(experience.monitors()["kl"]) != 0.0  # the reference has stayed where it was
    logprobs, _, mask = response_logprobs(run.policy, pack(experience.rows), config.temperature)
    torch.testing.assert_close(logprobs[mask], experience.old_logprobs[mask])
