"""Packed rows in models of several architectures; what cannot be kept apart is refused."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention import flex_attention as flex_module
from torch.nn.attention.flex_attention import flex_attention
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoConfig, AutoModel, PreTrainedModel
from transformers.integrations import flex_attention as flex_forward

from trimtab.models.nets import attention, device, short_rows
from trimtab.models.nets.packing import Candidates, pack
from trimtab.models.nets.trunk import hidden_states

ROWS = [
    Candidates([5, 6, 7], ([8, 9, 1], [10, 1], [4, 4, 4, 4, 1])),
    Candidates([5, 11, 12, 13, 14, 6], ([9, 1],)),
    Candidates([7], ([1], [9, 10, 11, 12, 1])),
]
MIXED = ["sliding_attention", "full_attention"]
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
    "attn_implementation": "eager",
}


def _model(kind: str, **changes: object) -> PreTrainedModel:
    torch.manual_seed(0)
    return AutoModel.from_config(AutoConfig.for_model(kind, **{**SIZES, **changes})).double().eval()


# Models with windows, soft-capped scores and fewer rotated features. Rows have up to 8 tokens.
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "mistral": ("mistral", {}),
    "mistral with a window": ("mistral", {"sliding_window": 3}),
    "qwen2": ("qwen2", {}),
    "qwen2 with a window": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 1},
    ),
    "qwen3": ("qwen3", {}),
    "olmo2": ("olmo2", {}),
    "phi3": ("phi3", {}),
    "phimoe with a window": (
        "phimoe",
        {"sliding_window": 3, "num_local_experts": 2, "experts_implementation": "eager"},
    ),
    "gpt_neox": ("gpt_neox", {}),
    "gemma3": ("gemma3_text", {"sliding_window": 3, "layer_types": MIXED}),
    "gemma2": (
        "gemma2",
        {"sliding_window": 3, "attn_logit_softcapping": 0.5, "query_pre_attn_scalar": 1},
    ),
}


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

    Heads may share keys and values, as the kernel under it allows since torch 2.2.
    """
    behind, ahead = window_size
    assert ahead == 0
    assert query_ends.dtype == key_ends.dtype == torch.int32
    assert int(query_ends.diff().max()) == longest_query
    assert int(key_ends.diff().max()) == longest_key
    assert all(each.is_contiguous() for each in (query, key, value, query_ends, key_ends))
    found = []
    for number in range(len(query_ends) - 1):
        own = query[query_ends[number] : query_ends[number + 1]]
        keys, values = (
            each[key_ends[number] : key_ends[number + 1]]
            .transpose(0, 1)
            .repeat_interleave(query.shape[1] // key.shape[1], 0)
            for each in (key, value)
        )
        last = keys.shape[1] - len(own)  # the mask counts from the last key back
        mask = torch.ones(len(own), keys.shape[1]).tril(last)
        if behind >= 0:
            mask = mask.triu(last - behind)
        found.append(
            torch.nn.functional.scaled_dot_product_attention(
                own.transpose(0, 1), keys, values, attn_mask=mask.bool(), scale=scale
            ).transpose(0, 1)
        )
    return torch.cat(found)


def _newer_varlen_attn(*whole: Any, enable_gqa: bool = False, **options: Any) -> Tensor:
    """Of torch 2.13, which asks whether heads share keys and values."""
    query, key, *_ = whole
    assert enable_gqa == (query.shape[1] != key.shape[1])
    return _varlen_attn(*whole, **options)


def _uncompiled(*whole: Any, training: bool, **options: Any) -> Any:
    return flex_attention(*whole, **options)


def _take(kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let attention be taken as a CPU takes it, or as a GPU does."""
    if kernel.startswith("flash"):
        found = _varlen_attn if kernel == "flash" else _newer_varlen_attn
        monkeypatch.setattr(attention, "_has_flash", lambda _: True)
        monkeypatch.setattr(attention.varlen, "varlen_attn", found)
    if kernel == "flex":
        monkeypatch.setattr(attention, "_has_flex", lambda _: True)
        monkeypatch.setattr(flex_forward, "compile_friendly_flex_attention", _uncompiled)
        # A CPU's gradient is refused by this check only: it would not be compiled.
        monkeypatch.setattr(flex_module, "_validate_device", lambda *_: None)
    if kernel != "short":
        monkeypatch.setattr(short_rows, "MOST_TOKENS", 0)
    rows = attention._attend_rows

    def only_capped(*whole: Any) -> Tensor:
        """Flash attention takes all other scores, FlexAttention these too; products of short rows
        take no window either."""
        *_, window, softcap = whole
        has_rest = window is not None and kernel == "short"
        assert kernel == "rows" or has_rest or (kernel != "flex" and softcap is not None)
        return rows(*whole)

    monkeypatch.setattr(attention, "_attend_rows", only_capped)


@pytest.mark.parametrize(
    ("kernel", "name"),
    [
        *((kernel, name) for kernel in ("rows", "short", "flash") for name in MODELS),
        ("flash with shared heads", "qwen2 with a window"),
        *(("flex", name) for name in ("llama", "gemma2", "gemma3")),
    ],
)
def test_states_and_gradients_equal_those_of_separate_sequences(
    kernel: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _take(kernel, monkeypatch)
    model = _model(MODELS[name][0], **MODELS[name][1])
    packed = hidden_states(model, pack(ROWS))
    packed.square().sum().backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    assert len(gradients) > 10
    model.zero_grad()
    model.set_attn_implementation("eager")  # transformers' own; its softmax would be float32
    monkeypatch.setattr(torch.nn.functional, "softmax", lambda x, dim, dtype: x.softmax(dim))
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
    assert model.config._attn_implementation == "eager"
    torch.testing.assert_close(model(input_ids=ids).last_hidden_state, before, rtol=0, atol=0)


def _lengths(num_rows: int, num_responses: int) -> tuple[tuple[int, ...], ...]:
    drawn = random.Random(num_rows)
    return tuple(
        tuple(drawn.randint(1, 9) for _ in range(1 + drawn.randint(1, num_responses)))
        for _ in range(num_rows)
    )


class _Launches(TorchDispatchMode):
    """Names of the operations that compute, views apart."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not op.is_view and not op._schema.name.startswith("aten::empty"):
            self.names.append(op._schema.name.removeprefix("aten::"))
        return op(*args, **(kwargs or {}))


class _OneLaunch(torch.autograd.Function):
    """In the place of the kernel: one operation forward, three backward."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        ctx.save_for_backward(query, key, value)
        return query.neg()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, ...]:
        return tuple(each.neg() for each in ctx.saved_tensors)


@pytest.mark.parametrize("heads", [1, 2])
def test_gradients_of_repeated_keys_are_those_of_an_index(heads: int) -> None:
    for lengths in (_lengths(11, 5), _lengths(1, 1), _lengths(4, 2)):
        sequences = attention.sequences_of(lengths)
        total = sum(map(sum, lengths))
        generator = torch.Generator().manual_seed(0)
        parts = [
            torch.randn(total, heads, 3, generator=generator, dtype=torch.float64).requires_grad_()
            for _ in range(2)
        ]
        if sequences.key_index is None:
            assert all(len(row) == 2 for row in lengths)
            continue
        repeated = attention._RepeatedKeys.apply(*parts, sequences)
        expected = [part[sequences.key_index.long()] for part in parts]
        assert all(map(torch.equal, repeated, expected))
        weights = [torch.randn(each.shape, generator=generator).double() for each in expected]
        found, wanted = (
            torch.autograd.grad(
                sum((each * weight).sum() for each, weight in zip(of, weights, strict=True)), parts
            )
            for of in (repeated, expected)
        )
        for one, other in zip(found, wanted, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-14, atol=1e-14)


def test_launches_do_not_grow_with_rows_or_responses_and_nothing_is_sorted() -> None:
    counts = []
    for lengths in (_lengths(2, 3), _lengths(30, 3), _lengths(30, 9)):
        total = sum(map(sum, lengths))
        query = torch.randn(total, 4, 8, requires_grad=True)
        key, value = (torch.randn(total, 2, 8, requires_grad=True) for _ in range(2))
        sequences = attention.sequences_of(lengths)
        assert sequences.key_index is not None
        with _Launches() as launches:
            attended = attention.attend_sequences(
                query, key, value, sequences, None, lambda *parts, **_: _OneLaunch.apply(*parts[:3])
            )
            attended.backward(torch.ones_like(attended))
        counts.append(launches.names)
    assert counts[0] == counts[1] == counts[2]
    # Of the kernel four; of keys and values a gather each, and a sum of each gradient.
    assert sorted(counts[0]) == sorted(
        ["neg"] * 4 + ["index_select"] * 2 + ["_embedding_bag_forward_only"] * 2 + ["ones_like"]
    )


def test_indices_reach_the_device_in_one_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    copied: list[torch.Size] = []
    real = Tensor.to
    monkeypatch.setattr(
        Tensor, "to", lambda self, *rest, **named: copied.append(self.shape) or real(self, *rest)
    )
    monkeypatch.setattr(device, "_device", torch.device("meta"))
    found = device.move_to_device(attention.sequences_of.__wrapped__(_lengths(7, 4)))
    assert found.key_index is not None and found.key_index.is_meta
    assert len(copied) == 1


def test_a_block_mask_holds_every_token_that_is_seen() -> None:
    """Of 900 tokens in blocks of 128, against the mask written out."""
    lengths = tuple((40 + 7 * row, 30, 20 + row) for row in range(8))
    total = sum(map(sum, lengths))
    sees, start = torch.zeros(total, total, dtype=torch.bool), 0
    for prompt, *responses in lengths:
        place = start + prompt
        sees[start:place, start:place] = True
        for response in responses:
            sees[place : place + response, start : start + prompt] = True
            sees[place : place + response, place : place + response] = True
            place += response
        start = place
    sees &= torch.ones(total, total).tril().bool()
    mask = attention.block_mask(lengths, None, torch.device("cpu"))
    places = torch.arange(total)
    assert torch.equal(mask.mask_mod(0, 0, places[:, None], places[None]), sees)
    blocks = mask.to_dense()[0, 0].bool()
    padded = torch.nn.functional.pad(sees, (0, -total % 128, 0, -total % 128))
    needed = padded.unflatten(0, (-1, 128)).unflatten(2, (-1, 128)).any(3).any(1)
    assert (blocks | ~needed).all() and not blocks.triu(1).any() and not blocks.all()


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("gpt_oss", {"num_local_experts": 2}, "has attention sinks"),
        ("lfm2", {"layer_types": ["conv", "full_attention"]}, "layers of the types conv, in which"),
        ("llama4_text", {}, "layers of the types chunked_attention"),
        ("bert", {}, r"BertModel is not causal \(BertSelfAttention\)"),
        ("codegen", {"rotary_dim": 2}, "CodeGenModel does not use transformers' attention"),
    ],
)
def test_a_model_that_would_mix_packed_rows_is_refused_before_it_has_weights(
    kind: str, changes: dict[str, Any], message: str
) -> None:
    with torch.device("meta"):
        model = AutoModel.from_config(AutoConfig.for_model(kind, **{**SIZES, **changes}))
    with pytest.raises(ValueError, match=message):
        attention.check_packable(model)
    with pytest.raises(ValueError, match=message):
        hidden_states(model, pack(ROWS))
