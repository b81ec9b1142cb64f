"""Packed rows in models of several architectures; what cannot be kept apart is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModel, PreTrainedModel

from trimtab.models.nets import attention
from trimtab.models.nets.packing import Candidates, pack
from trimtab.models.nets.trunk import hidden_states

ROWS = [
    Candidates([5, 6, 7], ([8, 9, 1], [10, 1], [4, 4, 4, 4, 1])),
    Candidates([5, 11, 12, 13, 14, 6], ([9, 1],)),
    Candidates([7], ([1], [9, 10, 11, 12, 1])),
]
SIZES = {
    "vocab_size": 20,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 4,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "attn_implementation": "sdpa",
}


def _model(kind: str, **changes: object) -> PreTrainedModel:
    torch.manual_seed(0)
    return AutoModel.from_config(AutoConfig.for_model(kind, **{**SIZES, **changes})).double().eval()


def _varlen_attn(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    query_ends: Tensor,
    key_ends: Tensor,
    longest_query: int,
    longest_key: int,
    *,
    scale: float | None,
    window_size: tuple[int, int],
) -> Tensor:
    """What `torch.nn.attention.varlen.varlen_attn` computes on a GPU, by its description.

    Before torch 2.13: every query head has keys and values of its own.
    """
    assert window_size == (-1, 0) and query.shape[1] == key.shape[1] == value.shape[1]
    assert query_ends.dtype == key_ends.dtype == torch.int32
    assert int(query_ends.diff().max()) == longest_query
    assert int(key_ends.diff().max()) == longest_key
    found = []
    for number in range(len(query_ends) - 1):
        own = query[query_ends[number] : query_ends[number + 1]]
        keys, values = (
            each[key_ends[number] : key_ends[number + 1]].transpose(0, 1) for each in (key, value)
        )
        mask = torch.ones(len(own), keys.shape[1]).tril(keys.shape[1] - len(own)).bool()
        found.append(
            torch.nn.functional.scaled_dot_product_attention(
                own.transpose(0, 1), keys, values, attn_mask=mask, scale=scale
            ).transpose(0, 1)
        )
    return torch.cat(found)


def _newer_varlen_attn(*whole: Any, enable_gqa: bool = False, **options: Any) -> Tensor:
    """Of torch 2.13: heads may share keys and values."""
    query, key, value, *rest = whole
    assert enable_gqa == (query.shape[1] != key.shape[1])
    key, value = (
        each.repeat_interleave(query.shape[1] // key.shape[1], 1) for each in (key, value)
    )
    return _varlen_attn(query, key, value, *rest, **options)


@pytest.fixture(params=["calls a row", "one call", "one call with shared heads"])
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention as a CPU takes it, and as a GPU does."""
    if request.param == "calls a row":
        return
    found = _varlen_attn if request.param == "one call" else _newer_varlen_attn
    monkeypatch.setattr(attention, "_has_flash", lambda _: True)
    monkeypatch.setattr(attention.varlen, "varlen_attn", found)
    monkeypatch.setattr(attention, "_attend_rows", None)


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("kind", ["llama", "mistral", "qwen2", "qwen3", "olmo2", "gpt_neox"])
def test_states_and_gradients_equal_those_of_separate_sequences(kind: str) -> None:
    model = _model(kind)
    packed = hidden_states(model, pack(ROWS))
    packed.square().sum().backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    start, total = 0, torch.zeros((), dtype=torch.float64)
    for row in ROWS:
        prompt = len(row.prompt)
        for number, response in enumerate(row.responses):
            ids = torch.tensor([row.prompt + response])
            states = model(input_ids=ids, use_cache=False).last_hidden_state[0]
            own = states if number == 0 else states[prompt:]
            torch.testing.assert_close(packed[start : start + len(own)], own)
            start += len(own)
            total = total + own.square().sum()
    assert start == len(packed)
    total.backward()
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            # Norms compute in float32 whatever the model's type.
            torch.testing.assert_close(gradients[name], parameter.grad, rtol=1e-6, atol=1e-6)


def test_the_model_attends_as_before_once_the_pass_is_over() -> None:
    model = _model("llama")
    ids = torch.tensor([[5, 6, 7, 8]])
    before = model(input_ids=ids).last_hidden_state
    hidden_states(model, pack(ROWS))
    assert model.config._attn_implementation == "sdpa"
    torch.testing.assert_close(model(input_ids=ids).last_hidden_state, before, rtol=0, atol=0)


def test_a_window_shorter_than_a_row_is_refused() -> None:
    hidden_states(_model("mistral", sliding_window=8), pack(ROWS))
    with pytest.raises(ValueError, match="the last 7 tokens only, a row has 8"):
        hidden_states(_model("mistral", sliding_window=7), pack(ROWS))


def test_bent_scores_are_refused() -> None:
    with pytest.raises(ValueError, match="softcap"):
        hidden_states(_model("gemma2", attn_implementation="eager"), pack(ROWS))


def test_a_model_with_attention_of_its_own_is_refused() -> None:
    sizes = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 64, "vocab_size": 20}
    with pytest.raises(ValueError, match="CodeGenModel does not use transformers' attention"):
        hidden_states(
            AutoModel.from_config(AutoConfig.for_model("codegen", **sizes, rotary_dim=8)),
            pack(ROWS),
        )
