"""Parameters and kept activations are those of the models that transformers builds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    PreTrainedConfig,
    PreTrainedModel,
)

from tests.models.estimates.conftest import kept_bytes
from trimtab.flows.config.recipes.synthetic import default, smoke
from trimtab.models.config.training import LoraConfig, ModelConfig, TrainerConfig
from trimtab.models.estimates.memory import kept_activations
from trimtab.models.estimates.shapes import (
    KNOWN_SHAPES,
    PlanError,
    UntrainableError,
    shape_from,
    shape_of,
)
from trimtab.models.estimates.work import trained_parameters as trained_parameters_of
from trimtab.models.nets import short_rows
from trimtab.models.nets.counted import counted, main
from trimtab.models.nets.freezing import freeze_lower_layers, layers_of, trained_parameters
from trimtab.models.nets.fused import fuse_layers
from trimtab.models.nets.loading import build_policy
from trimtab.models.nets.packing import Candidates, pack
from trimtab.models.nets.scoring import hidden_states
from trimtab.models.nets.training import prepare_training
from trimtab.models.stages.world import word_tokenizer

MISTRAL = "mistralai/Mistral-7B-v0.1"


def _count(model: PreTrainedModel) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(
    "config", [smoke().sft.model, default().sft.model], ids=["smoke", "default"]
)
def test_a_model_from_scratch_has_the_counted_parameters(config: ModelConfig) -> None:
    policy = build_policy(config, word_tokenizer())
    shape = shape_of(config)
    assert shape.policy_parameters == _count(policy)
    assert shape.context == policy.config.max_position_embeddings
    for num_heads in (1, 2):
        policy.config.num_labels = num_heads
        scorer = AutoModelForSequenceClassification.from_config(policy.config)
        assert shape.scorer_parameters(num_heads) == _count(scorer)


def test_frozen_layers_have_the_counted_parameters() -> None:
    config = smoke().sft.model
    policy, shape = build_policy(config, word_tokenizer()), shape_of(config)
    freeze_lower_layers(policy, 1)
    frozen = shape.frozen_parameters(1)
    assert 0 < frozen < shape.policy_parameters
    assert shape.policy_parameters - frozen == sum(p.numel() for p in trained_parameters(policy))
    assert shape.frozen_parameters(None) == 0


@pytest.mark.slow
@pytest.mark.parametrize("num_layers", [None, 1])
def test_adapters_have_the_counted_parameters(num_layers: int | None) -> None:
    config = smoke().sft.model
    policy, shape = build_policy(config, word_tokenizer()), shape_of(config)
    trainer = TrainerConfig(trainable_layers=num_layers, lora=LoraConfig(rank=5))
    prepare_training(policy, trainer, seed=0)
    learning = sum(p.numel() for p in trained_parameters(policy))
    assert trained_parameters_of(shape, trainer, shape.policy_parameters) == learning
    scorer = trained_parameters_of(shape, trainer, shape.scorer_parameters(2))
    assert scorer == learning + 2 * shape.hidden_size


def test_mistral_7b_by_hand() -> None:
    # A layer: q, o 4096 x 4096 each; k, v 4096 x 1024 each; gate, up, down 4096 x 14336 each;
    # two norms of 4096: 33,554,432 + 8,388,608 + 176,160,768 + 8,192 = 218,112,000.
    # 32 of them, embedding and head 32,000 x 4,096 = 131,072,000 each, and the last norm 4,096:
    # 6,979,584,000 + 262,144,000 + 4,096 = 7,241,732,096.
    shape = KNOWN_SHAPES[MISTRAL]
    assert shape.layer_parameters == 218_112_000
    assert shape.policy_parameters == 7_241_732_096


def test_smollm2_by_hand() -> None:
    # A layer: q, o 576 x 576 each; k, v 576 x 192 each; gate, up, down 576 x 1536 each; two norms:
    # 663,552 + 221,184 + 2,654,208 + 1,152 = 3,540,096. 30 of them, the tied embedding
    # 49,152 x 576 = 28,311,552 and the last norm 576: 134,515,008.
    assert KNOWN_SHAPES["smollm2-135m-instruct"].policy_parameters == 134_515_008


def test_qwen2_5_by_hand() -> None:
    # A layer: q, o 896 x 896 each, k, v 896 x 128 each, their biases 896 + 2 x 128; gate, up, down
    # 896 x 4864 each; two norms: 1,605,632 + 229,376 + 1,152 + 13,074,432 + 1,792 = 14,912,384.
    # 24 of them, the tied embedding 151,936 x 896 = 136,134,656 and the last norm: 494,032,768.
    assert KNOWN_SHAPES["Qwen/Qwen2.5-0.5B"].policy_parameters == 494_032_768
    # The same of 1,536, 28, 8,960, and keys of 256: 46,797,824 a layer, 233,373,696, 1,536.
    assert KNOWN_SHAPES["Qwen/Qwen2.5-1.5B"].policy_parameters == 1_543_714_304


# By the name of a known shape: model_type, and what its `config.json` says.
PUBLISHED: dict[str, tuple[str, dict[str, Any]]] = {
    MISTRAL: ("mistral", {}),  # the defaults of MistralConfig, but for the context
    "Qwen/Qwen2.5-0.5B": (
        "qwen2",
        {
            "vocab_size": 151_936,
            "hidden_size": 896,
            "intermediate_size": 4864,
            "num_hidden_layers": 24,
            "num_attention_heads": 14,
            "num_key_value_heads": 2,
            "tie_word_embeddings": True,
        },
    ),
    "Qwen/Qwen2.5-1.5B": (
        "qwen2",
        {
            "vocab_size": 151_936,
            "hidden_size": 1536,
            "intermediate_size": 8960,
            "num_hidden_layers": 28,
            "num_attention_heads": 12,
            "num_key_value_heads": 2,
            "tie_word_embeddings": True,
        },
    ),
    "smollm2-135m-instruct": (
        "llama",
        {
            "vocab_size": 49_152,
            "hidden_size": 576,
            "intermediate_size": 1536,
            "num_hidden_layers": 30,
            "num_attention_heads": 9,
            "num_key_value_heads": 3,
            "tie_word_embeddings": True,
        },
    ),
}


@pytest.mark.slow
def test_sums_are_what_the_meta_device_says(tmp_path: Path) -> None:
    """Parameters, maps and what autograd keeps, wide and narrow, of every shape that is known."""
    assert PUBLISHED.keys() == KNOWN_SHAPES.keys()
    for name, (kind, values) in PUBLISHED.items():
        shape = KNOWN_SHAPES[name]
        config = AutoConfig.for_model(kind, **values, max_position_embeddings=shape.context)
        config.save_pretrained(tmp_path)
        found = counted(tmp_path / "config.json")
        assert found["untrainable"] is None
        assert shape_from(found["shape"]) == shape, name


@pytest.mark.slow
def test_a_folder_s_config_is_read_in_a_process_of_its_own(tmp_path: Path) -> None:
    policy = build_policy(smoke().sft.model, word_tokenizer())
    policy.config.save_pretrained(tmp_path)
    assert shape_of(ModelConfig(base=str(tmp_path))) == shape_of(smoke().sft.model)


SIZES = {"vocab_size": 24, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3}
SIZES |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
ARCHITECTURES: list[tuple[str, dict[str, Any]]] = [
    ("llama", {}),
    ("llama", {"attention_bias": True, "mlp_bias": True}),
    ("mistral", {"head_dim": 10}),
    ("mixtral", {"num_local_experts": 4}),
    ("qwen2", {"tie_word_embeddings": True}),
    ("qwen3", {"head_dim": 10}),
    ("qwen3_moe", {"moe_intermediate_size": 16, "num_experts": 8, "num_experts_per_tok": 3}),
    ("gemma2", {"attn_logit_softcapping": None}),  # capped scores are kept, on a CPU alone
    ("gemma3_text", {}),
    ("olmo2", {}),
    ("phi", {}),
    ("phi3", {}),
    ("gpt_neox", {}),
    ("gpt2", {}),
    ("opt", {"word_embed_proj_dim": 32}),
    ("starcoder2", {}),
]


def _config(kind: str, changes: dict[str, Any], folder: Path) -> PreTrainedConfig:
    names = set(AutoConfig.for_model(kind).to_dict()) | {"head_dim", "num_hidden_layers"}
    sizes = {name: value for name, value in SIZES.items() if name in names}
    config = AutoConfig.for_model(kind, **{**sizes, **SIZES, **TOKENS, **changes})
    config.save_pretrained(folder)
    return config


@pytest.mark.parametrize(("kind", "changes"), ARCHITECTURES)
def test_architectures_have_the_counted_parameters(
    kind: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    config = _config(kind, changes, tmp_path)
    model = AutoModelForCausalLM.from_config(config)
    shape = shape_from(counted(tmp_path / "config.json")["shape"])
    assert shape.policy_parameters == _count(model)
    assert shape.layer_parameters == _count(layers_of(model)[0])
    assert shape.vocab_size == model.get_input_embeddings().weight.shape[0]
    config.num_labels = 2
    scorer = AutoModelForSequenceClassification.from_config(config)
    assert shape.scorer_parameters(2) == _count(scorer)


@pytest.mark.parametrize(("kind", "changes"), ARCHITECTURES)
def test_kept_activations_are_those_of_a_real_pass(
    kind: str, changes: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a CPU, which has weights; short rows keep less. Experts add what depends on how tokens are
    shared out."""
    config = _config(kind, changes, tmp_path)
    model = AutoModelForCausalLM.from_config(config).eval()
    fuse_layers(model)
    found = counted(tmp_path / "config.json")
    assert found["untrainable"] is None
    planned = kept_activations(shape_from(found["shape"]), TrainerConfig(), 5 * 45)
    row = Candidates([1] * 15, ([2] * 30,))
    really = kept_bytes(model, lambda: hidden_states(model, pack([row] * 5)))
    assert really <= 1.01 * planned
    monkeypatch.setattr(short_rows, "MOST_TOKENS", 0)
    really = kept_bytes(model, lambda: hidden_states(model, pack([row] * 5)))
    assert really <= 1.01 * planned
    assert planned <= (1.3 if "expert" in str(changes) else 1.15) * really


