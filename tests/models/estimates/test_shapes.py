"""Parameters counted by arithmetic equal those of the models that transformers builds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    MistralConfig,
    PreTrainedModel,
)

from trimtab.flows.recipes.synthetic import default, smoke
from trimtab.models.config.training import LoraConfig, ModelConfig, TrainerConfig
from trimtab.models.estimates.shapes import KNOWN_SHAPES, PlanError, shape_of
from trimtab.models.estimates.work import trained_parameters as trained_parameters_of
from trimtab.models.nets.freezing import freeze_lower_layers, trained_parameters
from trimtab.models.nets.loading import build_policy
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


def test_mistral_7b_by_hand_and_by_transformers() -> None:
    # A layer: q, o 4096 x 4096 each; k, v 4096 x 1024 each; gate, up, down 4096 x 14336 each;
    # two norms of 4096: 33,554,432 + 8,388,608 + 176,160,768 + 8,192 = 218,112,000.
    # 32 of them, embedding and head 32,000 x 4,096 = 131,072,000 each, and the last norm 4,096:
    # 6,979,584,000 + 262,144,000 + 4,096 = 7,241,732,096.
    shape = KNOWN_SHAPES[MISTRAL]
    assert shape.layer_parameters == 218_112_000
    assert shape.policy_parameters == 7_241_732_096
    with torch.device("meta"):
        # The defaults of MistralConfig are the dimensions of Mistral-7B-v0.1.
        assert shape.policy_parameters == _count(AutoModelForCausalLM.from_config(MistralConfig()))


def test_smollm2_by_hand() -> None:
    # A layer: q, o 576 x 576 each; k, v 576 x 192 each; gate, up, down 576 x 1536 each; two norms:
    # 663,552 + 221,184 + 2,654,208 + 1,152 = 3,540,096. 30 of them, the tied embedding
    # 49,152 x 576 = 28,311,552 and the last norm 576: 134,515,008.
    assert KNOWN_SHAPES["smollm2-135m-instruct"].policy_parameters == 134_515_008


def test_a_folder_s_config_is_read(tmp_path: Path) -> None:
    policy = build_policy(smoke().sft.model, word_tokenizer())
    policy.config.save_pretrained(tmp_path)
    assert shape_of(ModelConfig(base=str(tmp_path))) == shape_of(smoke().sft.model)


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("llama", {}),
        ("llama", {"attention_bias": True, "mlp_bias": True}),
        ("mistral", {"head_dim": 10}),
        ("qwen2", {"tie_word_embeddings": True}),
        ("qwen3", {"head_dim": 10}),
        ("qwen3", {"attention_bias": True}),
    ],
)
def test_architectures_have_the_counted_parameters(
    kind: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    sizes = {"vocab_size": 24, "hidden_size": 16, "intermediate_size": 20, "num_hidden_layers": 3}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "pad_token_id": 0}
    config = AutoConfig.for_model(kind, **{**sizes, **heads, **changes})
    config.save_pretrained(tmp_path)
    model = AutoModelForCausalLM.from_config(config)
    shape = shape_of(ModelConfig(base=str(tmp_path)))
    assert shape.policy_parameters == _count(model)
    assert shape.layer_parameters == _count(model.model.layers[0])


def test_defaults_of_a_config_that_says_little(tmp_path: Path) -> None:
    values = {
        "model_type": "llama",
        "vocab_size": 10,
        "hidden_size": 8,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "max_position_embeddings": 32,
    }
    (tmp_path / "config.json").write_text(json.dumps(values))
    shape = shape_of(ModelConfig(base=str(tmp_path)))
    assert (shape.num_kv_heads, shape.head_dim, shape.is_tied) == (2, 4, False)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"model_type": "gpt2"}', "found model_type 'gpt2'; allowed for a plan: llama, mistral, "),
        ('{"model_type": "llama"}', "KeyError: 'num_attention_heads'"),
        ("{", "JSONDecodeError"),
    ],
)
def test_configs_that_cannot_be_counted(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(PlanError) as error:
        shape_of(ModelConfig(base=str(tmp_path)))
    assert message in str(error.value)


def test_an_unknown_hub_id_lists_what_is_known() -> None:
    with pytest.raises(PlanError, match=rf"'some/model'.*{MISTRAL}"):
        shape_of(ModelConfig(base="some/model"))
