"""Hidden states of a packaged language model, which is taken as it is."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.models.conftest import run_stage
from tests.models.judge.tiny import tiny_model, tiny_tokenizer
from trimtab.models.config.reward import EmbeddingsConfig
from trimtab.models.stages import embeddings
from trimtab.models.stages.embeddings import _prompt_messages
from trimtab.models.training.data import write_rows

HH = "\n\nHuman: What is {}?\n\nAssistant:"


def test_answers_are_read_behind_the_chat_template(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As each dialogue's own pass gives them; splits may be empty."""
    monkeypatch.setattr(embeddings, "load_policy", lambda _, **__: tiny_model())
    monkeypatch.setattr(embeddings, "load_tokenizer", lambda _: tiny_tokenizer())
    rows = [
        {"id": "a", "prompt": HH.format("it"), "chosen": " This.", "rejected": " That one."},
        {"id": "b", "prompt": "Name one.", "chosen": "This.", "rejected": "None"},
    ]
    for split, own in (("train", rows), ("validation", []), ("test", [])):
        write_rows(tmp_path / "pairs" / f"{split}.jsonl", own)
    config = EmbeddingsConfig(encoder="smollm2-135m-instruct", layer=1)
    output = run_stage("embeddings", config, tmp_path / "work", preferences=tmp_path / "pairs")
    found = load_file(output / "embeddings.safetensors")
    assert found["train"].shape == (2, 2, 32) and found["test"].shape == (0, 2, 32)
    tokenizer, model = tiny_tokenizer(), tiny_model()
    for row, vectors in zip(rows, found["train"], strict=True):
        question = row["prompt"].removeprefix("\n\nHuman: ").removesuffix("\n\nAssistant:")
        start = f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
        for name, vector in zip(("chosen", "rejected"), vectors, strict=True):
            before = tokenizer(start)["input_ids"]
            ids = [*before, *tokenizer(row[name].strip())["input_ids"], tokenizer.eos_token_id]
            with torch.no_grad():
                outputs = model.model(torch.tensor([ids]), output_hidden_states=True)
            own = outputs.hidden_states[1][0, len(before) :]
            expected = torch.cat([own.mean(0), own[-1]])
            torch.testing.assert_close(vector.float(), expected, rtol=2e-3, atol=2e-3)


def test_a_prompt_that_is_a_mark_alone_is_asked_as_it_is() -> None:
    assert _prompt_messages("\n\nAssistant:") == [{"role": "user", "content": "\n\nAssistant:"}]
    assert _prompt_messages("Hi") == [{"role": "user", "content": "Hi"}]
