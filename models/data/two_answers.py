"""Two answers in columns of their own, and how public data say which is better.

Winners are told as people write them. A number alone is told by what the answers' columns are
called: of "response_0" and "response_1" 0 is the first, of all others 1 is. 0 is then refused: to
PandaLM it is a tie, to Auto-J the first answer (and 2 a tie), to SHP the second.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from trimtab.models.data.columns import CHOICES, Mapped, Row, list_of, number_of, words
from trimtab.models.data.formats import PREFERS
from trimtab.models.data.problems import Problem, shorten
from trimtab.models.data.ranked_answers import PROMPTS

Preference = Callable[[Row, Mapped], float | None]
"""How much better the first answer is than the second: 0 a tie, below 0 worse, None a problem."""
People = Callable[[Row, Mapped], list[tuple[str | None, float]]]
"""Several people's opinions, each with who it is of where that is known."""


def score_from(column: str, limit: int) -> Preference:
    """From -limit (the first answer is much better) to limit (the second is)."""

    def opinion(row: Row, mapped: Mapped) -> float | None:
        value = number_of(row.get(column))
        allowed = f"a number from {-limit} to {limit}"
        if isinstance(value, bool) or not isinstance(value, int | float):
            mapped.refuse("wrong_type", column, value, allowed)
        elif not -limit <= value <= limit:
            mapped.refuse("out_of_range", column, value, allowed)
        else:
            return -value
        return None

    return opinion


def choice(column: str, meanings: dict[Any, int]) -> Preference:
    """One of some values, each with what it means."""

    def opinion(row: Row, mapped: Mapped) -> float | None:
        value = row.get(column)
        key = value.strip().lower() if isinstance(value, str) else value
        for known in (key, number_of(key)):
            if isinstance(known, str | int | float) and known in meanings:
                return meanings[known]
        mapped.refuse("out_of_range", column, value, " | ".join(map(str, meanings)))
        return None

    return opinion


def flags(first: str, second: str, neither: str) -> Preference:
    """Three columns, of which one is 1 and the others are 0."""

    def opinion(row: Row, mapped: Mapped) -> float | None:
        values = [number_of(row.get(name)) for name in (first, second, neither)]
        if sorted(map(str, values)) == ["0", "0", "1"]:
            return {0: 1, 1: -1, 2: 0}[values.index(1)]
        allowed = f"1 in one of {first}, {second}, {neither}, and 0 in the others"
        mapped.refuse("out_of_range", first, values, allowed)
        return None

    return opinion


def scores_of(column: str, key: str) -> People:
    """Several people's scores, as in `score_from`; those without a number are left out."""

    def opinions(row: Row, mapped: Mapped) -> list[tuple[str | None, float]]:
        people = _people_in(row, mapped, column, key)
        scores = [number_of(person.get(key)) for person in people if isinstance(person, dict)]
        numbers = [score for score in scores if isinstance(score, int | float)]
        return [(None, -score) for score in numbers if not math.isnan(score)]

    return opinions


def _people_in(row: Row, mapped: Mapped, column: str, key: str) -> list[Any]:
    """The opinions that a column lists; none where it is absent, or no list."""
    people = list_of(row.get(column))
    if people is None or isinstance(people, list):
        return people or []
    mapped.refuse("wrong_type", column, people, f"a list of objects with {key}")
    return []


MULTIPREF: Final = {
    "A-is-clearly-better": 2,
    "A-is-slightly-better": 1,
    "Tie": 0,
    "B-is-slightly-better": -1,
    "B-is-clearly-better": -2,
}
MULTIPREF_PEOPLE: Final = ("normal_worker_annotations", "expert_worker_annotations")


def multipref(row: Row, mapped: Mapped) -> list[tuple[str | None, float]]:
    """MultiPref's annotators, workers and experts alike."""
    opinions: list[tuple[str | None, float]] = []
    for column in MULTIPREF_PEOPLE:
        for index, person in enumerate(_people_in(row, mapped, column, "overall_pref")):
            preferred = person.get("overall_pref") if isinstance(person, dict) else None
            if isinstance(preferred, str) and preferred in MULTIPREF:
                name = person.get("evaluator")
                opinions.append((name if isinstance(name, str) else None, MULTIPREF[preferred]))
            else:
                place = f"{column}[{index}].overall_pref"
                mapped.refuse("out_of_range", place, preferred, " | ".join(MULTIPREF))
    return opinions


def majority(people: People) -> Preference:
    """What more people prefer, however strongly."""

    def opinion(row: Row, mapped: Mapped) -> float | None:
        opinions = people(row, Mapped({}, columns=mapped.columns))
        return sum((value > 0) - (value < 0) for _, value in opinions)

    return opinion


