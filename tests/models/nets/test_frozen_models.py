"""Models that are not trained, stored narrow on a GPU: less memory, and the very same numbers."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from tests.models.pretend_gpu import run_on_pretended_gpu
from trimtab.models.config.training import LoraConfig, TrainerConfig
from trimtab.models.nets.freezing import layers_of
from trimtab.models.nets.generation import Samples, Sampling, decode
from trimtab.models.nets.loading import load_policy, load_scorer
from trimtab.models.nets.lora import merge_adapters, merged_weights, share_frozen
from trimtab.models.nets.packing import Candidates, pack
from trimtab.models.nets.precision import NarrowLinear, convert_to_bfloat16, set_product_precision
from trimtab.models.nets.scoring import response_logprobs, response_scores
from trimtab.models.nets.training import prepare_training
from trimtab.models.nets.trunk import tie_trunk, trunk_digest
from trimtab.models.training import sampling

pytestmark = pytest.mark.narrow

SIZES: dict[str, Any] = {
    "vocab_size": 30,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
    "eos_token_id": 1,
}
ROWS = [Candidates([3, 4, 5], ([6, 7, 8], [9, 10])), Candidates([11], ([12, 13], [14]))]
KINDS = {
    "llama": (LlamaForCausalLM, LlamaConfig(**SIZES, tie_word_embeddings=True)),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config(**SIZES)),  # with biases
    "scorer": (LlamaForSequenceClassification, LlamaConfig(**SIZES, num_labels=1)),
}
LORA = TrainerConfig(lora=LoraConfig(rank=2))


@pytest.fixture(scope="module", autouse=True)
def _adapters_are_loaded() -> None:
    """In two seconds: once, not in each process that is forked."""
    importlib.import_module("peft")


@pytest.fixture(params=KINDS)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return _saved(request.param, tmp_path)


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    return _saved("qwen2", tmp_path)


def _saved(name: str, folder: Path) -> Path:
    kind, config = KINDS[name]
    torch.manual_seed(0)
    model = kind(config)
    for parameter in model.parameters():  # biases too
        nn.init.normal_(parameter, std=0.2)
    model.save_pretrained(folder)
    return folder


def _load(folder: Path, is_frozen: bool) -> PreTrainedModel:
    load = (
        load_scorer
        if "SequenceClassification" in (folder / "config.json").read_text()
        else load_policy
    )
    return load(folder, is_frozen=is_frozen).eval()


def _answer(model: PreTrainedModel) -> Tensor:
    if hasattr(model, "score"):
        return response_scores(model, pack(ROWS))
    return response_logprobs(model, pack(ROWS))[0]


@torch.no_grad()
def _both(folder: Path) -> tuple[list[Tensor], list[int], int, list[set[torch.dtype]]]:
    """Answers, bytes and data types of the layers' maps, and the numbers in these maps."""
    set_product_precision("bfloat16")
    answers, sizes, numbers, types = [], [], 0, []
    for is_frozen in (False, True):
        model = _load(folder, is_frozen)
        answers.append(_answer(model).cpu())
        sizes.append(sum(p.numel() * p.element_size() for p in model.parameters()))
        maps = [m.weight for m in layers_of(model).modules() if isinstance(m, nn.Linear)]
        numbers = sum(weight.numel() for weight in maps)
        types.append({weight.dtype for weight in maps})
    return answers, sizes, numbers, types


def test_a_frozen_model_answers_to_the_bit_as_one_in_float32_does(folder: Path) -> None:
    (wide, narrow), (whole, less), numbers, types = run_on_pretended_gpu(_both, folder)
    assert types == [{torch.float32}, {torch.bfloat16}]
    assert whole - less == 2 * numbers
    assert torch.equal(wide, narrow)
    assert wide.dtype == torch.float32


@pytest.mark.parametrize("precision", ["bfloat16", "float32"])
def test_on_a_cpu_it_stays_in_float32(
    policy: Path, precision: Any, request: pytest.FixtureRequest
) -> None:
    if precision == "bfloat16":
        request.getfixturevalue("narrow_products")
    for parameter in load_policy(policy, is_frozen=True).parameters():
        assert parameter.dtype == torch.float32


