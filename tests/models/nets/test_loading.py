"""Saved folders are `save_pretrained`'s own, and saving loads nothing that takes seconds."""

from __future__ import annotations

import filecmp
import sys
from pathlib import Path

import pytest
from transformers import LlamaConfig, LlamaForCausalLM

from trimtab.models.nets.loading import save_model


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
