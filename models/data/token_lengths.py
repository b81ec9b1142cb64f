"""How many pairs are longer than a limit in tokens, before a run. Loads no torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trimtab.models.data.records import PreferencePair

# Pairs whose tokens are counted, spread over all of them: in about a second.
MOST_COUNTED = 1000


def share_over_tokens(pairs: Sequence[PreferencePair], folder: Path, limit: int) -> float | None:
    """The share of pairs of which prompt and an answer together have more tokens than `limit`.

    Messages are counted as texts, without what a chat template adds. folder: of a model. None where
    it has no tokenizer.json that can be read, or there are no pairs.
    """
    path = folder / "tokenizer.json"
    if not path.is_file() or not pairs:
        return None
    from tokenizers import Tokenizer

    try:
        tokenizer: Any = Tokenizer.from_file(str(path))
    except Exception:  # the library raises nothing more specific; the run says what is wrong
        return None
    tokenizer.no_truncation()
    some = pairs[:: -(-len(pairs) // MOST_COUNTED)]
    texts = [pair.prompt + answer for pair in some for answer in (pair.chosen, pair.rejected)]
    counts = [len(each.ids) for each in tokenizer.encode_batch(texts)]
    longer = [max(both) > limit for both in zip(counts[::2], counts[1::2], strict=True)]
    return sum(longer) / len(longer)