def _sampled(folder: Path) -> list[list[list[int]]]:
    set_product_precision("bfloat16")
    found = []
    for is_frozen in (False, True):
        draws = torch.rand(2, 6, generator=torch.Generator("cpu").manual_seed(0), device="cpu")
        tokenizer: Any = type("Tokens", (), {"pad_token_id": 0, "eos_token_id": 1})
        model = _load(folder, is_frozen)
        samples = decode(model, tokenizer, [[3, 4, 5], [7]], Sampling(1.0, 6), draws.to("pretend"))
        found.append(samples.responses)
        assert samples.logprobs.dtype == torch.float32
    return found


@pytest.mark.slow
def test_a_frozen_policy_samples(policy: Path) -> None:
    """Its logits, some 1 % off, turn none of these draws."""
    wide, narrow = run_on_pretended_gpu(_sampled, policy)
    assert wide == narrow


def _trained(folder: Path, is_narrow: bool) -> tuple[dict[str, Tensor], Tensor, set[torch.dtype]]:
    """Of a model with adapters: their gradients, its answers, data types of what is frozen."""
    set_product_precision("bfloat16")
    model = _load(folder, False)
    with pytest.MonkeyPatch.context() as patch:
        if not is_narrow:
            patch.setattr("trimtab.models.nets.precision.keeps_frozen_in_bfloat16", lambda: False)
        prepare_training(model, LORA, seed=0)
    _fill_adapters(model)
    answer = _answer(model)
    answer.square().sum().backward()
    gradients = {n: p.grad.cpu() for n, p in model.named_parameters() if p.grad is not None}
    types = {p.dtype for n, p in model.named_parameters() if ".base_layer.weight" in n}
    return gradients, answer.detach().cpu(), types


def _fill_adapters(model: PreTrainedModel) -> None:
    """As if they had learned: B starts as 0."""
    generator = torch.Generator("cpu").manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".lora_B" in name:
                drawn = torch.randn(parameter.shape, generator=generator, device="cpu")
                parameter.copy_(0.1 * drawn)


def _trained_twice(folder: Path) -> list[tuple[dict[str, Tensor], Tensor, set[torch.dtype]]]:
    return [_trained(folder, is_narrow) for is_narrow in (False, True)]


@pytest.mark.slow
def test_adapters_above_narrow_weights_learn_as_above_float32_ones(folder: Path) -> None:
    wide, narrow = run_on_pretended_gpu(_trained_twice, folder)
    assert (wide[2], narrow[2]) == ({torch.float32}, {torch.bfloat16})
    assert torch.equal(wide[1], narrow[1])
    assert wide[0].keys() == narrow[0].keys()
    for name, gradient in wide[0].items():
        assert torch.equal(gradient, narrow[0][name]), name


def _merged(folder: Path, output: Path) -> tuple[dict[str, Tensor], Tensor, Tensor]:
    """The weights with adapters added; answers of the merged model, and as it was saved."""
    set_product_precision("bfloat16")
    model = _load(folder, False)
    prepare_training(model, LORA, seed=0)
    _fill_adapters(model)
    expected = {name: value.cpu().clone() for name, value in merged_weights(model).items()}
    merge_adapters(model)
    model.save_pretrained(output)
    with torch.no_grad():
        return expected, _answer(model).cpu(), _answer(_load(output, False)).cpu()


@pytest.mark.slow
def test_merged_weights_are_sums_in_float32(folder: Path, tmp_path: Path) -> None:
    expected, answer, of_saved = run_on_pretended_gpu(_merged, folder, tmp_path / "merged")
    base = load_file(folder / "model.safetensors")
    saved = load_file(tmp_path / "merged/model.safetensors")
    assert saved.keys() == base.keys()
    for name, value in saved.items():
        assert value.dtype == torch.float32
        assert torch.equal(value, expected[name]), name
        if "_proj.weight" in name:  # no rounding to eight bits
            assert not torch.equal(value, value.bfloat16().float()), name
        elif name != "score.weight":
            assert torch.equal(value, base[name]), name
    assert torch.equal(answer, of_saved)


