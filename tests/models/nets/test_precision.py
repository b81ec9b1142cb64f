"""Narrow products: near the wide ones, float32 at every end, and the trainer's choice alone."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, LlamaForSequenceClassification

from trimtab.models.config.policy import PPOConfig, RehearsalConfig
from trimtab.models.config.reporting import EvaluateConfig
from trimtab.models.config.reward import RewardModelConfig, TrunkCacheConfig
from trimtab.models.config.training import Precision, TrainConfig, precision_of
from trimtab.models.nets.packing import Candidates, PackedBatch, TrunkActivations, pack
from trimtab.models.nets.precision import has_narrow_products, set_product_precision
from trimtab.models.nets.scoring import response_logprobs, response_scores
from trimtab.models.nets.training import prepare_training
from trimtab.models.nets.trunk import hidden_states, trunk_output

pytestmark = pytest.mark.narrow

SIZES = {
    "vocab_size": 50,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
}


@pytest.fixture
def model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**SIZES)).train()


@pytest.fixture
def batch() -> PackedBatch:
    tokens = torch.randint(1, 50, (60,), generator=torch.Generator().manual_seed(1)).tolist()
    rows = [Candidates(tokens[:10], (tokens[10:25], tokens[25:32])), Candidates([7], ([8, 9],))]
    return pack(rows)


def _gradients(model: LlamaForCausalLM, batch: PackedBatch) -> dict[str, Tensor]:
    model.zero_grad()
    response_logprobs(model, batch)[0].sum().backward()
    return {name: value.grad for name, value in model.named_parameters() if value.grad is not None}


def test_gradients_are_wide_and_near_those_of_wide_products(
    model: LlamaForCausalLM, batch: PackedBatch, request: pytest.FixtureRequest
) -> None:
    wide = _gradients(model, batch)
    request.getfixturevalue("narrow_products")
    narrow = _gradients(model, batch)
    assert wide.keys() == narrow.keys()
    for name, gradient in narrow.items():
        assert gradient.dtype == torch.float32
        assert not torch.equal(gradient, wide[name]), name
        # Some 80 roundings on the way there and back (13 a layer, each way, three layers), each in
        # the root mean square 2^-9 / 3^.5 of what it rounds, turn it by .01. A cosine of .999 is an
        # angle of .045, more than four times that.
        assert torch.cosine_similarity(gradient.flatten(), wide[name].flatten(), 0) > 0.999, name


def test_what_leaves_a_trunk_and_its_heads_is_wide(
    model: LlamaForCausalLM, batch: PackedBatch, narrow_products: None
) -> None:
    torch.manual_seed(0)
    scorer = LlamaForSequenceClassification(LlamaConfig(**SIZES, num_labels=1))
    found: list[Callable[[], Tensor]] = [
        lambda: hidden_states(model, batch),
        lambda: response_logprobs(model, batch)[0],
        lambda: response_scores(scorer, batch),
    ]
    assert [function().dtype for function in found] == [torch.float32] * 3
    # A score that had been rounded to bfloat16 would be equal to its own rounding.
    scores = response_scores(scorer, batch)
    assert not torch.equal(scores, scores.bfloat16().float())


def test_recomputed_layers_multiply_as_they_did_at_first(
    model: LlamaForCausalLM, batch: PackedBatch, narrow_products: None
) -> None:
    kept = _gradients(model, batch)
    prepare_training(model, TrainConfig(gradient_checkpointing=True), 0)
    again = _gradients(model, batch)
    for name, gradient in kept.items():
        assert torch.equal(gradient, again[name]), name


def test_inputs_of_products_are_narrow_where_they_are_handed_to_several(
    model: LlamaForCausalLM, batch: PackedBatch, narrow_products: None
) -> None:
    """Cast once, in a pass of the upper layers alone, too; when sampling they stay wide."""
    layer, found = model.model.layers[2], []
    for part in (layer.self_attn, layer.mlp):
        next(part.children()).register_forward_pre_hook(lambda _, given: found.append(given[0]))
    prepare_training(model, TrainConfig(trainable_layers=1), 0)
    lower = TrunkActivations(trunk_output(model, batch, 2), model.model.layers[1], 2)
    hidden_states(model, dataclasses.replace(batch, lower=lower))
    hidden_states(model, batch)
    assert [each.dtype for each in found] == [torch.bfloat16] * 4
    model(torch.tensor([[1, 2, 3]]))
    assert [each.dtype for each in found[4:]] == [torch.float32] * 2


def test_a_step_of_the_weights_is_seen_by_the_next_pass(
    model: LlamaForCausalLM, batch: PackedBatch, narrow_products: None
) -> None:
    before = hidden_states(model, batch).detach()
    with torch.no_grad():
        for value in model.parameters():
            value.mul_(1.5)
    assert (hidden_states(model, batch) - before).abs().max() > 0.1


@pytest.mark.parametrize(
    ("device", "capability", "precision", "is_narrow", "matrices"),
    [
        ("cuda", (8, 0), "auto", True, "high"),
        ("cuda", (7, 5), "auto", False, "highest"),
        ("cuda", (9, 0), "float32", False, "highest"),
        ("cuda", (7, 5), "bfloat16", True, "high"),
        ("mps", (), "auto", False, None),
        ("cpu", (), "auto", False, None),
    ],
)
def test_auto_is_bfloat16_with_tf32_from_ampere_on(
    monkeypatch: pytest.MonkeyPatch,
    device: str,
    capability: tuple[int, ...],
    precision: Precision,
    is_narrow: bool,
    matrices: str | None,
) -> None:
    found: list[str] = []
    monkeypatch.setattr("trimtab.models.nets.precision._device", lambda: device)
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda: capability)
    monkeypatch.setattr("torch.set_float32_matmul_precision", found.append)
    set_product_precision(precision)
    assert has_narrow_products() is is_narrow
    assert found == ([] if matrices is None else [matrices])
    set_product_precision("float32")


def test_a_stage_has_its_trainer_s_precision_or_its_own() -> None:
    narrow = TrainConfig(precision="bfloat16")
    assert precision_of(RewardModelConfig(train=narrow)) == "bfloat16"
    assert precision_of(PPOConfig(precision="float32")) == "float32"
    assert precision_of(TrunkCacheConfig(trainable_layers=1, precision="float32")) == "float32"
    # Of stages that only sample or score, and of all that set nothing.
    for config in (EvaluateConfig(), RehearsalConfig(), RewardModelConfig(), PPOConfig()):
        assert precision_of(config) == "auto"


def test_a_cpu_without_such_instructions_is_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx2": True})
    with pytest.warns(UserWarning, match="this CPU has none of amx_bf16, avx512_bf16"):
        set_product_precision("bfloat16")
    assert has_narrow_products()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        set_product_precision("float32")
    assert not has_narrow_products()
