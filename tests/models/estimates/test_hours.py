"""Operations of a stage by hand and by torch's counter; hours of cards; where a rate is from."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch.utils.flop_counter import FlopCounterMode
from transformers import LlamaConfig, LlamaForCausalLM

from tests.models.estimates.conftest import AMOUNTS, SHAPE
from trimtab.models.config.policy import DPOConfig, PPOConfig, RehearsalConfig
from trimtab.models.config.reward import RewardModelConfig
from trimtab.models.config.training import LoraConfig, SFTConfig, TrainConfig
from trimtab.models.estimates.hours import (
    SECONDS_A_LAYER,
    SHARE_OF_BANDWIDTH,
    Range,
    gpu_seconds,
    operations,
    rate_of,
)
from trimtab.models.estimates.machine import CARDS, Card, Machine
from trimtab.models.estimates.shapes import gated_decoder
from trimtab.models.estimates.stages import work_of
from trimtab.models.estimates.work import StageInputs, Work
from trimtab.models.nets.packing import Candidates, pack
from trimtab.models.nets.scoring import hidden_states
from trimtab.models.nets.training import prepare_training

# A row of one token attends to next to nothing.
SHORT = replace(AMOUNTS, pair_tokens=1)
INPUTS = StageInputs(SHAPE, SHORT)
LAYERS = 30 * SHAPE.layers[0].active
HEAD = 49_152 * 576
CARD = Card("X1", products=1e12, bandwidth=1e9, gib=80)


def _of(config: TrainConfig, work: Work, inputs: StageInputs = INPUTS) -> float:
    attention = 2 * 30 * 576  # of a row of one token
    return operations(config, inputs, work) / (1 + attention / (2 * LAYERS))


@pytest.mark.parametrize(
    ("changes", "times"),
    [
        ({}, 6.0),
        ({"gradient_checkpointing": True}, 8.0),
        ({"lora": LoraConfig()}, 4.0),
        ({"lora": LoraConfig(), "gradient_checkpointing": True}, 6.0),
        # A fifth of the layers learns, all of them pass.
        ({"trainable_layers": 6}, 2 + 4 / 5),
        ({"trainable_layers": 6, "lora": LoraConfig()}, 2 + 2 / 5),
    ],
)
def test_operations_of_a_trained_token_by_hand(changes: dict[str, Any], times: float) -> None:
    config = TrainConfig(**changes)
    found = _of(config, Work(examples=1, trained_tokens=1000))
    assert found == pytest.approx(times * LAYERS * 1000, rel=1e-3)
    head = operations(config, INPUTS, Work(1, trained_tokens=1000, trained_logits=10))
    assert head - operations(config, INPUTS, Work(1, trained_tokens=1000)) == 60 * HEAD


def test_a_scorer_on_a_cached_trunk_passes_the_trained_layers_alone() -> None:
    config, inputs = TrainConfig(trainable_layers=6), replace(INPUTS, has_trunk=True)
    trained = _of(config, Work(examples=1, trained_tokens=1000), inputs)
    assert trained == pytest.approx(6 / 5 * LAYERS * 1000, rel=1e-3)
    scored = _of(config, Work(examples=1, forward_tokens=1000), inputs)
    assert scored == pytest.approx(2 / 5 * LAYERS * 1000, rel=1e-3)


def test_operations_of_passed_and_sampled_tokens_by_hand() -> None:
    assert operations(None, INPUTS, Work(1, forward_tokens=7)) == pytest.approx(
        2 * LAYERS * 7, rel=1e-3
    )
    sampled = operations(None, INPUTS, Work(1, sampled_tokens=7))
    assert sampled == pytest.approx(2 * (LAYERS + HEAD) * 7, rel=1e-3)
    # Half a row of 100 keys on average, by products with queries and with shares.
    longer = operations(
        None, StageInputs(SHAPE, replace(AMOUNTS, pair_tokens=100)), Work(1, forward_tokens=7)
    )
    assert longer - 2 * LAYERS * 7 == 7 * 30 * 4 * 50 * 9 * 64


@pytest.mark.parametrize("is_recomputed", [False, True])
def test_operations_are_those_that_torch_counts(is_recomputed: bool) -> None:
    """One row of a causal pass forward and backward, and its log-probabilities."""
    sizes: dict[str, Any] = {
        "vocab_size": 50,
        "hidden_size": 32,
        "intermediate_size": 80,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
        "tie_word_embeddings": False,
    }
    shape, model = gated_decoder(**sizes), LlamaForCausalLM(LlamaConfig(**sizes, pad_token_id=0))
    config = TrainConfig(gradient_checkpointing=is_recomputed)
    prepare_training(model.train(), config, seed=0)
    batch = pack([Candidates([1] * 4, ([2] * 4,))] * 8)
    with FlopCounterMode(display=False) as counter:
        states = hidden_states(model, batch)
        model.lm_head(states[:32]).sum().backward()
    inputs = StageInputs(shape, replace(AMOUNTS, pair_tokens=8))
    work = Work(1, trained_tokens=64, trained_logits=32)
    # Attention's kernels are not counted, nor is a layer's last product computed again.
    counted = counter.get_total_flops() + is_recomputed * 2 * 64 * 3 * 80 * 32
    assert operations(config, inputs, work) == pytest.approx(counted, rel=0.04)


def test_amounts_are_those_of_the_stages() -> None:
    train = TrainConfig(batch_size=16)
    prompt, new = 10, 8
    inputs = StageInputs(SHAPE, AMOUNTS)
    sft = work_of("sft", SFTConfig(train=train), inputs)
    assert sft.trained_logits == sft.trained_tokens == 100 * 25
    assert work_of("reward_model", RewardModelConfig(train=train), inputs).trained_logits == 0
    dpo = work_of("dpo", DPOConfig(train=train, rehearsal_coef=0), inputs)
    assert dpo.trained_logits == dpo.passed_logits == 37 * 42
    rehearsal = work_of("rehearsal", RehearsalConfig(max_new_tokens=new), inputs)
    assert rehearsal.sampling_steps == 2 * new  # 40 prompts in two batches
    ppo = PPOConfig(
        num_steps=3,
        critic_pretrain_steps=2,
        rollout_batch=20,
        train_batch=10,
        rehearsal_coef=0,
        ptx_coef=0,
        max_new_tokens=new,
    )
    work = work_of("ppo_max", ppo, inputs)
    assert work.sampling_steps == 5 * 2 * new
    assert work.passed_logits == 5 * 20 * (new + 1)  # the reference's
    assert work.trained_logits == 3 * 20 * (new + 1)
    assert work.trained_tokens == (3 + 5) * 20 * (prompt + new + 1)


def test_seconds_of_a_card_by_hand() -> None:
    work = Work(1, forward_tokens=10**6, sampling_steps=100)
    rate = replace(rate_of(CARD, Path("none")), products=Range(1e11, 4e11))
    needed = operations(None, INPUTS, work)
    found = gpu_seconds(None, INPUTS, work, CARD, rate)
    reading = 100 * INPUTS.policy_bytes / (SHARE_OF_BANDWIDTH * 1e9)
    assert found.least == pytest.approx(needed / 4e11 + reading)
    assert found.most == pytest.approx(needed / 1e11 + reading)  # of such slow memory
    fast = replace(CARD, bandwidth=1e15)
    found = gpu_seconds(None, INPUTS, work, fast, rate)
    assert found.most == pytest.approx(needed / 1e11 + 100 * 30 * SECONDS_A_LAYER)


def test_the_measured_share_of_the_same_card_counts(tmp_path: Path) -> None:
    card = next(card for card in CARDS if card.name == "H100")
    assert rate_of(card, tmp_path).products == Range(0.15 * 989e12, 0.45 * 989e12)

    def write(name: str, card: str, **more: Any) -> None:
        values = [
            {"name": "products of bfloat16", "value": 800.0, "unit": "TFLOP/s"},
            {"name": "of the card's rate of products", "value": 24.0, "unit": "%"},
        ]
        slower = [{"name": "of the card's rate of products", "value": 20.0, "unit": "%"}]
        parts = [
            {"part": "card", "values": values},
            {"part": "1B", "values": slower},
            {"part": "x"},
        ]
        (tmp_path / name).write_text(json.dumps({"card": card, "parts": parts, **more}))

    write("a.json", "NVIDIA H200")
    write("b.json", "NVIDIA H100 80GB HBM3", is_rehearsal=True)
    assert "data sheet" in rate_of(card, tmp_path).source
    write("c.json", "NVIDIA H100 80GB HBM3")
    found = rate_of(card, tmp_path)
    assert found.products == Range(pytest.approx(0.2 * 800e12), pytest.approx(0.24 * 800e12))
    assert found.source == "docs/explanation/gpu/c.json"
    for other, like in (("L4", "NVIDIA L40S"), ("RTX 4090", "NVIDIA RTX 6000 Ada Generation")):
        write("d.json", like)
        named = next(card for card in CARDS if card.name == other)
        assert "data sheet" in rate_of(named, tmp_path).source


@pytest.mark.parametrize(
    ("gib", "name", "cards"),
    [
        (24, None, ["L4", "A10G", "RTX 4090"]),
        (22.5, "NVIDIA L4", ["L4"]),
        (24, "NVIDIA GeForce RTX 4090", ["RTX 4090"]),
        (45, "NVIDIA L40S", ["L40S"]),
        (80, None, ["A100 80GB", "H100"]),
        (80, "NVIDIA A100-SXM4-80GB", ["A100 80GB"]),
        (40, "NVIDIA A100-SXM4-40GB", ["A100 40GB"]),
        (79.6, "NVIDIA H100 80GB HBM3", ["H100"]),
        (16, "Tesla T4", []),
        (64, None, []),
    ],
)
def test_cards_by_name_and_memory(gib: float, name: str | None, cards: list[str]) -> None:
    assert [card.name for card in Machine.with_gpus(1, gib, name).cards] == cards
    assert Machine.this_computer(2).cards == []
