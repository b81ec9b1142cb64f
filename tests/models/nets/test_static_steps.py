"""Static steps, also replayed as graphs, draw what the loop draws; few launches, no waiting."""

from __future__ import annotations

import copy
import gc
import warnings
import weakref
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from tests.models import pretend_gpu
from tests.models.launches import Counted
from tests.models.nets.test_decoding_steps import SCALED, _gpt2, _like_llama, _llama
from tests.models.pretend_graphs import pretended_graphs
from trimtab.models.config.training import LoraConfig
from trimtab.models.nets import generation, static_steps
from trimtab.models.nets.device import current_device
from trimtab.models.nets.freezing import trained_parameters
from trimtab.models.nets.fused import fuse_layers
from trimtab.models.nets.generation import Samples, Sampling, decode
from trimtab.models.nets.lora import add_adapters
from trimtab.models.nets.packing import Candidates, pack
from trimtab.models.nets.precision import NarrowLinear
from trimtab.models.nets.scoring import response_logprobs
from trimtab.models.nets.static_steps import StaticSteps, has_static_steps

T = 24
PROMPTS = [[5, 6], [7, 8, 9, 10], [4], [5, 6, 7], [11, 2], [3, 3, 3, 3, 3]]
ROWS = [prompt for prompt in PROMPTS for _ in range(3)]
SAMPLINGS = {
    "random": Sampling(0.8, T),
    "greedy": Sampling(1e-4, T),
    "nucleus": Sampling(1.0, T, top_p=0.7),
    "penalty": Sampling(0.9, T, repetition_penalty=1.3),
    "both": Sampling(1.0, T, top_p=0.9, repetition_penalty=1.2),
}


class Tokenizer:
    """All that sampling asks of a tokenizer."""

    eos_token_id: int | None = 1
    pad_token_id = 0


def qwen2() -> Qwen2ForCausalLM:
    return _like_llama(Qwen2Config, Qwen2ForCausalLM)


def _neox() -> GPTNeoXForCausalLM:
    torch.manual_seed(0)
    options = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    options |= {"vocab_size": 12, "intermediate_size": 48, "eos_token_id": 1, "bos_token_id": None}
    return GPTNeoXForCausalLM(GPTNeoXConfig(**options, initializer_range=0.5)).eval()


def _gemma2() -> Gemma2ForCausalLM:
    """A window in every other layer, scores that are capped."""
    options = {
        "sliding_window": 4,
        "head_dim": 8,
        "query_pre_attn_scalar": 8,
        "tie_word_embeddings": False,
    }
    return _like_llama(Gemma2Config, Gemma2ForCausalLM, **options)


MODELS = {
    "grouped heads": _llama,
    "own heads, tied": lambda: _llama(num_key_value_heads=4, tie_word_embeddings=True),
    "scaled positions": lambda: _llama(rope_parameters=SCALED),
    "qwen2": qwen2,
    "qwen3": lambda: _like_llama(Qwen3Config, Qwen3ForCausalLM, head_dim=8),
    "a window": lambda: _like_llama(MistralConfig, MistralForCausalLM, sliding_window=3),
    "gpt2": _gpt2,
    "neox": _neox,
    "gemma2": _gemma2,
}


