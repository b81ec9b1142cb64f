"""Heads of a reward model's further terms: whose they are, that they learn, and that they go."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from trimtab.models.config.training import LoraConfig, TrainerConfig
from trimtab.models.functional.contrastive import prototype_scores
from trimtab.models.nets.freezing import trained_state
from trimtab.models.nets.loading import auxiliary_heads, new_scorer
from trimtab.models.nets.packing import Candidates, pack
from trimtab.models.nets.scoring import response_logprobs
from trimtab.models.nets.training import prepare_training

ROWS = [Candidates([5, 6, 7], ([8, 9, 1], [10, 1])), Candidates([5, 11], ([9, 1], [8, 8, 1]))]


@pytest.fixture(params=[True, False], ids=["tied", "untied"])
def policy(request: pytest.FixtureRequest, tmp_path: Path) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=20,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        pad_token_id=0,
        tie_word_embeddings=request.param,
        initializer_range=0.5,
    )
    model = LlamaForCausalLM(config).eval()
    model.save_pretrained(tmp_path)
    return model


@pytest.fixture
def scorer(policy: LlamaForCausalLM, tmp_path: Path) -> PreTrainedModel:
    return new_scorer(tmp_path, 0).eval()


def test_the_language_head_is_the_policys(
    policy: LlamaForCausalLM, scorer: PreTrainedModel, tmp_path: Path
) -> None:
    names = scorer.state_dict().keys()
    with auxiliary_heads(scorer, tmp_path, None, 0):
        for ours, theirs in zip(
            response_logprobs(scorer, pack(ROWS)),
            response_logprobs(policy, pack(ROWS)),
            strict=True,
        ):
            assert torch.equal(ours, theirs)
        is_tied = scorer.lm_head.weight is scorer.get_input_embeddings().weight
        assert is_tied == policy.config.tie_word_embeddings
    assert scorer.state_dict().keys() == names


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "head_learns"),
    [({}, True), ({"trainable_layers": 1}, True), ({"lora": LoraConfig(rank=2)}, False)],
)
def test_the_language_head_learns_as_a_policys_and_prototypes_always(
    policy: LlamaForCausalLM,
    scorer: PreTrainedModel,
    tmp_path: Path,
    changes: dict[str, Any],
    head_learns: bool,
) -> None:
    with auxiliary_heads(scorer, tmp_path, 5, 0):
        prepare_training(scorer, TrainerConfig(**changes), 0)
        trained = trained_state(scorer)
    assert "prototypes.weight" in trained
    # A tied one is the embedding, and learns where that does.
    assert ("lm_head.weight" in trained) == (head_learns and not policy.config.tie_word_embeddings)
    assert ("model.embed_tokens.weight" in trained) == (changes == {})


def test_prototypes_are_drawn_from_the_seed(scorer: PreTrainedModel) -> None:
    features, drawn = torch.randn(3, 16), []
    for seed in (0, 0, 1):
        with auxiliary_heads(scorer, None, 5, seed):
            assert not hasattr(scorer, "lm_head")
            drawn.append(scorer.prototypes.weight.detach().clone())
            expected = prototype_scores(features, drawn[-1])
            torch.testing.assert_close(scorer.prototypes(features), expected)
    assert drawn[0].shape == (5, 16)
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


def test_heads_go_where_training_fails(scorer: PreTrainedModel, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), auxiliary_heads(scorer, tmp_path, 5, 0):
        raise KeyboardInterrupt
    assert not hasattr(scorer, "lm_head")
    assert not hasattr(scorer, "prototypes")
