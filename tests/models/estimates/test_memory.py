"""Memory by hand, and against what autograd and the cache really keep."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM, PreTrainedModel

from tests.models.estimates.conftest import kept_bytes
from trimtab.models.config.training import TrainConfig
from trimtab.models.estimates.machine import GIB, Machine
from trimtab.models.estimates.memory import (
    Memory,
    Partition,
    forward_set,
    kept_activations,
    key_value_cache,
    trained,
    vocabulary_set,
)
from trimtab.models.estimates.shapes import KNOWN_SHAPES, gated_decoder
from trimtab.models.nets import counts, short_rows
from trimtab.models.nets.fused import fuse_layers
from trimtab.models.nets.packing import Candidates, pack
from trimtab.models.nets.scoring import hidden_states, response_logprobs
from trimtab.models.nets.training import prepare_training

MISTRAL = KNOWN_SHAPES["mistralai/Mistral-7B-v0.1"]
# Unequal everywhere, so that no two dimensions can be confused; grouped heads of their own size.
SIZES: dict[str, Any] = {
    "vocab_size": 50,
    "hidden_size": 24,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 10,
    "max_position_embeddings": 128,
    "tie_word_embeddings": False,
}
SHAPE = gated_decoder(**SIZES)
RECOMPUTING = TrainConfig(gradient_checkpointing=True)


@pytest.fixture
def long_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are attended to as long ones are; attention to short ones keeps less."""
    monkeypatch.setattr(short_rows, "MOST_TOKENS", 0)


@pytest.fixture
def model() -> PreTrainedModel:
    model = LlamaForCausalLM(LlamaConfig(**SIZES, pad_token_id=0))
    fuse_layers(model)
    return model.train()


def test_a_7b_model_under_adam_by_hand() -> None:
    # 7,241,732,096 parameters of 4 (weight) + 4 (gradient) + 8 (Adam) = 16 bytes each.
    memory = trained(MISTRAL.policy_parameters)
    assert memory.total == 115_867_713_536
    assert memory.total / GIB == pytest.approx(107.91, abs=0.005)
    # Moments of one byte each: 4 + 4 + 2.
    assert trained(MISTRAL.policy_parameters, optimiser="adamw_8bit").total == 72_417_320_960


def test_zero_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    # 100 parameters, 8 devices; frozen bytes split under stage 3, activations and cache never.
    # The optimiser has 8 bytes a parameter, and 4 for its copy of the weights; a bucket of
    # gradients has 10 numbers, and of weights under stage 3 20 are whole at a time, and 5 fetched.
    for name, numbers in (("ZERO_BUCKET", 10), ("ZERO_LIVE", 20), ("ZERO_PREFETCH", 5)):
        monkeypatch.setattr(counts, name, numbers)
    memory = Memory(400, 400, 800, frozen=96, activations=60, cache=7)
    assert memory.total == 1763
    assert Partition(1, 8).working_part(memory).total == 400 + 400 + 40 + 1200 / 8 + 96 + 67
    assert Partition(2, 8).working_part(memory).total == 400 + 2 * 400 / 8 + 40 + 1200 / 8 + 96 + 67
    assert (
        Partition(3, 8).working_part(memory).total
        == 400 / 8 + 100 + 400 / 8 + 40 + 1200 / 8 + 96 / 8 + 67
    )
    # In the step there are no activations, but the gradients once more.
    assert Partition(3, 8).working_part(replace(memory, activations=30)).activations == 400 / 8


