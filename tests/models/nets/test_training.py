"""What is computed again for the gradient changes no gradient, and less is kept meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import (
    GPT2Config,
    GPT2ForSequenceClassification,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
    PreTrainedModel,
)

from trimtab.models.config.training import LoraConfig, TrainerConfig
from trimtab.models.nets import counts
from trimtab.models.nets.freezing import layers_of
from trimtab.models.nets.packing import Candidates, pack
from trimtab.models.nets.scoring import response_logprobs, response_scores
from trimtab.models.nets.training import prepare_training

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
LLAMA_PARTS = ("self_attn.o_proj", "mlp.down_proj")
GPT2 = GPT2Config(
    vocab_size=20,
    n_embd=16,
    n_layer=2,
    n_head=2,
    resid_pdrop=0.0,
    embd_pdrop=0.0,
    attn_pdrop=0.0,
    num_labels=1,
    pad_token_id=0,
)


def _scorer(config: TrainerConfig, dropout: float = 0.0) -> LlamaForSequenceClassification:
    torch.manual_seed(0)
    model = LlamaForSequenceClassification(CONFIG)
    prepare_training(model, config, 0, dropout)
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
@pytest.mark.parametrize(("trainable_layers", "dropout"), [(None, 0.0), (2, 0.0), (2, 0.4)])
def test_recomputed_layers_have_the_same_gradients(
    is_training: bool, trainable_layers: int | None, dropout: float
) -> None:
    found, kept = [], []
    for recomputes in (False, True):
        model = _scorer(
            TrainerConfig(trainable_layers=trainable_layers, gradient_checkpointing=recomputes),
            dropout,
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
    monkeypatch.setattr(counts, "LOGITS_AT_ONCE", tokens_at_once * CONFIG.vocab_size)
    found = judged()
    assert max(seen) == tokens_at_once
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(
    ("kind", "config", "inner", "lora"),
    [
        (LlamaForSequenceClassification, CONFIG, LLAMA_PARTS, None),
        (LlamaForSequenceClassification, CONFIG, LLAMA_PARTS, LoraConfig(rank=2)),
        (GPT2ForSequenceClassification, GPT2, ("attn.c_proj", "mlp.c_proj"), None),
    ],
)
def test_dropout_is_of_what_trained_layers_add(
    kind: type[PreTrainedModel], config: Any, inner: tuple[str, ...], lora: LoraConfig | None
) -> None:
    """Of both parts of the upper layer a third is 0 and the rest 3/2 of what it was."""
    torch.manual_seed(0)
    model = kind(config)
    prepare_training(model, TrainerConfig(trainable_layers=1, lora=lora), 0, dropout=1 / 3)
    before: dict[str, Tensor] = {}
    after: dict[str, Tensor] = {}
    for number, layer in enumerate(layers_of(model)):
        for name in inner:
            # As the innermost map gives it, and as the layer gets it, behind the drop.
            for module, seen in ((name, before), (name.partition(".")[0], after)):
                layer.get_submodule(module).register_forward_hook(
                    lambda _, __, output, seen=seen, key=f"{number}.{name}": seen.__setitem__(
                        key, output[0] if isinstance(output, tuple) else output
                    )
                )
    response_scores(model.train(), pack(ROWS * 40))
    top = len(layers_of(model)) - 1
    for key, values in after.items():
        if not key.startswith(f"{top}."):
            assert torch.equal(values, before[key])
            continue
        dropped = values == 0
        torch.testing.assert_close(values[~dropped], before[key][~dropped] * 1.5)
        # Standard error of the share: sqrt(2/9 / n).
        error = (2 / 9 / values.numel()) ** 0.5
        assert abs(float(dropped.float().mean()) - 1 / 3) < 5 * error
    response_scores(model.eval(), pack(ROWS))
    assert all(torch.equal(values, before[key]) for key, values in after.items())


def test_a_layer_in_which_nothing_can_be_dropped_is_refused() -> None:
    model = LlamaForSequenceClassification(CONFIG)
    model.model.layers = nn.ModuleList(nn.LayerNorm(16) for _ in range(4))
    with pytest.raises(ValueError, match="LayerNorm has no parts with weight matrices"):
        prepare_training(model, TrainerConfig(), 0, dropout=0.1)
