"""What is computed again for the gradient changes no gradient, and less is kept meanwhile."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, LlamaForSequenceClassification

from models.config_parts import TrainerConfig
from models.nets import scoring
from models.nets.packing import Candidates, pack
from models.nets.scoring import response_logprobs, response_scores
from models.nets.training import prepare_training

ROWS = [
    Candidates([5, 6, 7], ([8, 9, 1], [10, 1])),
    Candidates([5, 11, 12, 13, 14, 6], ([9, 1], [8, 8, 8, 1])),
]
CONFIG = LlamaConfig(
    vocab_size=20,
    hidden_size=16,
    intermediate_size=32,
    num_hidden_layers=4,
    num_attention_heads=2,
    num_key_value_heads=2,
    attention_dropout=0.3,
    num_labels=1,
    pad_token_id=0,
)


def _scorer(config: TrainerConfig) -> LlamaForSequenceClassification:
    torch.manual_seed(0)
    model = LlamaForSequenceClassification(CONFIG)
    prepare_training(model, config, seed=0)
    return model


def _gradients(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def _num_kept(function: Callable[[], Tensor]) -> int:
    """Numbers in all tensors that autograd keeps."""
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda tensor: kept.append(tensor.numel()) or tensor, lambda tensor: tensor
    ):
        function()
    return sum(kept)


@pytest.mark.parametrize("is_training", [True, False])
@pytest.mark.parametrize("trainable_layers", [None, 2])
def test_recomputed_layers_have_the_same_gradients(
    is_training: bool, trainable_layers: int | None
) -> None:
    found, kept = [], []
    for recomputes in (False, True):
        model = _scorer(
            TrainerConfig(trainable_layers=trainable_layers, gradient_checkpointing=recomputes)
        ).train(is_training)
        kept.append(_num_kept(lambda model=model: response_scores(model, pack(ROWS))))
        torch.manual_seed(1)  # of dropout, which is to be the same in the second pass
        response_scores(model, pack(ROWS)).square().sum().backward()
        found.append(_gradients(model))
    plain, recomputed = found
    assert plain.keys() == recomputed.keys()
    for name, gradient in plain.items():
        torch.testing.assert_close(recomputed[name], gradient, rtol=0, atol=0)
    assert kept[1] < kept[0] / 3


def test_models_are_saved_and_run_without_gradient_as_ever() -> None:
    plain, recomputed = (_scorer(TrainerConfig(gradient_checkpointing=on)) for on in (False, True))
    assert plain.state_dict().keys() == recomputed.state_dict().keys()
    with torch.no_grad():
        scores = [response_scores(model.eval(), pack(ROWS)) for model in (plain, recomputed)]
    assert torch.equal(*scores)


@pytest.mark.parametrize("tokens_at_once", [1, 4])
def test_logits_in_turns_have_the_same_values_and_gradients(
    monkeypatch: pytest.MonkeyPatch, tokens_at_once: int
) -> None:
    def judged() -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        torch.manual_seed(0)
        model = LlamaForCausalLM(CONFIG).double().eval()
        model.lm_head.register_forward_hook(lambda _, __, logits: seen.append(len(logits)))
        logprobs, entropies, mask = response_logprobs(model, pack(ROWS), 0.7)
        judgement = (logprobs + 2 * entropies) * torch.arange(mask.numel()).view(mask.shape)
        judgement.sum().backward()
        return logprobs.detach(), entropies.detach(), _gradients(model)

    seen: list[int] = []
    expected = judged()
    assert seen == [11]  # all response tokens
    seen.clear()
    monkeypatch.setattr(scoring, "LOGITS_AT_ONCE", tokens_at_once * CONFIG.vocab_size)
    found = judged()
    assert max(seen) == tokens_at_once
    torch.testing.assert_close(found, expected)
