"""Frozen layers stay as they were, and what is trained gets the gradient it would get anyway."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig, LlamaForSequenceClassification

from trimtab.models.nets.freezing import (
    freeze_lower_layers,
    load_trained_state,
    trained_parameters,
    trained_state,
)

INPUT_IDS = torch.tensor([[5, 6, 7, 1], [9, 8, 3, 1]])


def _model(seed: int = 0) -> LlamaForSequenceClassification:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=12,
        hidden_size=8,
        intermediate_size=16,
        num_hidden_layers=3,
        num_attention_heads=2,
        num_key_value_heads=2,
        pad_token_id=0,
        num_labels=1,
    )
    return LlamaForSequenceClassification(config).double()


def _gradients(model: LlamaForSequenceClassification) -> dict[str, torch.Tensor]:
    model(INPUT_IDS).logits.square().sum().backward()
    return {
        name: parameter.grad
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }


def test_the_upper_layers_norm_and_head_are_trained_with_unchanged_gradients() -> None:
    whole, frozen = _model(), _model()
    freeze_lower_layers(frozen, 1)
    expected, found = _gradients(whole), _gradients(frozen)
    assert {name.split(".")[1] for name in found} == {"layers", "norm", "weight"}
    assert {name.split(".")[2] for name in found if "layers" in name} == {"2"}
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, expected[name], rtol=0, atol=0)


def test_none_freezes_nothing() -> None:
    model = _model()
    freeze_lower_layers(model, None)
    assert len(trained_parameters(model)) == len(list(model.parameters()))


@pytest.mark.parametrize("number", [0, 4])
def test_a_number_of_layers_the_model_lacks_is_refused(number: int) -> None:
    with pytest.raises(ValueError, match=rf"in \[1, 3\].*found {number}"):
        freeze_lower_layers(_model(), number)


def test_the_trained_state_restores_everything_that_training_changed() -> None:
    trained, fresh = _model(), _model()
    for model in (trained, fresh):
        freeze_lower_layers(model, 2)
    with torch.no_grad():
        for parameter in trained_parameters(trained):
            parameter.add_(1.0)
    state = {name: value.clone() for name, value in trained_state(trained).items()}
    assert not any("layers.0." in name or "embed" in name for name in state)
    load_trained_state(fresh, state)
    for ours, theirs in zip(fresh.parameters(), trained.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_a_checkpoint_of_other_trained_layers_is_refused() -> None:
    one, two = _model(), _model()
    freeze_lower_layers(one, 1)
    freeze_lower_layers(two, 2)
    with pytest.raises(ValueError, match="trainable_layers"):
        load_trained_state(two, trained_state(one))
