"""A last feed-forward part that passes few tokens changes nothing that is read of a pass."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import (
    GPT2Config,
    LlamaConfig,
    MixtralConfig,
    OPTConfig,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from trimtab.models.config.training import TrainerConfig
from trimtab.models.nets.feed_forward import feed_forward_at
from trimtab.models.nets.freezing import layers_of
from trimtab.models.nets.packing import Candidates, pack
from trimtab.models.nets.scoring import response_logprobs
from trimtab.models.nets.training import prepare_training
from trimtab.models.nets.trunk import hidden_states

ROWS = [
    Candidates([5, 6, 7], ([8, 9, 1], [10, 1])),
    Candidates([5, 11, 12, 13, 14, 6], ([9, 1], [8, 8, 8, 1])),
    Candidates([7], ([1], [9, 10, 11, 12, 1])),
]
SMALL: dict[str, Any] = {"vocab_size": 20, "hidden_size": 16, "pad_token_id": 0}
SIZES = {**SMALL, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
ROTARY = {**SIZES, "num_key_value_heads": 2}
EXPERTS = {"num_local_experts": 2, "num_experts_per_tok": 1}
OWN_NAMES = {"ffn_dim": 32, "word_embed_proj_dim": 16, "dropout": 0.0}
UNDROPPED = {"embd_pdrop": 0.0, "attn_pdrop": 0.0, "resid_pdrop": 0.0}
SELECTS = [
    LlamaConfig(**ROTARY),
    MixtralConfig(**ROTARY, **EXPERTS),
    GPT2Config(**SIZES, **UNDROPPED),
]
# Its matrices are the layer's own.
OTHER = OPTConfig(**SIZES, **OWN_NAMES)


def _policy(config: PreTrainedConfig) -> PreTrainedModel:
    torch.manual_seed(0)
    model: PreTrainedModel = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)](config).eval()
    return model


def _gradients(model: PreTrainedModel, loss: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def _num_passed(model: PreTrainedModel, places: Tensor | None) -> int:
    """The tokens whose states the last feed-forward part changes."""
    part, changed = layers_of(model)[-1].mlp, []
    handle = part.register_forward_hook(
        lambda _, __, output: changed.append(int(output[0].any(-1).sum()))
    )
    hidden_states(model, pack(ROWS), places)
    handle.remove()
    return changed[0]


@pytest.mark.parametrize("recomputes", [False, True])
@pytest.mark.parametrize("config", [*SELECTS, OTHER], ids=lambda config: config.model_type)
def test_states_and_gradients_equal_those_of_the_whole_pass(
    config: PreTrainedConfig, recomputes: bool
) -> None:
    model, batch = _policy(config), pack(ROWS)
    prepare_training(model, TrainerConfig(gradient_checkpointing=recomputes), 0)
    for places in (batch.ends, batch.sources):
        whole, short = (hidden_states(model, batch, some)[places] for some in (None, places))
        torch.testing.assert_close(short, whole, rtol=1e-5, atol=1e-6)
        expected, found = (_gradients(model, states.square().sum()) for states in (whole, short))
        assert expected.keys() == found.keys()
        for name, gradient in found.items():
            torch.testing.assert_close(gradient, expected[name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("config", SELECTS, ids=lambda config: config.model_type)
def test_no_other_token_is_passed(config: PreTrainedConfig) -> None:
    model, batch = _policy(config), pack(ROWS)
    prompts, ends = len(ROWS), sum(len(row.responses) for row in ROWS)
    assert _num_passed(model, batch.ends) == prompts + ends
    num_tokens = sum(row.num_tokens for row in ROWS)
    assert _num_passed(model, batch.sources) < num_tokens
    assert _num_passed(model, None) == num_tokens


def test_what_a_policy_reads_is_what_it_passes() -> None:
    """No state that is unfinished reaches a log-probability: with all of them it is the same."""
    model, batch = _policy(SELECTS[0]), pack(ROWS)
    source, ids, _, mask = batch.tokens
    logits = model.lm_head(hidden_states(model, batch)[source])
    expected = logits.log_softmax(-1).gather(1, ids[:, None])[:, 0]
    torch.testing.assert_close(response_logprobs(model, batch)[0][mask], expected)


class _WithResidual(nn.Module):
    def forward(self, states: Tensor, residual: Tensor) -> Tensor:
        return 2 * states + residual


def test_a_part_that_takes_the_residual_stream_too_passes_all() -> None:
    layer, states = nn.Module(), torch.ones(1, 5, 2)
    layer.mlp = _WithResidual()
    with feed_forward_at(layer, torch.tensor([1, 3])):
        assert torch.equal(layer.mlp(states, states), 3 * states)