def test_narrow_weights_under_zero_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    # 100 parameters of 2 bytes; the optimiser's part, 12 bytes, and the gradient's, 4, stay wide.
    # A bucket of 10 is there narrow and wide, under stage 3 wide once more; 25 weights are whole.
    for name, numbers in (("ZERO_BUCKET", 10), ("ZERO_LIVE", 20), ("ZERO_PREFETCH", 5)):
        monkeypatch.setattr(counts, name, numbers)
    memory = Memory(400, 400, 800, frozen=96, activations=60, cache=7)
    second, third = (Partition(stage, 8, is_narrow=True).working_part(memory) for stage in (2, 3))
    assert second.total == 200 + 400 / 8 + 10 * (2 + 4) + 1200 / 8 + 48 + 67
    assert third.total == 200 / 8 + 50 + 400 / 8 + 10 * (2 + 4 + 4) + 1200 / 8 + 96 / 2 / 8 + 67
    # Loading: narrow weights, their copy in one buffer, the wide part; or all of it as it comes.
    assert Partition(2, 8, is_narrow=True).loading(memory, 9).total == max(
        400 + 96, 400 + 400 / 8 + 48
    )
    # With two devices: narrow weights, and wide parts of weights, of masters and for a gradient;
    # under stage 3 three whole matrices of 9 numbers.
    assert Partition(2, 2, is_narrow=True).loading(memory, 9).total == 200 + 3 * 200 + 48
    assert (
        Partition(3, 2, is_narrow=True).loading(memory, 9).total
        == 100 + 3 * 200 + 10 * 10 + 24 + 54
    )


