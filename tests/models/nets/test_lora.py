"""Adapters are what the formula says, leave nothing behind, and need no second copy of a model."""

from __future__ import annotations

import copy

import pytest
import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
)

from trimtab.models.config.training import LoraConfig, TrainerConfig
from trimtab.models.nets.freezing import trained_parameters, trained_state
from trimtab.models.nets.generation import Sampling, decode
from trimtab.models.nets.lora import add_adapters, merge_adapters, share_frozen
from trimtab.models.nets.packing import Candidates, pack
from trimtab.models.nets.scoring import response_logprobs, response_scores
from trimtab.models.nets.training import prepare_training

CONFIG = LlamaConfig(
    vocab_size=20,
    hidden_size=16,
    intermediate_size=24,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    num_labels=1,
    pad_token_id=0,
    eos_token_id=1,
    bos_token_id=None,
    tie_word_embeddings=True,
    initializer_range=0.5,
)
LORA = LoraConfig(rank=3, alpha=6.0)
ROWS = [Candidates([5, 6, 7], ([8, 9, 1], [10, 1])), Candidates([5, 11], ([9, 1], [8, 8, 1]))]


def _scorer() -> LlamaForSequenceClassification:
    torch.manual_seed(0)
    return LlamaForSequenceClassification(CONFIG).eval()


def _disturb(model: torch.nn.Module) -> None:
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in trained_parameters(model):
            parameter.add_(torch.randn_like(parameter) * 0.1)


@pytest.mark.slow
def test_a_merged_weight_is_that_of_the_formula() -> None:
    model = _scorer()
    start = copy.deepcopy(model.state_dict())
    add_adapters(model, LORA, num_frozen=0, seed=0)
    torch.testing.assert_close(response_scores(model, pack(ROWS)), _scores_of(start))
    _disturb(model)
    learned = {name: value.clone() for name, value in trained_state(model).items()}
    scores = response_scores(model, pack(ROWS))
    merge_adapters(model)
    assert model.state_dict().keys() == start.keys()
    for name, value in model.state_dict().items():
        path = name.removesuffix(".weight")
        if f"{path}.lora_A.default.weight" in learned:
            product = (
                learned[f"{path}.lora_B.default.weight"] @ learned[f"{path}.lora_A.default.weight"]
            )
            torch.testing.assert_close(value, start[name] + 6.0 / 3 * product)
        elif name == "score.weight":
            assert not torch.equal(value, start[name])
        else:
            assert torch.equal(value, start[name]), name
    assert sum("lora_A" in name for name in learned) == 3 * 7
    torch.testing.assert_close(response_scores(model, pack(ROWS)), scores)


def _scores_of(state: dict[str, torch.Tensor]) -> torch.Tensor:
    model = _scorer()
    model.load_state_dict(state)
    return response_scores(model, pack(ROWS))


def test_upper_layers_alone_have_adapters_that_the_seed_draws() -> None:
    config = TrainerConfig(trainable_layers=1, lora=LORA)
    models = [_scorer() for _ in range(3)]
    for model, seed in zip(models, (0, 0, 1), strict=True):
        prepare_training(model, config, seed)
    one, same, other = map(trained_state, models)
    assert {name.split(".")[2] for name in one if "lora" in name} == {"2"}
    assert all(torch.equal(value, same[name]) for name, value in one.items())
    assert not all(torch.equal(value, other[name]) for name, value in one.items())


def test_nothing_but_adapters_and_a_scorer_s_head_learns() -> None:
    policy, scorer = LlamaForCausalLM(CONFIG), _scorer()
    for model in (policy, scorer):
        add_adapters(model, LORA, num_frozen=0, seed=0)
    rest = {name for name in trained_state(scorer) if "lora" not in name}
    assert rest == {"score.weight"}
    assert all("lora" in name for name in trained_state(policy))


@torch.no_grad()
def test_what_is_sampled_with_adapters_has_the_probabilities_of_a_full_pass() -> None:
    torch.manual_seed(0)
    policy = LlamaForCausalLM(CONFIG).eval()
    add_adapters(policy, LORA, num_frozen=0, seed=0)
    _disturb(policy)

    class Tokenizer:
        eos_token_id, pad_token_id = 1, 0

    prompts = [[5, 6, 7], [8]]
    samples = decode(policy, Tokenizer(), prompts, Sampling(0.9, 6), torch.rand(2, 6))
    rows = [Candidates(p, (r,)) for p, r in zip(prompts, samples.responses, strict=True)]
    logprobs, _, mask = response_logprobs(policy, pack(rows), 0.9)
    torch.testing.assert_close(samples.logprobs[:, : mask.shape[1]], logprobs)


def test_a_reference_shares_what_the_policy_does_not_train() -> None:
    torch.manual_seed(0)
    policy = LlamaForCausalLM(CONFIG).eval()
    reference = copy.deepcopy(policy)
    with torch.no_grad():
        reference.model.norm.weight.add_(1)
    expected = response_logprobs(reference, pack(ROWS))[0].detach()
    add_adapters(policy, LORA, num_frozen=0, seed=0)
    share_frozen(policy, reference)
    own = {parameter.data_ptr() for parameter in policy.parameters()}
    alone = [name for name, value in reference.named_parameters() if value.data_ptr() not in own]
    assert alone == ["model.norm.weight"]
    _disturb(policy)
    torch.testing.assert_close(response_logprobs(reference, pack(ROWS))[0], expected)


def test_maps_that_are_stored_transposed_have_adapters() -> None:
    """GPT-2's, whose weight W is (in, out): it becomes W + (alpha / rank) (B A)^T."""
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=20, n_embd=16, n_layer=2, n_head=2)).eval()
    start = copy.deepcopy(model.state_dict())
    add_adapters(model, LORA, num_frozen=1, seed=0)
    _disturb(model)
    expected = response_logprobs(model, pack(ROWS))[0].detach()
    layer = model.transformer.h[1].mlp.c_fc
    change = 2 * layer.lora_B["default"].weight @ layer.lora_A["default"].weight
    merge_adapters(model)
    torch.testing.assert_close(response_logprobs(model, pack(ROWS))[0], expected)
    name = "transformer.h.{}.mlp.c_fc.weight"
    found = model.state_dict()
    torch.testing.assert_close(found[name.format(1)], start[name.format(1)] + change.T)
    assert torch.equal(found[name.format(0)], start[name.format(0)])


def test_a_model_without_linear_maps_is_refused() -> None:
    model = LlamaForCausalLM(CONFIG)
    for layer in model.model.layers:
        layer.self_attn = layer.mlp = torch.nn.Identity()
    with pytest.raises(ValueError, match=r"LlamaForCausalLM has no linear maps in its layers"):
        add_adapters(model, LORA, num_frozen=0, seed=0)
