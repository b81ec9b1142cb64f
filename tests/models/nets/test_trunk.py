"""Running the lower layers once changes no score, log-probability, value or gradient."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from transformers import (
    GPT2Config,
    GPT2ForSequenceClassification,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForSequenceClassification,
)

from trimtab.models.nets.freezing import freeze_lower_layers, layers_of
from trimtab.models.nets.packing import Candidates, PackedBatch, TrunkActivations, pack
from trimtab.models.nets.scoring import response_logprobs, response_scores, response_values
from trimtab.models.nets.trunk import (
    hidden_states,
    tie_trunk,
    trunk_digest,
    trunk_output,
)

PAD, DEPTH = 0, 2
ROWS = [
    Candidates([5, 6, 7], ([8, 9, 1], [10, 1])),
    Candidates([5, 11, 12, 13, 14, 6], ([9, 1], [8, 8, 8, 1])),
    Candidates([7], ([1], [9, 10, 11, 12, 1])),
]
SIZES = {
    "vocab_size": 20,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": PAD,
    "num_labels": 2,
}


def _scorer(seed: int = 0) -> PreTrainedModel:
    torch.manual_seed(seed)
    return LlamaForSequenceClassification(LlamaConfig(**SIZES)).double()


def _qwen() -> PreTrainedModel:
    torch.manual_seed(0)
    return Qwen2ForSequenceClassification(Qwen2Config(**SIZES)).double()


def _gpt2() -> PreTrainedModel:
    """Adds positions to the embeddings it is given: these must not be added to states."""
    torch.manual_seed(0)
    sizes = {"n_embd": 16, "n_layer": 3, "n_head": 2, "n_positions": 64, "vocab_size": 20}
    drops = {"embd_pdrop": 0.0, "attn_pdrop": 0.0, "resid_pdrop": 0.0}
    config = GPT2Config(**sizes, **drops, pad_token_id=PAD, num_labels=2)
    return GPT2ForSequenceClassification(config).double()


def _with_states(model: PreTrainedModel, rows: Sequence[Candidates], depth: int) -> PackedBatch:
    """Rows that carry their own states, each computed alone."""
    owner = layers_of(model)[depth - 1]
    return pack(
        [
            replace(
                row,
                lower=TrunkActivations(trunk_output(model, pack([row]), depth), owner, depth),
            )
            for row in rows
        ]
    )


def _gradients(model: PreTrainedModel, output: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    output.square().sum().backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("build", [_scorer, _qwen, _gpt2])
@pytest.mark.parametrize("depth", [1, 2])
def test_scores_and_gradients_equal_those_of_the_whole_pass(
    build: Callable[[], PreTrainedModel], depth: int
) -> None:
    model = build()
    freeze_lower_layers(model, 3 - depth)
    whole, short = (
        response_scores(model, pack(ROWS)),
        response_scores(model, _with_states(model, ROWS, depth)),
    )
    torch.testing.assert_close(short, whole)
    expected, found = _gradients(model, whole), _gradients(model, short)
    assert expected.keys() == found.keys()
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, expected[name])


def test_likelihoods_and_values_equal_those_of_the_whole_pass() -> None:
    torch.manual_seed(0)
    policy, critic = LlamaForCausalLM(LlamaConfig(**SIZES)).double(), _scorer(1)
    for index in range(DEPTH):
        layers_of(critic)[index].load_state_dict(layers_of(policy)[index].state_dict())
    critic.model.embed_tokens.load_state_dict(policy.model.embed_tokens.state_dict())
    assert tie_trunk(policy, critic, 3) == DEPTH
    for model in (policy, critic):
        freeze_lower_layers(model, 3 - DEPTH)
    whole, short = pack(ROWS), _with_states(policy, ROWS, DEPTH)
    for ours, theirs in (
        (response_logprobs(policy, short), response_logprobs(policy, whole)),
        (response_values(critic, short), response_values(critic, whole)),
    ):
        for mine, other in zip(ours, theirs, strict=True):
            torch.testing.assert_close(mine, other)


def test_a_model_with_other_lower_layers_does_not_use_the_states() -> None:
    model, other = _scorer(0), _scorer(1)
    batch = _with_states(model, ROWS, DEPTH)
    with torch.no_grad():
        torch.testing.assert_close(
            response_scores(other, batch), response_scores(other, pack(ROWS)), rtol=0, atol=0
        )


def test_states_of_layers_that_would_be_trained_are_refused() -> None:
    model = _scorer()
    freeze_lower_layers(model, 2)
    batch = _with_states(model, ROWS, DEPTH)
    with pytest.raises(ValueError, match="not all of them are frozen"):
        hidden_states(model, batch)
    with torch.no_grad():
        hidden_states(model, batch)


def test_the_model_is_whole_again_after_a_failing_pass() -> None:
    model = _scorer()
    batch = _with_states(model, ROWS, DEPTH)
    broken = replace(batch, lengths=((1, 1),))
    with torch.no_grad(), pytest.raises(RuntimeError):
        hidden_states(model, broken)
    assert len(layers_of(model)) == 3
    assert not layers_of(model)[DEPTH]._forward_pre_hooks
    assert [name for name, _ in model.model.named_children()][1] == "layers"


def test_only_equal_leading_layers_are_tied() -> None:
    model, other = _scorer(), _scorer()
    with torch.no_grad():
        layers_of(other)[1].mlp.up_proj.weight[0, 0] += 1
    assert tie_trunk(model, other, 3) == 1
    assert layers_of(other)[0] is layers_of(model)[0]
    assert layers_of(other)[1] is not layers_of(model)[1]
    assert layers_of(other)[2] is not layers_of(model)[2]
    assert tie_trunk(model, _scorer(), 2) == 2
    assert tie_trunk(model, _scorer(), 0) == 0
    assert tie_trunk(model, _scorer(1), 3) == 0


def test_the_digest_covers_embeddings_and_lower_layers_alone() -> None:
    def digest(name: str | None) -> str:
        model = _scorer()
        if name is not None:
            with torch.no_grad():
                model.get_parameter(name).view(-1)[3] += 1e-7
        return trunk_digest(model, DEPTH)

    assert digest(None) == digest("model.layers.2.mlp.up_proj.weight") == digest("score.weight")
    changed = ["model.embed_tokens.weight", "model.layers.1.input_layernorm.weight"]
    assert len({digest(None), *map(digest, changed)}) == 3


def test_a_swapped_pair_takes_its_states_along() -> None:
    model = _scorer().eval()
    owner = layers_of(model)[DEPTH - 1]
    for row in ROWS:
        values = trunk_output(model, pack([row]), DEPTH)
        swapped = replace(row, lower=TrunkActivations(values, owner, DEPTH)).swapped()
        assert swapped.responses == row.responses[::-1]
        assert swapped.lower is not None
        plain = Candidates(row.prompt, row.responses[::-1])
        torch.testing.assert_close(swapped.lower.values, trunk_output(model, pack([plain]), DEPTH))