@pytest.fixture(autouse=True)
def many_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs of few slots, and of few rows as soon as others have finished."""
    monkeypatch.setattr(static_steps, "ALIGNMENT", 8)
    for name, number in {"STRETCH": 8, "LOOK_EVERY": 3, "FEW_ROWS": 2, "FEW_TOKENS": 2}.items():
        monkeypatch.setattr(generation, name, number)


def _decoded(
    model: Any, sampling: Sampling, mode: generation.Mode | None, tokenizer: Any = Tokenizer
) -> Samples:
    generator = torch.Generator().manual_seed(0)
    draws = torch.rand(len(ROWS), sampling.max_new_tokens, generator=generator)
    return decode(model, tokenizer, ROWS, sampling, draws.to(model.device), mode)


def _assert_same(mine: Samples, other: Samples) -> None:
    assert mine.responses == other.responses
    for name in ("logprobs", "entropies"):
        torch.testing.assert_close(
            getattr(mine, name), getattr(other, name), rtol=1e-4, atol=1e-4, msg=name
        )


@pytest.mark.parametrize("name", MODELS)
def test_static_steps_draw_what_the_loop_draws(name: str) -> None:
    model = MODELS[name]()
    lengths = set()
    for sampling in SAMPLINGS.values():
        loop = _decoded(model, sampling, "loop")
        lengths |= {len(response) for response in loop.responses}
        _assert_same(_decoded(model, sampling, "eager"), loop)
    assert len(lengths) > 3


def test_adapters_are_part_of_a_step() -> None:
    model = _llama()
    before = _decoded(model, SAMPLINGS["random"], "loop")
    add_adapters(model, LoraConfig(rank=2, alpha=6.0), num_frozen=0, seed=0)
    with torch.no_grad():
        for weight in trained_parameters(model):
            weight.add_(torch.randn_like(weight) * 0.1)
    loop = _decoded(model, SAMPLINGS["random"], "loop")
    assert loop.responses != before.responses
    with pretended_graphs():
        _assert_same(_decoded(model, SAMPLINGS["random"], "graphs"), loop)


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("name", ["grouped heads", "qwen3", "gemma2"])
def test_graphs_draw_what_the_loop_draws(name: str, sampling: str) -> None:
    """Nothing depends on numbers of the host that change, and nothing lies at another address."""
    model = MODELS[name]()
    loop = _decoded(model, SAMPLINGS[sampling], "loop")
    with pretended_graphs() as recordings, warnings.catch_warnings():
        warnings.simplefilter("error")
        graphs = _decoded(model, SAMPLINGS[sampling], "graphs")
    _assert_same(graphs, loop)
    assert len(recordings) >= 4 and sum(times["replays"] for _, times in recordings) >= 16


class Endless(Tokenizer):
    """No token ends a response."""

    eos_token_id = None


@pytest.mark.slow
@pytest.mark.parametrize(("name", "most"), [("random", 1 / 16), ("both", 1)])
def test_a_gpu_is_waited_for_once_a_token_at_most(name: str, most: float) -> None:
    """Where a nucleus is asked for; else once in so many. In a recorded step it never is.

    Of as many tokens again as were drawn before, all of which are what the loop draws on a CPU.
    """
    (_, few), (responses, many) = (
        pretend_gpu.run_on_pretended_gpu(_waits_on_a_gpu, name, length) for length in (16, 32)
    )
    sampling = replace(SAMPLINGS[name], max_new_tokens=32)
    assert responses == _decoded(qwen2(), sampling, "loop", Endless).responses
    assert many - few == 16 * most


def _waits_on_a_gpu(name: str, length: int) -> tuple[list[list[int]], int]:
    """Responses, and how often the host waits for the device."""
    model, sampling = qwen2().to(current_device()), replace(SAMPLINGS[name], max_new_tokens=length)
    with pretended_graphs(), Counted() as counted:
        responses = _decoded(model, sampling, None, Endless).responses
    return responses, sum(event.startswith("wait") for event in counted.events)


@pytest.mark.slow
def test_strict_determinism_takes_the_loop() -> None:
    expected = _decoded(qwen2(), SAMPLINGS["random"], "loop").responses
    assert pretend_gpu.run_on_pretended_gpu(_strictly_on_a_gpu) == expected


def _strictly_on_a_gpu() -> list[list[int]]:
    torch.use_deterministic_algorithms(True)
    generation.StaticSteps = None  # type: ignore[assignment, misc]
    return _decoded(qwen2().to(current_device()), SAMPLINGS["random"], None).responses


def test_a_token_takes_few_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a Qwen2 layer and of all else; the same for every token of a graph, as it is replayed."""
    monkeypatch.setattr(  # one kernel on a GPU, and six operations on a CPU
        static_steps.F, "rms_norm", lambda hidden, shape, weight, _: hidden.mul(weight)
    )
    counts = {}
    for layers in (1, 3):
        model = _like_llama(Qwen2Config, Qwen2ForCausalLM, num_hidden_layers=layers)
        fuse_layers(model)
        for name in ("random", "both"):
            with pretended_graphs() as recordings:
                _decoded(model, SAMPLINGS[name], "graphs")
            step = recordings[0][0].launches + recordings[1][0].launches
            counts[layers, name] = step.total()
    for name, most in (("random", 45), ("both", 62)):
        layer = (counts[3, name] - counts[1, name]) / 2
        assert layer <= 26
        assert counts[1, name] - layer <= most, counts


