"""Several answers in one row, ordered by their scores or ranks."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from trimtab.models.data.columns import (
    LOWER,
    RANKINGS,
    Mapped,
    Row,
    direction,
    is_count,
    is_number,
    list_of,
    number_of,
    words,
)
from trimtab.models.data.problems import Problem, shorten

MAX_ANSWERS: Final = 64
PROMPTS: Final = ("prompt", "instruction", "question", "query", "input", "context")
ANSWERS: Final = (
    "responses", "answers", "completions", "generations", "outputs", "candidates", "replies",
    "response", "output", "texts",
)  # fmt: skip
"""What a list of answers is called, the first that a row has."""
TEXTS: Final = ("text", "response", "answer", "completion", "output", "content", "generation")
PLACED: Final = "preferences.format=best-first if the best comes first whatever other columns say"
_NOT_SCORES: Final = frozenset(
    {"prompt", "responses", "id", "category", "group", "tie", "opinions", "votes_chosen",
     "votes_rejected", "votes_equal"}
)  # fmt: skip
_LISTED: Final = frozenset({"scores", "ratings", "rewards", "grades", *LOWER})
_SIDES: Final = re.compile(
    r"\W*(a|b|c|d|\d+|left|right|first|second|tie|.*[<>=].*)\W*|(response|answer|model)\W?\w+", re.I
)


@dataclass(frozen=True, slots=True)
class ScoredList:
    """A list of answers, each with a score (or a rank, of which the lowest is the best).

    Two answers of one score make no pair; the row is a tie where all are equal.
    """

    prompt: str
    answers: str
    text: str
    score: str
    is_rank: bool = False
    category: str | None = None

    def __call__(self, row: Row, mapped: Mapped) -> None:
        """Fill in `mapped`."""
        mapped.names = {"prompt": self.prompt}
        if self.category is not None and row.get("category") is None:
            mapped.names["category"] = self.category
        mapped.values |= {column: row.get(name) for column, name in mapped.names.items()}
        answers = list_of(row.get(self.answers))
        if _answer_list(answers) is None:
            allowed = f"a list of 2 to {MAX_ANSWERS} objects with {self.text} and {self.score}"
            mapped.refuse("wrong_type", self.answers, answers, allowed)
            answers = []
        texts, scores = {}, {}
        for index, answer in enumerate(answers):
            place = f"{self.answers}[{index}]"
            if not isinstance(answer, dict):
                allowed = f"an object with {self.text} and {self.score}"
                mapped.refuse("wrong_type", place, answer, allowed)
                continue
            texts[index] = f"{place}.{self.text}", answer.get(self.text)
            value = number_of(answer.get(self.score))
            if is_number(value):
                scores[index] = -value if self.is_rank else value
            else:
                mapped.refuse("wrong_type", f"{place}.{self.score}", value, "a number")
        _rank(texts, scores, mapped)


def _rank(texts: dict[int, tuple[str, Any]], scores: dict[int, float], mapped: Mapped) -> None:
    """Put answers in their order, and the pairs of which one has the larger score.

    texts: by an answer's number its place in the row and its text.
    """
    order = sorted(scores, key=lambda index: -scores[index])
    mapped.values["responses"] = [texts[index][1] for index in order]
    mapped.names |= {f"responses[{place}]": texts[index][0] for place, index in enumerate(order)}
    ranked = [scores[index] for index in order]
    mapped.pairs = tuple(
        (better, worse)
        for better in range(len(ranked))
        for worse in range(better + 1, len(ranked))
        if ranked[better] > ranked[worse]
    )
    mapped.values["tie"] = bool(ranked) and not mapped.pairs


def answers_in(keys: Sequence[str]) -> dict[str, str] | None:
    """What a row with these columns calls its `prompt` and its list of `responses`."""
    by_words = {"_".join(words(key)): key for key in keys}
    prompt = next((by_words[name] for name in PROMPTS if name in by_words), None)
    answers = next((by_words[name] for name in ANSWERS if name in by_words), None)
    return {"prompt": prompt, "responses": answers} if prompt and answers else None


def has_order(row: Row) -> bool:
    """Whether anything in a row besides their places could order its `responses`."""
    answers = _answer_list(row["responses"])
    return answers is not None and bool(_orderings(row, answers))


def order_by_scores(row: Row, mapped: Mapped) -> None:
    """Order `responses` by the row's scores or ranks; what could order them otherwise is refused.

    Where the user's `columns` name `scores` or `ranks` nothing else is asked.
    """
    answers = _answer_list(row["responses"]) or []
    called = mapped.columns.get("responses", "responses")
    mapped.values |= {"prompt": row.get("prompt")}
    orderings = _orderings(row, answers)
    if named := [name for name in ("scores", "ranks") if name in mapped.columns]:
        orderings = {name: orderings.get(name, []) for name in named}
    mapped.reads |= orderings.keys()
    unclear = [name for name, values in orderings.items() if values is None]
    texts = {index: _text_of(f"{called}[{index}]", answer) for index, answer in enumerate(answers)}
    scores = {
        name: dict(_numbers(name, values, len(answers), mapped))
        for name, values in orderings.items()
        if values is not None
    }
    mapped.values["responses"] = [text for _, text in texts.values()]
    mapped.names |= {f"responses[{index}]": place for index, (place, _) in texts.items()}
    mapped.pairs = ()
    if not mapped.problems and not unclear and len(set(map(_signs, scores.values()))) > 1:
        unclear = list(scores)
    if unclear:
        shown = ", ".join(f"{name} {shorten(row.get(name, orderings[name]))}" for name in unclear)
        allowed = _settings(unclear[0], row.get(unclear[0]))
        mapped.problems.append(Problem("ambiguous_label", unclear[0], shown, allowed))
    elif not mapped.problems:
        _rank(texts, next(iter(scores.values())), mapped)
        mapped.values["tie"] |= row.get("tie") is True


def _settings(column: str, values: Any) -> str:
    if not isinstance(list_of(values), list):
        return f"scores or ranks, a list with a number for each answer; {PLACED}"
    return (
        f'preferences.columns={{"scores": "{column}"}} if larger is better; '
        f'preferences.columns={{"ranks": "{column}"}} if smaller is; {PLACED}'
    )


def _answer_list(value: Any) -> list[Any] | None:
    """The answers of a list of them, else None."""
    return value if isinstance(value, list) and 2 <= len(value) <= MAX_ANSWERS else None


def _text_of(place: str, answer: Any) -> tuple[str, Any]:
    """The place of an answer's text (or messages) in the row, and the text."""
    if isinstance(answer, dict) and "role" not in answer:
        name = next((name for name in TEXTS if name in answer), TEXTS[0])
        return f"{place}.{name}", answer.get(name)
    return place, answer


