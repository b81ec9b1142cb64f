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
        mapped.values |= {own: row.get(name) for own, name in mapped.names.items()}
        given = list_of(row.get(self.answers))
        if not isinstance(given, list) or not 2 <= len(given) <= MAX_ANSWERS:
            allowed = f"a list of 2 to {MAX_ANSWERS} objects with {self.text} and {self.score}"
            mapped.refuse("wrong_type", self.answers, given, allowed)
            given = []
        texts = {
            index: (f"{self.answers}[{index}].{self.text}", each.get(self.text))
            for index, each in enumerate(given)
            if isinstance(each, dict)
        }
        _rank(texts, dict(self._scores(given, mapped)), mapped)

    def _scores(self, given: Sequence[Any], mapped: Mapped) -> Iterator[tuple[int, float]]:
        for index, each in enumerate(given):
            place = f"{self.answers}[{index}]"
            if not isinstance(each, dict):
                allowed = f"an object with {self.text} and {self.score}"
                mapped.refuse("wrong_type", place, each, allowed)
                continue
            value = number_of(each.get(self.score))
            if not is_number(value):
                mapped.refuse("wrong_type", f"{place}.{self.score}", value, "a number")
            else:
                yield index, -value if self.is_rank else value


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
    found = {
        own: next((by_words[name] for name in names if name in by_words), None)
        for own, names in (("prompt", PROMPTS), ("responses", ANSWERS))
    }
    return {own: name for own, name in found.items() if name} if all(found.values()) else None


def has_order(row: Row) -> bool:
    """Whether anything in a row besides their places could order its `responses`."""
    given = _listed(row["responses"])
    return given is not None and bool(_orderings(row, given))


def order_by_scores(row: Row, mapped: Mapped) -> None:
    """Order `responses` by the row's scores or ranks; what could order them otherwise is refused.

    Where the user's `columns` name `scores` or `ranks` nothing else is asked.
    """
    given = _listed(row["responses"]) or []
    called = mapped.columns.get("responses", "responses")
    mapped.values |= {"prompt": row.get("prompt")}
    found = _orderings(row, given)
    if named := [name for name in ("scores", "ranks") if name in mapped.columns]:
        found = {name: found.get(name, []) for name in named}
    mapped.reads |= found.keys()
    unclear = [name for name, values in found.items() if values is None]
    texts = {}
    for index, answer in enumerate(given):
        place, text = _text_of(index, answer)
        texts[index] = f"{called}{place}", text
    scores = {
        name: dict(_numbers(name, values, len(given), mapped))
        for name, values in found.items()
        if values is not None
    }
    mapped.values["responses"] = [text for _, text in texts.values()]
    mapped.names |= {f"responses[{index}]": place for index, (place, _) in texts.items()}
    mapped.pairs = ()
    if not mapped.problems and not unclear and len({_signs(each) for each in scores.values()}) > 1:
        unclear = list(scores)
    if unclear:
        shown = ", ".join(f"{name} {shorten(row.get(name, found[name]))}" for name in unclear)
        mapped.problems.append(
            Problem(
                "ambiguous_label", unclear[0], shown, _settings(unclear[0], row.get(unclear[0]))
            )
        )
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


def _listed(value: Any) -> list[Any] | None:
    """The answers of a list of them, else None."""
    if not isinstance(value, list) or not 2 <= len(value) <= MAX_ANSWERS:
        return None
    return value


def _text_of(index: int, given: Any) -> tuple[str, Any]:
    """An answer's place in its list, and its text (or messages)."""
    if isinstance(given, dict) and "role" not in given:
        name = next((name for name in TEXTS if name in given), TEXTS[0])
        return f"[{index}].{name}", given.get(name)
    return f"[{index}]", given


def _orderings(row: Row, given: Sequence[Any]) -> dict[str, list[Any] | None]:
    """By column the scores; None where it is not known how they order, empty where they are absent.

    A number for the whole row, or text that is no choice of an answer, orders nothing.
    """
    found: dict[str, list[Any] | None] = {}
    absent: dict[str, list[Any] | None] = {}
    for name, given_value in row.items():
        if name in _NOT_SCORES:
            continue
        if given_value is None:
            absent |= {name: []} if _is_listed(name) else {}
            continue
        sign, value = direction(name), list_of(given_value)
        if sign:
            if _is_listed(name) or _has_numbers(value):
                values = value if isinstance(value, list) else [value]
                found[name] = None if _may_be_places(name, values) else values
        elif _could_choose(value, given) if sign == 0 else _are_numbers(name, value, given):
            found[name] = None
    if all(isinstance(each, dict) for each in given):
        for name in dict.fromkeys(name for each in given for name in each):
            if direction(name):
                found[f"[].{name}"] = [each.get(name) for each in given]
    return found or absent


def _is_listed(name: str) -> bool:
    """Whether a column's name promises a score for each answer, and no one number for the row."""
    return bool(_LISTED & set(words(name)) and direction(name))


def _may_be_places(name: str, values: Sequence[Any]) -> bool:
    """Whether a "ranking" has another meaning if it lists the answers' numbers, best first."""
    ranks = [number_of(each) for each in values]
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


def _are_numbers(name: str, value: Any, given: Sequence[Any]) -> bool:
    """Whether a value has a number, or true or false, for each answer, which may be its worth."""
    if is_count(name) or not isinstance(value, list | dict):
        return False
    values = list(value.values()) if isinstance(value, dict) else value
    if len(values) == len(given) and all(map(_has_number, values)):
        return True
    parts = value.items() if isinstance(value, dict) else ()
    return any(isinstance(part, list) and _are_numbers(key, part, given) for key, part in parts)


def _has_number(value: Any) -> bool:
    """Whether this is a number, true or false, or holds one that is no mere measure."""
    if isinstance(value, dict):
        return any(_has_number(each) for key, each in value.items() if not is_count(key))
    if isinstance(value, list):
        return any(map(_has_number, value))
    return isinstance(value, bool) or is_number(number_of(value))


def _could_choose(value: Any, given: Sequence[Any]) -> bool:
    """Whether a value may say which answer is the better one."""
    if not isinstance(value, str):
        return not isinstance(value, bool)
    return value in given or _SIDES.fullmatch(value) is not None


def _numbers(
    name: str, values: Sequence[Any], count: int, mapped: Mapped
) -> Iterator[tuple[int, float]]:
    allowed = f"a list of {count} numbers, one for each answer"
    if not values:
        mapped.refuse("missing_field", name, None, allowed)
        return
    if len(values) != count:
        found = f"{len(values)} values: {shorten(values)}"
        mapped.problems.append(Problem("wrong_type", name, found, allowed))
        return
    sign = direction(name) or 1
    for index, given in enumerate(values):
        value = int(given) if isinstance(given, bool) else number_of(given)
        if is_number(value):
            yield index, sign * value
        else:
            mapped.refuse("wrong_type", f"{name}[{index}]", given, "a number for each answer")


def _signs(scores: dict[int, float]) -> tuple[int, ...]:
    """How every two answers compare."""
    values = list(scores.values())
    return tuple((a > b) - (a < b) for i, a in enumerate(values) for b in values[:i])
