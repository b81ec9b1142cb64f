"""Words and sentences by hand, in scripts with and without blanks."""

from __future__ import annotations

import pytest

from trimtab.models.data.words import num_sentences, words_of


@pytest.mark.parametrize(
    ("text", "words", "sentences"),
    [
        ("", 0, 0),
        ("It works - no, really!  Don't ask...", 7, 2),
        ("Version 3.5 of e.g. this", 5, 1),
        ("这很好。我们很高兴！", 8, 2),
        ("我用 Python 3 写。", 5, 1),
        ("とても良いです。", 7, 1),
        ("ดีมาก", 4, 0),  # a vowel sign above is no letter
        ("좋아요. 정말 고마워요!", 3, 2),  # Korean has blanks
        ("هل يعمل؟ نعم.", 3, 2),
        ("यह अच्छा है। धन्यवाद।", 4, 2),
        ("“Well…” he said.", 3, 1),
    ],
)
def test_words_and_sentences_are_counted_in_any_script(
    text: str, words: int, sentences: int
) -> None:
    assert (len(words_of(text)), num_sentences(text)) == (words, sentences)


def test_of_a_script_with_blanks_words_are_what_stands_between_them() -> None:
    text = "A – long,\tsmall\u00a0text: naïve Größe, д'Артаньян …"
    assert words_of(text) == text.split()