@pytest.mark.parametrize("place", ["in the pass", "behind it"])
def test_without_graphs_where_a_step_waits(monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    """One line in the log says so, and the same tokens are drawn."""
    model = _llama()
    loop = _decoded(model, SAMPLINGS["both"], "loop")
    if place == "in the pass":
        model.model.norm.register_forward_hook(lambda norm, *_: bool(norm.weight.sum()) and None)
    else:
        likely = generation._most_likely
        monkeypatch.setattr(
            generation, "_most_likely", lambda values: likely(values * float(values.sum() > 0))
        )
    with pretended_graphs() as recordings, pytest.warns(UserWarning, match="CUDA") as said:
        graphs = _decoded(model, SAMPLINGS["both"], "graphs")
    _assert_same(graphs, loop)
    assert not recordings
    assert len(said) == 1


def test_without_graphs_where_one_cannot_be_recorded() -> None:
    model = _llama()
    loop = _decoded(model, SAMPLINGS["nucleus"], "loop")
    recorded = []

    def record(function: Any, pool: Any) -> Any:
        recorded.append(function)
        raise RuntimeError("operation not permitted when stream is capturing")

    with pretended_graphs(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(static_steps, "record", record)
        with pytest.warns(UserWarning, match="not permitted") as said:
            graphs = _decoded(model, SAMPLINGS["nucleus"], "graphs")
    _assert_same(graphs, loop)
    assert len(recorded) == len(said) == 1


def test_a_recording_that_fails_leaves_the_stream_as_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """torch's context ends before it goes back to it where the end of a recording raises."""
    streams = ["default"]

    class Recording:
        def __init__(self, *_: Any, **__: Any) -> None:
            pass

        def __enter__(self) -> None:
            streams.append("side")

        def __exit__(self, *_: object) -> None:
            raise RuntimeError("operation failed due to a previous error during capture")

    monkeypatch.setattr(torch.cuda, "CUDAGraph", object)
    monkeypatch.setattr(torch.cuda, "graph", Recording)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: streams[-1])
    monkeypatch.setattr(torch.cuda, "set_stream", streams.append)
    with pytest.raises(RuntimeError, match="previous error"):
        static_steps.record(lambda: None, None)
    assert streams == ["default", "side", "default"]


def test_what_a_step_uses_is_free_as_soon_as_all_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """No cycle of references holds keys and values until Python looks for one."""
    model, kept = _llama(), []
    kinds = [type(module) for module in model.modules()]
    made = StaticSteps.__init__

    def noted(self: Any, *arguments: Any) -> None:
        made(self, *arguments)
        kept.extend([weakref.ref(self), *(weakref.ref(layer.keys) for layer in self.layers)])

    monkeypatch.setattr(StaticSteps, "__init__", noted)
    gc.disable()
    try:
        _decoded(model, SAMPLINGS["both"], "eager")
    finally:
        gc.enable()
    assert len(kept) == 4 and not any(reference() is not None for reference in kept)
    assert [type(module) for module in model.modules()] == kinds


@pytest.mark.narrow
def test_in_half_precision_probabilities_are_float32() -> None:
    """Tokens drawn are noted as likely as a pass in double precision finds them, up to bfloat16."""
    model = _llama().bfloat16()
    samples = _decoded(model, SAMPLINGS["random"], "eager")
    assert samples.logprobs.dtype == samples.entropies.dtype == torch.float32
    assert _error(samples, _llama().double()) < 0.1


@pytest.mark.narrow
def test_a_model_that_is_stored_narrow_takes_few_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    """And is about as close to exact products as the loop, which widens what each has computed."""
    monkeypatch.setattr(static_steps, "attention_dtype", lambda _: torch.bfloat16)
    counts = {}
    for layers in (1, 3):
        model = _like_llama(Qwen2Config, Qwen2ForCausalLM, num_hidden_layers=layers)
        maps = [part for part in model.model.layers.modules() if isinstance(part, nn.Linear)]
        for part in maps:
            part.weight.data = part.weight.data.bfloat16()
        exact = copy.deepcopy(model).double()
        for part in maps:
            part.__class__ = NarrowLinear
        loop = _decoded(model, SAMPLINGS["random"], "loop")
        with pretended_graphs() as recordings:
            graphs = _decoded(model, SAMPLINGS["random"], "graphs")
        assert _error(graphs, exact) < 2 * _error(loop, exact)
        counts[layers] = recordings[0][0].launches.total()
        assert {type(part) for part in maps} == {NarrowLinear}
    # The two norms of a layer are ten operations more on a CPU than on a GPU.
    assert (counts[3] - counts[1]) / 2 <= 38 + 10


@torch.no_grad()
def _error(samples: Samples, exact: Any) -> float:
    """Mean error of the log-probability of a token, nats."""
    rows = [Candidates(p, (r,)) for p, r in zip(ROWS, samples.responses, strict=True)]
    found = response_logprobs(exact, pack(rows), 0.8)[0]
    return float((samples.logprobs[:, : found.shape[1]] - found).abs().mean())


@pytest.mark.narrow
def test_keys_and_values_are_as_narrow_as_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a model with float32 weights; where attention is not `_attend`'s, as wide as they."""
    monkeypatch.setattr(static_steps, "attention_dtype", lambda _: torch.bfloat16)
    for name, dtype in (("qwen3", torch.bfloat16), ("gemma2", torch.float32)):
        model = MODELS[name]()
        steps = StaticSteps(model, PROMPTS, [1] * len(PROMPTS), 0, room=T)
        assert {layer.keys.dtype for layer in steps.layers} == {dtype}
        samples = _decoded(model, SAMPLINGS["random"], "eager")
        loop = _decoded(model, SAMPLINGS["random"], "loop")
        first = (samples.logprobs - loop.logprobs)[:, :2].abs().max()
        assert (first < 1e-3) if dtype == torch.float32 else (1e-4 < first < 0.1)


def test_models_whose_layers_do_not_all_attend_by_a_mask_take_the_loop() -> None:
    assert all(has_static_steps(make()) for make in MODELS.values())
    positions_in_masks = BloomConfig(vocab_size=12, hidden_size=16, n_layer=1, n_head=2)
    assert not has_static_steps(BloomForCausalLM(positions_in_masks))
    assert not has_static_steps(
        _llama(layer_types=["full_attention", "linear_attention", "full_attention"])
    )
