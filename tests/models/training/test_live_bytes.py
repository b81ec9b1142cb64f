"""The bytes that live in each phase of a trainer are those that its plan says."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.models.conftest import run_stage
from tests.models.jobs import job, launch
from tests.models.live_bytes import TOLD_FILE
from trimtab.models.config.training import LoraConfig, ModelConfig, ZeroConfig
from trimtab.models.data.records import read_rows
from trimtab.models.estimates.amounts import Amounts
from trimtab.models.estimates.shapes import shape_of
from trimtab.models.estimates.stages import work_of
from trimtab.models.estimates.work import StageInputs
from trimtab.models.nets import counts
from trimtab.models.nets.loading import load_tokenizer, new_scorer, save_model

# As much smaller than those of large models as this one is than those.
LIMITS = {"BUCKET": 20_000, "ZERO_BUCKET": 20_000, "ZERO_LIVE": 30_000, "ZERO_PREFETCH": 10_000}
LIMITS |= {"ZERO_WHOLE": 200, "PASS_TOKENS": 200, "CACHE_TOKENS": 400}
NUM_ROWS = 48
TRAIN = {"batch_size": 24, "num_epochs": 1, "micro_batch_tokens": 100, "checkpoint_every": 1000}
PPO = {"num_steps": 2, "critic_pretrain_steps": 1, "rehearsal_coef": 0.0, "checkpoint_every": 1000}
PPO["micro_batch_tokens"] = 100
META = {"meta_batch": 4, "num_prompts": 12}


@dataclass(frozen=True)
class Material:
    """Folders of what comes in, and what plans are told of it."""

    inputs: dict[str, Path]
    stage_inputs: StageInputs
    model: ModelConfig


@pytest.fixture(scope="module")
def material(
    tmp_path_factory: pytest.TempPathFactory, smoke_config: Any, world: Path, comparisons: Path
) -> Material:
    """Few rows, and a model whose weights take more than what passes through it."""
    folder = tmp_path_factory.mktemp("live")
    model = ModelConfig(hidden_size=96, num_layers=3, max_length=smoke_config.sft.model.max_length)
    config = smoke_config.sft.model_copy(update={"fine_tune": False, "model": model})
    policy = run_stage("sft", config, folder / "policy", data=world)
    scorer = new_scorer(policy / "model", seed=0)
    save_model(scorer, load_tokenizer(policy / "model"), folder / "scorer/model")
    model = ModelConfig(base=str(policy / "model"))
    inputs = {"policy": policy, "scorer": folder / "scorer", "reference": policy}
    for name, source in (("data", world), ("preferences", comparisons)):
        inputs[name] = folder / name
        inputs[name].mkdir()
        for path in source.glob("*.jsonl"):
            lines = path.read_text().splitlines(keepends=True)[:NUM_ROWS]
            (inputs[name] / path.name).write_text("".join(lines))
        if (source / "tokenizer").exists():
            (inputs[name] / "tokenizer").symlink_to(source / "tokenizer")
    stage_inputs = StageInputs(shape_of(model), _amounts(inputs), starts_as_reference=True)
    return Material(inputs, stage_inputs, model)


def _amounts(inputs: dict[str, Path]) -> Amounts:
    """As a plan has them, but of these rows: as many as there are, and as long as they are."""
    rows = [*read_rows(inputs["data"] / "demonstrations.jsonl")]
    rows += read_rows(inputs["preferences"] / "train.jsonl")
    prompts = [*rows, *read_rows(inputs["data"] / "policy_prompts.jsonl")]
    prompt = max(len(row["prompt"].split()) for row in prompts)
    answers = [row.get(key, "") for row in rows for key in ("response", "chosen", "rejected")]
    answer = max(len(text.split()) for text in answers) + 1
    return Amounts(
        demonstrations=NUM_ROWS,
        pairs=3 * NUM_ROWS,
        train_pairs=NUM_ROWS,
        train_rankings=NUM_ROWS,
        policy_prompts=NUM_ROWS,
        prompt_tokens=prompt,
        dialogue_tokens=prompt + answer,
        pair_tokens=prompt + 2 * answer,
    )


WIDE = [("sft", None), ("reward_model", None), ("meta_rm", 2), ("meta_rm", 3), ("ppo_max", 3)]
NARROW = [("reward_model", 2), ("reward_model", 3), ("meta_rm", 2), ("meta_rm", 3), ("ppo_max", 3)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stage", "zero", "more"),
    [(*case, {}) for case in WIDE]
    + [(*case, {"precision": "bfloat16"}) for case in NARROW]
    # Moments of the policy are there from its first update on, in the second step.
    + [("ppo_max", None, {"precision": "bfloat16", "num_steps": 3})]
    + [("sft", None, {"precision": "bfloat16", "lora": LoraConfig(rank=4)})],
)
def test_what_lives_in_each_phase_is_what_was_planned(
    tmp_path: Path,
    smoke_config: Any,
    material: Material,
    monkeypatch: pytest.MonkeyPatch,
    stage: str,
    zero: int | None,
    more: dict[str, Any],
) -> None:
    """With narrow products as on a GPU."""
    for name, value in LIMITS.items():
        monkeypatch.setattr(counts, name, value)
    config = _config(smoke_config, stage, material.model, zero, more)
    work = work_of(stage, config, replace(material.stage_inputs, has_gpus=bool(more)))
    content = job(tmp_path, config, tmp_path, 2, stage, material.inputs)
    told = {"limits": LIMITS, "as_on_gpu": bool(more)}
    (tmp_path / TOLD_FILE).write_text(json.dumps(told))
    launch(content, entry="tests.models.live_bytes")
    ranks = [json.loads(path.read_text()) for path in (tmp_path / "live").iterdir()]
    assert len(ranks) == 2
    live = {name: max(rank.get(name, 0) for rank in ranks) for rank in ranks for name in rank}
    assert live.keys() == work.phases.keys()
    for name, found in live.items():
        planned = work.phases[name]
        # Rows of token ids and counters are not planned; prompts and answers at their longest are.
        assert found <= 1.01 * planned.total, (name, planned)
        assert planned.total <= 1.25 * found, (name, planned)


def _config(
    smoke_config: Any, stage: str, model: ModelConfig, zero: int | None, more: dict[str, Any]
) -> Any:
    """The stage's configuration for two ranks of few, short micro batches."""
    ranks = {"num_ranks": 2, "zero": None if zero is None else ZeroConfig(stage=zero), **more}
    if stage == "ppo_max":
        return smoke_config.ppo.model_copy(update={**PPO, **ranks})
    config = {
        "sft": smoke_config.sft.model_copy(update={"model": model}),
        "reward_model": smoke_config.reward_model,
        "meta_rm": smoke_config.rounds.meta_rm.model_copy(update=META),
    }[stage]
    return config.model_copy(update={"train": config.train.model_copy(update={**TRAIN, **ranks})})
