"""First weights. Saved folders are `save_pretrained`'s own, and saving loads nothing that takes
seconds."""

from __future__ import annotations

import filecmp
import sys
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from trimtab.models.config.training import ModelConfig
from trimtab.models.nets.loading import build_policy, save_model
from trimtab.models.stages.world import word_tokenizer


class Tokenizer:
    """All that saving asks of a tokenizer."""

    def save_pretrained(self, folder: Path) -> None:
        """Nothing to save."""


def test_saving_is_save_pretrained_without_deepspeed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = LlamaConfig(
        vocab_size=12,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        tie_word_embeddings=True,
    )
    model = LlamaForCausalLM(config)
    model.save_pretrained(tmp_path / "theirs")
    monkeypatch.setitem(sys.modules, "deepspeed", None)  # an import of it would now fail
    save_model(model, Tokenizer(), tmp_path / "ours")
    names = sorted(path.name for path in (tmp_path / "theirs").iterdir())
    assert sorted(path.name for path in (tmp_path / "ours").iterdir()) == names
    same = filecmp.cmpfiles(tmp_path / "ours", tmp_path / "theirs", names, shallow=False)
    assert same == (names, [], [])


@pytest.mark.parametrize("kind", ["transformers", "fan_in"])
def test_first_weights_are_as_wide_as_they_are_said_to_be(kind: str) -> None:
    torch.manual_seed(0)
    config = ModelConfig(hidden_size=64, num_layers=2, initialisation=kind)
    model = build_policy(config, word_tokenizer())
    widths = {"embed_tokens": 0.3, "down_proj": 192**-0.5}
    for name, parameter in model.named_parameters():
        if parameter.ndim == 1:
            assert bool((parameter == 1).all())  # of norms
            continue
        width = widths.get(name.split(".")[-2], 64**-0.5) if kind == "fan_in" else 0.02
        assert float(parameter.std()) == pytest.approx(width, rel=0.05)
    assert model.lm_head.weight is model.model.embed_tokens.weight