STEMS: Final = frozenset(
    {"response", "answer", "output", "completion", "text", "candidate", "option", "reply",
     "generation", "summary"}
)  # fmt: skip
_OF_MODELS: Final = STEMS | {"model", "assistant", "generated"}
SIDES: Final = (
    ("a", "b"), ("1", "2"), ("0", "1"), ("left", "right"), ("first", "second"), ("one", "two"),
)  # fmt: skip
_PLACES: Final = {
    side: place for pair in SIDES for place, side in enumerate(pair) if pair[0].isalpha()
}
_NAMES_OF_CHOICES: Final = CHOICES | STEMS | {"human", "overall", "final"}
_TIES: Final = frozenset(
    {"tie", "tied", "draw", "equal", "equally", "same", "neither", "both", "bothbad"}
)
_FILLERS: Final = _OF_MODELS | {
    "conversation", "side", "is", "are", "the", "wins", "won", "better", "best", "much", "slightly",
    "significantly", "clearly",
}  # fmt: skip
_VOTERS: Final = frozenset(
    {"annotator", "annotation", "rater", "worker", "labeler", "labeller", "evaluator", "expert"}
)
_FLAGS: Final = {"true": 1, "yes": 1, "false": 0, "no": 0}
LONGEST: Final = 100
_COMPARED: Final = re.compile(r"[\W_]*?(\w[\w .-]*?)\s*(>+|<+|=+|~)\s*(\w[\w .-]*?)[\W_]*")
_WINNERS: Final = "{} | {} | a | b | first | second | a>b | tie, and no name of both answers"
NUMBERED: Final = (
    "a winner that is told from the names of the answers' columns: a, b, tie, or these names; or "
    "columns of a form that says what numbers mean: response_0, response_1 and better_response_id "
    "(0: the first, 1: the second), response1, response2 and annotator1 (1, 2, 0: a tie), "
    "human_ref_A, human_ref_B and labels (1: the first, 0: the second), response_1, response_2 and "
    "preference_strength (-3: the first is much better, to 3: the second)"
)


def columns_of_two(keys: Sequence[str]) -> dict[str, str] | None:
    """What a row with these columns calls those of `labelled`; None where that is not plain.

    Plain: two columns differ in a side alone ("output_1", "output_2"), and one says which is
    better. The prompt may be absent.
    """
    prompt, named = prompt_in(keys), ("response_a", "response_b", "winner")
    if set(named) <= set(keys):
        columns = {name: name for name in named}
    else:
        answers = sides_in(keys)
        labels = [key for key in keys if _says_which(words(key))]
        labels = ["winner"] if "winner" in keys else labels
        if answers is None or len(labels) != 1:
            return None
        columns = dict(zip(named, (*answers, *labels), strict=True))
    return columns if prompt is None else {"prompt": prompt} | columns


def sides_in(keys: Sequence[str]) -> tuple[str, str] | None:
    """The columns of two answers, the first and the second; None unless there are just two."""
    by_stem: dict[tuple[str, ...], dict[str, str]] = {}
    for key in keys:
        parts = words(key)
        if len(parts) > 1 and parts[0] in _PLACES:
            parts = (*parts[1:], parts[0])
        if STEMS & set(parts[:-1]) and set(parts[:-1]) <= _OF_MODELS and _is_side(parts[-1]):
            by_stem.setdefault(parts[:-1], {})[parts[-1]] = key
    pairs = [
        (columns[pair[0]], columns[pair[1]])
        for columns in by_stem.values()
        for pair in SIDES
        if columns.keys() == set(pair)
    ]
    return pairs[0] if len(pairs) == len(by_stem) == 1 else None


def _is_side(part: str) -> bool:
    """Whether the last word of a column's name tells answers apart: "response_model" does not."""
    return len(part) == 1 or part.isdigit() or part in _PLACES or part in ("third", "three")


def prompt_in(keys: Sequence[str]) -> str | None:
    """The column that holds the prompt."""
    names = {"_".join(words(key)): key for key in keys}
    return next((names[name] for name in PROMPTS if name in names), None)


def voters_in(keys: Sequence[str]) -> list[str]:
    """Columns of one annotator's choice each: "annotator_1", "rater2"."""
    named = [(key, words(key)) for key in keys]
    return [
        k for k, parts in named if len(parts) == 2 and parts[0] in _VOTERS and _is_side(parts[1])
    ]