def _shared(folder: Path) -> tuple[int, list[bool], Tensor, Tensor]:
    """Layers in common of a float32 policy and a narrow reference; adapters' base in common."""
    set_product_precision("bfloat16")
    policy, reference = _load(folder, False), _load(folder, True)
    alone = _answer(reference).detach().cpu()
    count = tie_trunk(policy, reference, 2)
    adapted, other = _load(folder, False), _load(folder, True)
    prepare_training(adapted, LORA, seed=0)
    share_frozen(adapted, other)
    maps = [m for m in layers_of(adapted).modules() if isinstance(m, NarrowLinear)]
    theirs = [m for m in layers_of(other).modules() if isinstance(m, NarrowLinear)]
    same = [a.weight.data_ptr() == b.weight.data_ptr() for a, b in zip(maps, theirs, strict=True)]
    return count, same, alone, _answer(reference).detach().cpu()


@pytest.mark.slow
def test_what_policy_and_narrow_reference_have_in_common_is_held_once(policy: Path) -> None:
    count, same, alone, tied = run_on_pretended_gpu(_shared, policy)
    assert count == 2
    assert same and all(same)
    assert torch.equal(alone, tied)


def test_a_digest_is_of_the_weights_that_are_saved(policy: Path) -> None:
    """What reads stored states has the trained model, whose frozen layers stay float32."""
    model = load_policy(policy)
    assert trunk_digest(model, 2) == run_on_pretended_gpu(_digest_of_trained, policy)


def _digest_of_trained(folder: Path) -> str:
    set_product_precision("bfloat16")
    model = _load(folder, False)
    prepare_training(model, TrainerConfig(trainable_layers=1), seed=0)
    return trunk_digest(model, 2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_outside_of_a_trunk_s_pass_a_map_hands_on_what_it_is_given(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    monkeypatch.setattr("trimtab.models.nets.precision.keeps_frozen_in_bfloat16", lambda: True)
    layer = nn.Linear(8, 4)
    weight, given = layer.weight.detach().bfloat16(), torch.randn(3, 8).to(dtype)
    convert_to_bfloat16(layer)
    found = layer(given)
    assert found.dtype == dtype
    expected = nn.functional.linear(given.bfloat16(), weight, layer.bias.bfloat16())
    assert torch.equal(found, expected.to(dtype))


def _sampled_in_training(folder: Path) -> tuple[list[Any], list[set[torch.dtype]], bool]:
    """Of a policy in training and a frozen one: responses; data types while sampling; pointers."""
    set_product_precision("bfloat16")
    policy, frozen = _load(folder, False), _load(folder, True)
    maps = [part for part in layers_of(policy).modules() if isinstance(part, nn.Linear)]
    places, seen, plain = [part.weight.data_ptr() for part in maps], [], sampling.decode

    def watched(model: PreTrainedModel, *arguments: Any) -> Samples:
        seen.append(
            {p.weight.dtype for p in layers_of(model).modules() if isinstance(p, nn.Linear)}
        )
        return plain(model, *arguments)

    sampling.decode = watched
    tokenizer: Any = SimpleNamespace(pad_token_id=0, eos_token_id=1)
    found = [
        sampling.sample(
            model, tokenizer, [[3, 4], [5]], Sampling(1.0, 4), torch.Generator().manual_seed(0)
        ).responses
        for model in (policy, frozen)
    ]
    kept = [part.weight.data_ptr() for part in maps] == places
    return found, seen, kept and {part.weight.dtype for part in maps} == {torch.float32}


def test_a_policy_in_training_samples_from_narrow_copies(policy: Path) -> None:
    (ours, frozen), seen, is_restored = run_on_pretended_gpu(_sampled_in_training, policy)
    assert ours == frozen
    assert set().union(*seen) == {torch.bfloat16}
    assert is_restored