def _orderings(row: Row, answers: Sequence[Any]) -> dict[str, list[Any] | None]:
    """By column the scores; None where it is not known how they order, empty where they are absent.

    A number for the whole row, or text that is no choice of an answer, orders nothing.
    """
    orderings: dict[str, list[Any] | None] = {}
    absent: dict[str, list[Any] | None] = {}
    for name, cell in row.items():
        if name in _NOT_SCORES:
            continue
        if cell is None:
            absent |= {name: []} if _is_listed(name) else {}
            continue
        sign, value = direction(name), list_of(cell)
        if sign:
            if _is_listed(name) or _has_numbers(value):
                values = value if isinstance(value, list) else [value]
                orderings[name] = None if _may_be_places(name, values) else values
        elif _could_choose(value, answers) if sign == 0 else _are_numbers(name, value, answers):
            orderings[name] = None
    if all(isinstance(answer, dict) for answer in answers):
        for name in dict.fromkeys(name for answer in answers for name in answer):
            if direction(name):
                orderings[f"[].{name}"] = [answer.get(name) for answer in answers]
    return orderings or absent


def _is_listed(name: str) -> bool:
    """Whether a column's name promises a score for each answer, and no one number for the row."""
    return bool(_LISTED & set(words(name)) and direction(name))


def _may_be_places(name: str, values: Sequence[Any]) -> bool:
    """Whether a "ranking" has another meaning if it lists the answers' numbers, best first."""
    ranks = [number_of(value) for value in values]
    if not RANKINGS & set(words(name)) or not all(map(is_number, ranks)):
        return False
    first = min(ranks, default=0)
    places = [rank - first for rank in ranks]
    is_order = sorted(places) == list(range(len(places)))
    return is_order and any(places[int(place)] != index for index, place in enumerate(places))


def _has_numbers(value: Any) -> bool:
    """Whether a value of one row is no number, but may hold several."""
    if isinstance(value, str):
        return isinstance(number_of(value), str) and any(map(str.isdigit, value))
    return not isinstance(value, int | float)


def _are_numbers(name: str, value: Any, answers: Sequence[Any]) -> bool:
    """Whether a value has a number, or true or false, for each answer, which may be its worth."""
    if is_count(name) or not isinstance(value, list | dict):
        return False
    values = list(value.values()) if isinstance(value, dict) else value
    if len(values) == len(answers) and all(map(_has_number, values)):
        return True
    parts = value.items() if isinstance(value, dict) else ()
    return any(isinstance(part, list) and _are_numbers(key, part, answers) for key, part in parts)


def _has_number(value: Any) -> bool:
    """Whether this is a number, true or false, or holds one that is no mere measure."""
    if isinstance(value, dict):
        return any(_has_number(part) for key, part in value.items() if not is_count(key))
    if isinstance(value, list):
        return any(map(_has_number, value))
    return isinstance(value, bool) or is_number(number_of(value))


def _could_choose(value: Any, answers: Sequence[Any]) -> bool:
    """Whether a value may say which answer is the better one."""
    if not isinstance(value, str):
        return not isinstance(value, bool)
    return value in answers or _SIDES.fullmatch(value) is not None


def _numbers(
    name: str, values: Sequence[Any], count: int, mapped: Mapped
) -> Iterator[tuple[int, float]]:
    allowed = f"a list of {count} numbers, one for each answer"
    if not values:
        mapped.refuse("missing_field", name, None, allowed)
        return
    if len(values) != count:
        shown = f"{len(values)} values: {shorten(values)}"
        mapped.problems.append(Problem("wrong_type", name, shown, allowed))
        return
    sign = direction(name) or 1
    for index, value in enumerate(values):
        number = int(value) if isinstance(value, bool) else number_of(value)
        if is_number(number):
            yield index, sign * number
        else:
            mapped.refuse("wrong_type", f"{name}[{index}]", value, "a number for each answer")


def _signs(scores: dict[int, float]) -> tuple[int, ...]:
    """How every two answers compare."""
    values = list(scores.values())
    return tuple((a > b) - (a < b) for i, a in enumerate(values) for b in values[:i])