def columns_voted(keys: Sequence[str]) -> dict[str, str] | None:
    """What a row with these columns calls two answers that annotators chose from; else None."""
    answers, prompt = sides_in(keys), prompt_in(keys)
    if answers is None or not voters_in(keys):
        return None
    columns = {"response_a": answers[0], "response_b": answers[1]}
    return columns if prompt is None else {"prompt": prompt} | columns


def voters(first: str, second: str) -> People:
    """The annotators' choices, as `winner` takes them; empty cells are no vote.

    A 0 is a tie beside answers that are numbered from 1, as PandaLM's are.
    """

    def opinions(row: Row, mapped: Mapped) -> list[tuple[str | None, float]]:
        answers = answers_of(row, first, second, mapped.columns)
        columns = [column for column, *_ in answers]
        votes: list[tuple[str | None, float]] = []
        for name in voters_in(tuple(row)):
            value = row[name]
            if value is None or value == "":
                continue
            mapped.reads.add(name)
            place, code = place_of(value, answers)
            if code == 0 and is_told_by_number(columns) and not _counts_from_0(columns):
                place = 2
            if place is not None:
                votes.append((name, (1, -1, 0)[place]))
            else:
                _refuse_choice(name, value, code, columns, mapped)
        return votes

    return opinions


Answer = tuple[str, str, Any, Any]
"""What an answer's column is called, in the row and here, its text, and its model."""


def answers_of(
    row: Row, first: str, second: str, columns: Mapping[str, str] | None = None
) -> list[Answer]:
    """The answers in two columns of a row. columns: what the row itself calls these."""
    return [
        ((columns or {}).get(name, name), name, row.get(name), row.get(model))
        for name, model in ((first, "model_a"), (second, "model_b"))
    ]


def _refuse_choice(
    name: str, value: Any, code: float | None, columns: Sequence[str], mapped: Mapped
) -> None:
    """Refuse a value that names no answer. code: the number that it is; a 0 may be any of them."""
    if code == 0 and not _counts_from_0(columns):
        shown = f"{shorten(value)}, of {columns[0]} and {columns[1]}"
        mapped.problems.append(Problem("ambiguous_label", name, shown, NUMBERED))
    else:
        mapped.refuse("out_of_range", name, value, _WINNERS.format(*columns))


def _says_which(parts: Sequence[str]) -> bool:
    """Whether a column's name says that it holds which answer is better."""
    is_index = bool(parts) and parts[-1] in ("id", "index", "idx")
    if is_index and {"better", "best", "preferred"} & set(parts):
        parts = parts[:-1]
    return bool(CHOICES & set(parts)) and set(parts) <= _NAMES_OF_CHOICES


def code_of_choice(name: str, value: Any) -> int | None:
    """The code by which a column may say which answer is better; None where it says no such.

    Codes are -1, 0, 1 and 2; true and false, as words too, are 1 and 0.
    """
    if not _says_which(words(name)):
        return None
    code = _FLAGS.get(value.strip().lower()) if isinstance(value, str) else None
    code = number_of(value) if code is None else code
    return int(code) if isinstance(code, int | float) and code in (-1, 0, 1, 2) else None


def winner(first: str, second: str) -> Preference:
    """The winner, as people name it, of answers that stand in columns `first` and `second`."""

    def opinion(row: Row, mapped: Mapped) -> float | None:
        value = row.get("winner")
        if isinstance(value, dict) and "selected" in value:  # Label Studio
            value = value["selected"]
        answers = answers_of(row, first, second, mapped.columns)
        place, mapped.code = place_of(value, answers)
        mapped.is_told = place is not None
        if place is not None:
            return (1, -1, 0)[place]
        _refuse_choice("winner", value, mapped.code, [column for column, *_ in answers], mapped)
        return None

    return opinion


def is_told_by_number(columns: Sequence[str]) -> bool:
    """Whether the answers' columns are numbered, so that a number alone names one of them."""
    return any(part.isdigit() for part in words(columns[0]))


def _counts_from_0(columns: Sequence[str]) -> bool:
    return "0" in words(columns[0])


def place_of(value: Any, answers: Sequence[Answer]) -> tuple[int | None, float | None]:
    """The winner's place, 0 or 1 (2: a tie, None: not told), and the number that alone told it.

    What one reading takes for the first answer and another one for the second is not told.
    """
    if not isinstance(value, str):
        return _place_of_number(value, answers)
    for index, (column, *_) in enumerate(answers):
        if value == column or (words(value) and words(value) == words(column)):
            return index, None
    named: set[int | None] = {
        index
        for index, (_, name, text, model) in enumerate(answers)
        if value in (text, model)
        or (words(value) and words(value) in (words(name), words(model or "")))
    }
    place, code = _place_of_words(value, answers)
    if named:
        places = named | ({place} - {None})
        return (places.pop() if len(places) == 1 else None), None
    return place, code