def test_experts_count_as_often_as_a_token_is_sent_to_one(tmp_path: Path) -> None:
    _config("mixtral", {"num_local_experts": 4, "num_experts_per_tok": 1}, tmp_path)
    (layer, *_) = shape_from(counted(tmp_path / "config.json")["shape"]).layers
    # q, o 32 x 32 each; k, v 32 x 16 each; a router of 4; gate, up and down 32 x 48 of one expert.
    assert layer.active == 2 * 1024 + 2 * 512 + 4 * 32 + 3 * 32 * 48
    assert layer.parameters == layer.active + 3 * 3 * 32 * 48 + 2 * 32


def test_defaults_of_a_config_that_says_little(tmp_path: Path) -> None:
    values = {
        "model_type": "llama",
        "vocab_size": 10,
        "hidden_size": 8,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "max_position_embeddings": 32,
        "pad_token_id": 0,
    }
    (tmp_path / "config.json").write_text(json.dumps(values))
    shape = shape_from(counted(tmp_path / "config.json")["shape"])
    assert (shape.num_kv_heads, shape.head_dim, shape.is_tied) == (2, 4, False)


NO_SCORER = "of which transformers has no AutoModelForSequenceClassification"


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("t5", {}, "found model_type 't5', an encoder-decoder; allowed: a decoder"),
        ("bert", {}, "BertModel is not causal (BertSelfAttention)"),
        ("gemma3", {}, "'gemma3', a model of more than text"),
        ("llava", {}, "'llava', a model of more than text"),
        ("mamba", {"num_attention_heads": None}, "without attention heads (a state-space model)"),
        ("jamba", {}, "with layers of linear_attention, which mix responses of a packed row"),
        ("stablelm", {}, "StableLmModel does not use transformers' attention functions"),
        ("cohere2", {}, NO_SCORER),
        ("granite", {}, NO_SCORER),
        ("nemotron", {}, "hands no arguments of its own to attention functions"),
        ("bloom", {}, "BloomModel does not use transformers' attention functions"),
        (
            "qwen3_5_text",
            {"layer_types": 2 * ["linear_attention"] + ["full_attention"]},
            "with layers of linear_attention, which mix responses of a packed row",
        ),
        ("gpt_oss", {"num_local_experts": 2, "layer_types": None}, "has attention sinks"),
        (
            "llama",
            {"quantization_config": {"quant_method": "gptq", "bits": 4}},
            "found quantization_config in config.json",
        ),
        ("llama", {"num_hidden_layers": 0}, "without layers; allowed: at least one"),
        ("llama", {"num_attention_heads": 5}, "is not a multiple of the number of attention heads"),
        ("llama", {"hidden_size": "wide"}, "Field 'hidden_size' expected int"),
        ("chatglm", {"auto_map": {"AutoConfig": "x.Y"}}, "code of its own"),
        ("new_model", {}, "model type `new_model`"),
    ],
)
def test_models_that_cannot_be_trained_say_why(
    kind: str, changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind, **SIZES, **changes}))
    assert message in main(tmp_path / "config.json")["untrainable"]


