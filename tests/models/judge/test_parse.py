"""What answers say: strictly, from tokens where there are any, else from the text."""

from __future__ import annotations

import math

import pytest

from trimtab.models.judge.chat import ChatAnswer, Token
from trimtab.models.judge.parse import option_logprobs, option_of

AB = ("A", "B")
RATINGS = tuple(str(number) for number in range(1, 11))


def _answer(content: str, *places: dict[str, float]) -> ChatAnswer:
    """An answer whose tokens' likeliest alternatives have these probabilities, its own first."""
    tokens = tuple(
        Token(next(iter(p)), math.log(next(iter(p.values()))),
              tuple((text, math.log(share)) for text, share in p.items()))
        for p in places
    )  # fmt: skip
    return ChatAnswer(content, None, tokens)


def _shares(logprobs: list[float] | None) -> list[float] | None:
    return None if logprobs is None else [round(math.exp(value), 12) for value in logprobs]


@pytest.mark.parametrize(
    ("text", "option"),
    [
        ("A", "A"), (" B\n", "B"), ("**A**", "A"), ("(B)", "B"), ("A.", "A"), ('"B"', "B"),
        ("Answer: A", "A"), ("The answer is B.", "B"), ("Response A", "A"), ("verdict: B", "B"),
        ("final answer - A", "A"), ("- A", "A"),
        ("", None), ("a", None), ("AB", None), ("A or B", None), ("A good answer", None),
        ("Both", None), ("Neither A nor B", None), ("A, because it is true", None),
        ("C", None), ("-A", None), ("Not A", None), ("Ä", None), ("A" * 100_000, None),
    ],
)  # fmt: skip
def test_a_text_is_an_option_or_it_is_not(text: str, option: str | None) -> None:
    assert option_of(text, AB) == option


@pytest.mark.parametrize(
    ("text", "option"),
    [("1", "1"), ("10", "10"), ("Score: 7", "7"), ("8/10", None), ("3.5", None), ("-3", None),
     ("11", None), ("0", None), ("100", None), ("7 out of 10", None), (".5", None)],
)  # fmt: skip
def test_a_text_is_a_rating_or_it_is_not(text: str, option: str | None) -> None:
    assert option_of(text, RATINGS) == option


def test_probabilities_come_from_the_first_token_whatever_the_text_says() -> None:
    answer = _answer("Hm", {"Hm": 0.5, "A": 0.1, " A": 0.2, "B": 0.15, "b": 0.05})
    assert _shares(option_logprobs(answer, AB, 0.0)) == [0.3, 0.15]


def test_a_token_of_white_space_is_passed_over() -> None:
    answer = _answer("\nB", {"\n": 0.9, "A": 0.1}, {"B": 0.75, "A": 0.25})
    assert _shares(option_logprobs(answer, AB, 0.0)) == [0.25, 0.75]


def test_labels_that_are_too_unlikely_together_leave_the_text_to_say() -> None:
    places = {"The": 0.9, "A": 0.03, "B": 0.02}
    assert _shares(option_logprobs(_answer("The", places), AB, 0.049)) == [0.03, 0.02]
    assert option_logprobs(_answer("The", places), AB, 0.051) is None
    assert _shares(option_logprobs(_answer("The answer is B", places), AB, 0.051)) == [0.0, 1.0]


def test_an_option_that_is_not_listed_has_no_share() -> None:
    assert _shares(option_logprobs(_answer("B", {"B": 0.6, "b": 0.3}), AB, 0.1)) == [0.0, 0.6]
    assert option_logprobs(_answer("C", {"C": 0.6, "D": 0.3}), AB, 0.0) is None


def test_the_drawn_token_counts_where_the_likeliest_leave_it_out() -> None:
    token = Token("B", math.log(0.1), (("A", math.log(0.9)),))
    assert _shares(option_logprobs(ChatAnswer("B", None, (token,)), AB, 0.0)) == [0.9, 0.1]


def test_without_tokens_the_text_is_all() -> None:
    assert _shares(option_logprobs(ChatAnswer("A", None), AB, 0.5)) == [1.0, 0.0]
    assert option_logprobs(ChatAnswer("Both are fine", None), AB, 0.0) is None


def test_a_ten_of_one_token() -> None:
    found = _shares(option_logprobs(_answer("10", {"10": 0.5, "1": 0.2, "9": 0.3}), RATINGS, 0.0))
    assert found == [0.2, 0, 0, 0, 0, 0, 0, 0, 0.3, 0.5]


def test_a_ten_of_two_tokens_is_part_of_what_begins_with_one() -> None:
    # P(1) = .6, of which 3/4 go on with 0 and the rest ends: .45 for 10, .15 for 1.
    answer = _answer("10", {"1": 0.6, "9": 0.4}, {"0": 0.75, "<end>": 0.25})
    assert _shares(option_logprobs(answer, RATINGS, 0.0)) == [
        0.15, 0, 0, 0, 0, 0, 0, 0, 0.4, 0.45,
    ]  # fmt: skip
    # Nothing is known of what would have come behind a 1 that was not drawn.
    answer = _answer("9", {"9": 0.6, "1": 0.4}, {"<end>": 0.75, "0": 0.25})
    assert _shares(option_logprobs(answer, RATINGS, 0.0)) == [0.4, 0, 0, 0, 0, 0, 0, 0, 0.6, 0]