def _place_of_words(value: str, answers: Sequence[Answer]) -> tuple[int | None, float | None]:
    if len(value) <= LONGEST and (compared := _COMPARED.fullmatch(value)):
        left, right = (place_of(compared[group], answers)[0] for group in (1, 3))
        is_of_both = {left, right} == {0, 1}
        return ({">": left, "<": right}.get(compared[2][0], 2) if is_of_both else None), None
    left_over = [word for word in words(value) if word not in _FILLERS]
    if _TIES & set(left_over) and set(left_over) <= _TIES | {"a", "good", "bad"}:
        return 2, None
    word = left_over[0] if len(left_over) == 1 else ""
    if word in _PLACES:
        return _PLACES[word], None
    code = number_of(value)
    return _place_of_number(word if word and isinstance(code, str) else code, answers)


def _place_of_number(value: Any, answers: Sequence[Answer]) -> tuple[int | None, float | None]:
    code = number_of(value)
    if isinstance(code, bool) or not isinstance(code, int | float):
        return None, None
    place = code - (not _counts_from_0([column for column, *_ in answers]))
    return (int(place) if place in (0, 1) else None), code


def other_choice(
    row: Row, ignored: Sequence[str], fields: Sequence[str], is_tie: bool
) -> Problem | None:
    """What in words names another winner, in one of the columns that were not read.

    fields: the columns of the better answer and of the worse.
    """
    names = [name for name in ignored if _says_which(words(name))]
    sides = sides_in(fields) if names else None
    if sides is None:
        return None
    preferred = 2 if is_tie else sides.index(fields[0])
    for name in names:
        place, code = place_of(row.get(name), answers_of(row, *sides))
        if place is not None and code is None and place != preferred:
            allowed = f'the same in all columns, or preferences.columns={{"winner": "{name}"}}'
            other = (*sides, "neither")[preferred]
            shown = f"{shorten(row[name])}, where other columns prefer {other}"
            return Problem("ambiguous_label", name, shown, f"{allowed}, or another one by name")
    return None


def names_answers(row: Row) -> bool:
    """Whether `chosen` and `rejected` name columns of two answers, or their models."""
    sides = sides_in(tuple(row))
    if sides is None or row.get("chosen") in (row[side] for side in sides):
        return False
    answers = answers_of(row, *sides)
    return {place_of(row.get(name), answers)[0] for name in ("chosen", "rejected")} == {0, 1}


@dataclass(frozen=True, slots=True)
class TwoAnswers:
    """Two answers in columns of their own, and which is better.

    prompt: None, or no column, where the answers are whole dialogues. people: several annotators'
    opinions, which become votes. counts: columns with how many people liked each answer, taken as
    votes. is_rated: the strength 1 to 3 of the opinion becomes rating 2 to 4. category, identity:
    columns.
    """

    prompt: str | None
    first: str
    second: str
    opinion: Preference
    people: People | None = None
    counts: tuple[str, str] | None = None
    is_rated: bool = False
    category: str | None = None
    identity: str | None = None

    def __call__(self, row: Row, mapped: Mapped) -> None:
        """Fill in `mapped`."""
        preference = self.opinion(row, mapped)
        is_first = (preference or 0) >= 0
        better, worse = (self.first, self.second) if is_first else (self.second, self.first)
        names = {"chosen": better, "rejected": worse}
        if self.prompt is not None and self.prompt in row:
            names["prompt"] = self.prompt
        if self.counts is not None:
            counts = self.counts if is_first else self.counts[::-1]
            names |= dict(zip(("votes_chosen", "votes_rejected"), counts, strict=True))
        if self.category is not None and row.get("category") is None:
            names["category"] = self.category
        if self.identity is not None:
            names["id"] = self.identity
        mapped.names = names
        mapped.values |= {
            column: number_of(row.get(name)) if column.startswith("votes_") else row.get(name)
            for column, name in names.items()
        }
        mapped.values["tie"] = preference == 0
        if self.is_rated and preference:
            mapped.values["rating"] = 1 + round(abs(preference))
        opinions = [] if self.people is None else self.people(row, mapped)
        prefers = [
            "equal" if value == 0 else "chosen" if (value > 0) == is_first else "rejected"
            for _, value in opinions
        ]
        if opinions:
            mapped.values["votes"] = {name: prefers.count(name) for name in PREFERS}
        if opinions and all(name is not None for name, _ in opinions):
            mapped.values["opinions"] = [
                {"annotator": name, "prefers": preferred}
                for (name, _), preferred in zip(opinions, prefers, strict=True)
            ]
