"""A Llama's own pass of one token finds what the model's does, and both what a full pass finds."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    DynamicCache,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from trimtab.models.nets.decoding_steps import LlamaSteps, ModelSteps, begin_decoding

PROMPTS = [[5, 6], [7, 8, 9, 10], [4], [5, 6, 7]]
WIDTH = max(map(len, PROMPTS))
STEPS = 9
SCALED = {
    "rope_type": "llama3",
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8,
    "rope_theta": 10_000.0,
}


def _llama(**options: Any) -> LlamaForCausalLM:
    return _like_llama(LlamaConfig, LlamaForCausalLM, **options)


def _like_llama(settings: Any, kind: Any, **options: Any) -> Any:
    torch.manual_seed(0)
    config = settings(
        **{
            "vocab_size": 12,
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 64,
            "pad_token_id": 0,
            "bos_token_id": None,
            "eos_token_id": 1,
            "initializer_range": 0.5,
        }
        | options
    )
    model = kind(config).eval()
    with torch.no_grad():  # weights of norms and biases that differ from one and zero
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * 0.1)
    return model


def _gpt2() -> GPT2LMHeadModel:
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=12, n_embd=32, n_layer=2, n_head=4, n_positions=64, initializer_range=0.5
    )
    return GPT2LMHeadModel(config).eval()


def _padded() -> tuple[Tensor, Tensor, Tensor]:
    tokens = torch.tensor([[0] * (WIDTH - len(p)) + p for p in PROMPTS])
    mask = torch.tensor([[0] * (WIDTH - len(p)) + [1] * len(p) for p in PROMPTS])
    return tokens, mask, mask.cumsum(1).sub(1).clamp(min=0)


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(_llama(), id="grouped heads"),
        pytest.param(_llama(num_key_value_heads=4, tie_word_embeddings=True), id="own heads, tied"),
        pytest.param(_llama(attention_bias=True, mlp_bias=True), id="biases"),
        pytest.param(_llama(head_dim=16, rms_norm_eps=1e-2), id="wide heads"),
        pytest.param(_llama(rope_parameters=SCALED), id="scaled positions"),
        pytest.param(_like_llama(Qwen2Config, Qwen2ForCausalLM), id="qwen2"),
        pytest.param(
            _like_llama(MistralConfig, MistralForCausalLM, sliding_window=None, head_dim=8),
            id="mistral",
        ),
    ],
)
def test_every_step_equals_a_pass_over_all_tokens(model: PreTrainedModel) -> None:
    assert _check_steps(model) is LlamaSteps


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(_gpt2(), id="another architecture"),
        pytest.param(
            _like_llama(MistralConfig, MistralForCausalLM, sliding_window=3), id="a window"
        ),
    ],
)
def test_other_models_take_their_own_pass(model: PreTrainedModel) -> None:
    assert _check_steps(model) is ModelSteps


@torch.no_grad()
def _check_steps(model: PreTrainedModel) -> type:
    """Rows of unequal length, some of which go on twice and some not at all."""
    tokens, mask, position = _padded()
    logits, steps = begin_decoding(model, tokens, mask, position, STEPS)
    texts, place = [list(prompt) for prompt in PROMPTS], position[:, -1]
    generator = torch.Generator().manual_seed(0)
    for number in range(STEPS):
        expected = [model(torch.tensor([text])).logits[0, -1] for text in texts]
        torch.testing.assert_close(logits, torch.stack(expected), rtol=1e-4, atol=1e-4)
        if number in (2, 5):
            index = torch.tensor([3, 0, 0, 1]) if number == 2 else torch.tensor([2, 1])
            steps.select(index)
            texts, place = [list(texts[row]) for row in index], place[index]
        chosen = torch.randint(2, 12, (len(texts),), generator=generator)
        texts = [[*text, token] for text, token in zip(texts, chosen.tolist(), strict=True)]
        place = place + 1
        logits = steps.step(chosen, place)
    return type(steps)


@pytest.mark.narrow
@torch.no_grad()
def test_in_half_precision_it_is_as_close_as_the_models_own_pass() -> None:
    model = _llama()
    tokens, mask, position = _padded()
    chosen = torch.randint(2, 12, (STEPS, len(PROMPTS)), generator=torch.Generator().manual_seed(0))

    def logits(dtype: torch.dtype, kind: type[LlamaSteps] | type[ModelSteps]) -> Tensor:
        model.to(dtype)
        cache = DynamicCache(config=model.config)
        general = ModelSteps(model, cache, mask[:, :0])
        general.run(tokens, mask, position)
        steps = LlamaSteps(model, cache, mask, STEPS) if kind is LlamaSteps else general
        places = position[:, -1] + torch.arange(1, STEPS + 1)[:, None]
        return torch.stack([steps.step(c, p) for c, p in zip(chosen, places, strict=True)]).float()

    exact = logits(torch.float32, ModelSteps)
    far = (logits(torch.bfloat16, ModelSteps) - exact).abs().mean()
    assert (logits(torch.bfloat16, LlamaSteps) - exact).abs().mean() < 1.5 * far