def test_offload_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is partitioned moves to the host's memory: Adam's state, under stage 3 weights too."""
    for name, numbers in (("ZERO_BUCKET", 10), ("ZERO_LIVE", 20), ("ZERO_PREFETCH", 5)):
        monkeypatch.setattr(counts, name, numbers)
    memory = Memory(400, 400, 800, frozen=96, activations=60, cache=7)
    second, third = (Partition(stage, 8, offload=True).working_part(memory) for stage in (2, 3))
    assert (second.host, second.optimiser) == (1200 / 8, 0)
    assert second.total == 400 + 2 * 400 / 8 + 40 + 96 + 67
    assert third.host == 1200 / 8 + 400 / 8 + 96 / 8
    # Weights that are whole at a time stay on the device, with gradients and their bucket.
    assert third.total == 100 + 400 / 8 + 40 + 67
    for stage in (1, 2, 3):
        kept, moved = (Partition(stage, 8, on).working_part(memory) for on in (False, True))
        assert moved.total + moved.host == kept.total
    # While it is loaded the model is whole on the device, and the parts of all on the host.
    loading = Partition(3, 8, offload=True).loading(memory, 9)
    assert (loading.total, loading.host) == (496, 496 / 8)
    assert Partition(2, 8, offload=True).loading(memory, 9) == Partition(2, 8).loading(memory, 9)


def test_loading_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counts, "ZERO_BUCKET", 10)
    memory = Memory(400, 400, 800, frozen=96, activations=60, cache=7)
    assert Partition(0, 1).loading(memory, 9).total == 400 + 96
    # The weights and the flat copy that takes their place.
    assert Partition(2, 8).loading(memory, 9).total == 2 * 400 + 96
    # One parameter after another is taken apart: the whole model and the parts of all.
    assert Partition(3, 8).loading(memory, 9).total == 496 + 496 / 8
    # With few devices: its part, the optimiser's copy, gradients and a bucket of them; the frozen
    # part; and three whole matrices of 9 numbers.
    assert Partition(3, 2).loading(memory, 9).total == 200 + 200 + (200 + 40) + 48 + 108


@pytest.mark.parametrize(
    ("num_rows", "prompt", "responses"), [(3, 10, [20]), (5, 30, [4]), (4, 20, [6, 9, 2])]
)
def test_kept_activations_are_those_that_autograd_keeps(
    model: PreTrainedModel,
    monkeypatch: pytest.MonkeyPatch,
    num_rows: int,
    prompt: int,
    responses: list[int],
) -> None:
    row = Candidates([1] * prompt, tuple([2] * response for response in responses))
    really = kept_bytes(model, lambda: hidden_states(model, pack([row] * num_rows)))
    repeated = sum(prompt + response for response in responses[1:])
    expected = kept_activations(
        SHAPE, TrainConfig(), num_rows * row.num_tokens, num_rows * repeated
    )
    assert 0.8 * expected < really < expected
    monkeypatch.setattr(short_rows, "MOST_TOKENS", 0)
    as_long = kept_bytes(model, lambda: hidden_states(model, pack([row] * num_rows)))
    assert expected == pytest.approx(as_long, rel=2e-3)


@pytest.mark.narrow
@pytest.mark.parametrize(("num_rows", "responses"), [(3, [20]), (4, [6, 9, 2])])
def test_narrow_products_keep_narrow_numbers(
    model: PreTrainedModel,
    narrow_products: None,
    monkeypatch: pytest.MonkeyPatch,
    num_rows: int,
    responses: list[int],
) -> None:
    for module in ("attention", "trunk"):  # as on a GPU
        monkeypatch.setattr(
            f"trimtab.models.nets.{module}.attention_dtype", lambda _: torch.bfloat16
        )
    row = Candidates([1] * 20, tuple([2] * response for response in responses))
    really = kept_bytes(model, lambda: hidden_states(model, pack([row] * num_rows)))
    sizes = num_rows * row.num_tokens, num_rows * sum(20 + n for n in responses[1:])
    expected = kept_activations(SHAPE, TrainConfig(precision="bfloat16"), *sizes)
    assert expected == pytest.approx(really, rel=2e-3)


def test_dropout_keeps_what_it_multiplies_by(model: PreTrainedModel, long_rows: None) -> None:
    prepare_training(model, TrainConfig(), 0, dropout=0.1)
    batch = pack([Candidates([1] * 10, ([2] * 20,))] * 3)
    really = kept_bytes(model, lambda: hidden_states(model, batch))
    expected = kept_activations(SHAPE, TrainConfig(dropout=0.1), 90)
    assert expected == pytest.approx(really, rel=2e-3)


def test_recomputed_layers_keep_their_input() -> None:
    # Of Mistral: 4,096 floats a token and layer, one layer's 73,762, and 4,355 once.
    floats = 32 * 4_096 + 73_762 + 4_355
    assert kept_activations(MISTRAL, RECOMPUTING, 1) == 4 * floats
    one_layer = forward_set(MISTRAL, 7)
    kept, whole = (kept_activations(MISTRAL, config, 7) for config in (RECOMPUTING, TrainConfig()))
    assert kept + one_layer < (whole + one_layer) / 5


def test_kept_activations_of_mistral_by_hand() -> None:
    # A layer, floats a token: 4 x 4,096 + 2 of the norms, 3 x 4,096 + 2 x 1,024 + 32 of attention,
    # 3 x 14,336 of the feed-forward: 73,762. 32 layers, and 4,096 + 1 + 2 x 128 + 2 once:
    # 2,364,739 floats, so 9.0 MiB a token.
    assert kept_activations(MISTRAL, TrainConfig(), 1) == 4 * 2_364_739


def test_the_cache_is_as_large_as_a_real_one(model: PreTrainedModel) -> None:
    cache = DynamicCache(config=model.config)
    with torch.no_grad():
        model(input_ids=torch.ones(2, 9, dtype=torch.long), past_key_values=cache, use_cache=True)
    really = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
    assert key_value_cache(SHAPE, 2 * 9) == really
    # Mistral: 2 x 32 layers x 8 heads x 128 x 4 bytes = 256 KiB a token.
    assert key_value_cache(MISTRAL, 1) == 262_144


def test_logits_by_hand() -> None:
    # 32,000 floats a response token.
    assert vocabulary_set(MISTRAL, 10) == 10 * 32_000 * 4
    # Of 256 Mi logits at once: 8,388 tokens.
    assert vocabulary_set(MISTRAL, 100_000) == 8_388 * 32_000 * 4


def test_of_the_logits_autograd_keeps_their_probabilities(model: PreTrainedModel) -> None:
    batch = pack([Candidates([1] * 10, ([2] * 20,))] * 3)
    trunk = kept_bytes(model, lambda: hidden_states(model, batch, batch.sources))
    really = kept_bytes(model, lambda: response_logprobs(model, batch)[0]) - trunk
    states = 60 * SHAPE.hidden_size * 4  # of the response tokens, for the head's gradient
    assert really == pytest.approx(vocabulary_set(SHAPE, 60) + states, rel=0.2)


def test_a_machine_says_what_it_is() -> None:
    assert "8 GPUs of 80.0 GiB" in str(Machine.with_gpus(8, 80))
    here = Machine.this_computer(2)
    assert here.memory > GIB / 4
    assert "at most 2 trainers" in str(here)
