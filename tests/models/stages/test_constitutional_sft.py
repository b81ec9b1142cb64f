"""SFT on revisions: what is mixed, what it does to harmful prompts, ranks and resuming."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.models.conftest import run_stage
from tests.models.jobs import Killed, die_after
from trimtab.models.config.judge import ChatModelConfig
from trimtab.models.config.policy import ConstitutionalSFTConfig, ReviseConfig
from trimtab.models.config.training import TrainConfig
from trimtab.models.data.records import read_rows
from trimtab.models.nets.generation import Sampling
from trimtab.models.nets.loading import load_policy, load_tokenizer
from trimtab.models.stages.constitutional_sft import helpful_beside
from trimtab.models.synthetic.gold import quality
from trimtab.models.training import loop
from trimtab.models.training.sampling import respond

TRAIN = TrainConfig(learning_rate=3e-3, batch_size=8, num_epochs=6, checkpoint_every=2)
CONFIG = ConstitutionalSFTConfig(train=TRAIN)


@pytest.fixture(scope="module")
def revisions(tmp_path_factory: pytest.TempPathFactory, world: Path, policy: Path) -> Path:
    """Answers to harmful prompts, put right."""
    return _revised(world, policy, tmp_path_factory.mktemp("revisions"), 1.0)


def _revised(world: Path, policy: Path, workdir: Path, accuracy: float) -> Path:
    config = ReviseConfig(
        judge=ChatModelConfig(gold_accuracy=accuracy), categories=("harmful",), max_new_tokens=12
    )
    return run_stage("revise", config, workdir, data=world, policy=policy)


def _quality(world: Path, policy: Path, *, harmful: bool) -> float:
    """Mean gold quality of answers to prompts that nothing was trained on."""
    prompts = [
        row["prompt"]
        for row in read_rows(world / "pair_prompts.jsonl")
        if (row["category"] == "harmful") == harmful
    ]
    answers = respond(
        load_policy(policy / "model"),
        load_tokenizer(policy / "model"),
        prompts * 4,
        Sampling(1.0, 12),
        torch.Generator().manual_seed(0),
    )
    found = [quality(*pair) for pair in zip(prompts * 4, answers, strict=True)]
    return sum(found) / len(found)


def test_what_is_mixed_by_hand() -> None:
    revised = [{"prompt": f"h{n}", "response": "no", "category": "harmful"} for n in range(4)]
    shown = [
        *({"prompt": f"h{n}", "response": "yes", "category": "harmful"} for n in range(9)),
        *({"prompt": f"g{n}", "response": "hi", "category": "greet"} for n in range(30)),
    ]

    def mixed(ratio: float, rows: list[dict[str, Any]], seed: int = 0) -> list[dict[str, Any]]:
        config = ConstitutionalSFTConfig(helpful_per_revision=ratio, seed=seed)
        return helpful_beside(config, revised, rows)

    assert len(mixed(1.5, shown)) == 6
    assert {row["category"] for row in mixed(1.5, shown)} == {"greet"}
    assert mixed(1.5, shown) == mixed(1.5, shown) != mixed(1.5, shown, seed=1)
    assert len(mixed(100, shown)) == 30
    assert mixed(0, shown) == []
    # Where every category was revised, prompts that were not are helpful.
    assert {row["prompt"] for row in mixed(100, shown[:9])} == {f"h{n}" for n in range(4, 9)}
    assert mixed(1, shown[:4]) == []


@pytest.mark.slow
def test_it_learns_to_answer_harmful_prompts_and_keeps_what_it_can(
    tmp_path: Path, smoke_config: Any
) -> None:
    """A world large enough for a policy that knows something; revisions of no use teach nothing."""
    changes = {"num_demonstrations": 1500, "num_policy_prompts": 400, "num_pair_prompts": 400}
    world = run_stage("world", smoke_config.world.model_copy(update=changes), tmp_path / "world")
    train = smoke_config.sft.train.model_copy(update={"num_epochs": 6})
    sft = smoke_config.sft.model_copy(update={"train": train})
    policy = run_stage("sft", sft, tmp_path / "sft", data=world)
    harmful, others = {}, {}
    for accuracy in (0.5, 1.0):
        revisions = _revised(world, policy, tmp_path / f"r{accuracy}", accuracy)
        inputs = {"policy": policy, "revisions": revisions, "data": world}
        output = run_stage("constitutional_sft", CONFIG, tmp_path / f"s{accuracy}", **inputs)
        harmful[accuracy] = _quality(world, output, harmful=True)
        others[accuracy] = _quality(world, output, harmful=False)
    before = _quality(world, policy, harmful=True)
    assert harmful[1.0] > before + 0.2
    assert harmful[0.5] < before + 0.05
    assert others[1.0] > _quality(world, policy, harmful=False) - 0.1
    summary = json.loads((output / "summary.json").read_text())
    count = len(read_rows(revisions / "demonstrations.jsonl"))
    assert (summary["num_revisions"], summary["num_helpful"]) == (count, count)
    assert summary["num_updates"] == 6 * -(-2 * count // 8)


@pytest.mark.slow
def test_resumed_equals_uninterrupted(
    tmp_path: Path,
    world: Path,
    policy: Path,
    revisions: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    inputs = {"policy": policy, "revisions": revisions, "data": world}
    whole = run_stage("constitutional_sft", CONFIG, tmp_path / "whole", **inputs)
    with monkeypatch.context() as patch:
        die_after(patch, loop, 5)
        with pytest.raises(Killed):
            run_stage("constitutional_sft", CONFIG, tmp_path / "part", **inputs)
    part = run_stage("constitutional_sft", CONFIG, tmp_path / "part", **inputs)
    one, other = (load_file(each / "model" / "model.safetensors") for each in (whole, part))
    assert all(one[name].equal(other[name]) for name in one)
