"""Words and sentences of a text in any script."""

from __future__ import annotations

import re
from typing import Final

# Scripts whose words have no blanks between them: Thai, Lao, Tibetan, Burmese, Khmer, kana,
# bopomofo, Chinese characters.
UNSPACED: Final = re.compile(
    "[\u0e00-\u0eff\u0f00-\u0fff\u1000-\u109f\u1780-\u17ff\u3041-\u312f\u31f0-\u31ff"
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff]"
)
# Full stops of other scripts end a sentence with or without a blank behind them.
OTHER_STOPS: Final = "\u3002\uff01\uff1f\uff61\uff0e\u061f\u06d4\u0964\u0965\u104b\u17d4\u1362"
SENTENCE_END: Final = re.compile(rf"[.!?]+(?=\s|$)|[{OTHER_STOPS}]+")

# In the summary of vectors, and of what reads them: share of the texts' tokens that the sentence
# encoder does not know.
UNKNOWN_TOKENS: Final = "share_unknown_tokens"


def words_of(text: str) -> list[str]:
    """The runs between blanks; of a script without blanks each letter counts as a word."""
    if UNSPACED.search(text) is None:
        return text.split()
    parts = UNSPACED.sub(r" \g<0> ", text).split()
    return [part for part in parts if any(letter.isalnum() for letter in part)]


def num_sentences(text: str) -> int:
    """How many sentences end in a text."""
    return len(SENTENCE_END.findall(text))