@pytest.mark.parametrize(
    ("text", "message"), [("{", "is not a valid JSON file"), ("[1]", "Unrecognized model")]
)
def test_what_is_no_config(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "config.json").write_text(text)
    assert message in main(tmp_path / "config.json")["untrainable"]


@pytest.mark.slow
def test_a_model_that_only_runs_may_be_one_that_cannot_be_trained(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "granite", **SIZES}))
    model = ModelConfig(base=str(tmp_path))
    assert shape_of(model, is_trained=False).num_layers == 3
    with pytest.raises(UntrainableError, match=f"sft.model.base: .*{NO_SCORER}"):
        shape_of(model)


def test_an_unknown_hub_id_lists_what_is_known() -> None:
    with pytest.raises(PlanError, match=rf"'some/model'.*hf download some/model.*{MISTRAL}"):
        shape_of(ModelConfig(base="some/model"))


@pytest.mark.slow
def test_a_downloaded_model_of_the_hub_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "models--some--model/snapshots/0123"
    folder.mkdir(parents=True)
    (folder.parents[1] / "refs").mkdir()
    (folder.parents[1] / "refs/main").write_text("0123")
    _config("qwen3", {}, folder)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    assert shape_of(ModelConfig(base="some/model")).num_layers == 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "theirs", "auto_map": {"AutoConfig": "code.C"}}, "code of its own"),
        ({"attn_implementation": "someone/kernel"}, "a kernel of the hub, which is code"),
        ({"_attn_implementation": "someone/kernel"}, "a kernel of the hub, which is code"),
    ],
)
def test_what_brings_code_is_refused_and_not_run(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    config = {"model_type": "llama", "num_hidden_layers": 1, "hidden_size": 32}
    (tmp_path / "config.json").write_text(json.dumps(config | change))
    (tmp_path / "code.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    found = main(tmp_path / "config.json")
    assert found["shape"] is None
    assert message in found["untrainable"]
    assert not (tmp_path / "ran").exists()
