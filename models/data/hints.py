"""What the columns of a file could be, where no form reads them: for advice that works.

A proposal is tried on a row before it is made. What a preset needs is derived from PRESETS; the
words of column names stand here.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Final

from trimtab.models.data.column_words import words
from trimtab.models.data.mapped import Row, number_of
from trimtab.models.data.presets import KTO, NATIVE, PRESETS, Preset
from trimtab.models.data.problems import Problem

PAGE: Final = "a form of docs/how-to/own-preferences.md"
CLOSE: Final = 0.85
"""How alike a misspelt name is: 1 is the same. "answer2" is no "answers": digits must agree."""
MAX_NAMES, MAX_NAME_SEARCHED = 200, 1000
MAX_NAME_CHARACTERS, MAX_NAME_WORDS = 60, 6
"""Names that are longer are the values of a row."""
_ANSWER: Final = "response answer completion output reply text candidate option generation summary"
_WORDS: Final[dict[str, frozenset[str]]] = {
    own: frozenset(said.split())
    for own, said in {
        "prompt": "prompt question instruction query input context history post task",
        "chosen": "chosen better preferred good positive accepted best win winning",
        "rejected": "rejected worse dispreferred bad negative loser worst lose losing",
        "completion": _ANSWER,
        "label": "label good correct liked accepted thumbs feedback",
        "winner": "winner label preference preferred choice better best verdict vote decision",
        "score": "score rating reward grade points stars quality rank label",
        "dialogue": "messages conversations conversation dialogue system",
    }.items()
}
_NEGATIONS: Final = frozenset({"not", "no", "non", "never", "least"})
_AGAINST: Final = _NEGATIONS | {
    "down", "bad", "negative", "worst", "worse", "toxic", "toxicity", "harm", "harmful", "unsafe",
    "unhelpful", "wrong", "error", "reject", "rejected", "loser", "losing", "dispreferred",
    "disliked",
}  # fmt: skip
"""Words of columns that are true, or name an answer, where this is the worse one."""
_OF_ONE_SIDE: Final = frozenset(
    {"a", "b", "0", "1", "2", "left", "right", "first", "second", "one", "two"}
)
_SIDES: Final = (
    ("a", "b"), ("1", "2"), ("0", "1"), ("left", "right"), ("first", "second"), ("one", "two"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Hint:
    """What is missing of a file, and the `columns` by which it can be read, if there are such."""

    text: str
    columns: dict[str, str]


Try = Callable[[dict[str, str]], Sequence[Problem]]


def hint(row: Row, asked: str, is_table: bool, try_columns: Try) -> Hint:
    """Advice about a row of no known form.

    asked: the form that was asked for, or "auto". is_table: the row is of a CSV file. try_columns:
    what is wrong with the row if its columns are named so.
    """
    names = [name for name in row if isinstance(name, str) and len(name) <= MAX_NAME_SEARCHED]
    names = names[:MAX_NAMES]
    row = {name: row[name] for name in names}
    if is_table and any(map(_is_a_value, names)):
        text = "a first row with the names of the columns, where this file seems to have its first "
        return Hint(f"{text}pair: write one above it, such as prompt,chosen,rejected", {})
    presets = [preset for preset in PRESETS if asked in ("auto", preset.name)]
    tried = [(columns, try_columns(columns)) for columns in _proposals(row, presets) if columns]
    for columns, problems in tried:
        if not problems:
            return Hint(PAGE, columns)
    for columns, problems in tried:
        winner = next((each for each in problems if each.field == columns.get("winner")), None)
        if winner is not None and len(problems) == 1:
            text = f"{PAGE}; in {winner.field!r} allowed: {winner.allowed}"
            return Hint(text, columns)
    missing = _what_is_missing(row, presets, asked)
    if is_table and not any(_share(preset, row)[0] for preset in presets):
        missing += ". If this table has no header, write one above its first row"
    return Hint(f"{PAGE}; {missing}", {})


def _is_a_value(name: str) -> bool:
    is_long = len(name) > MAX_NAME_CHARACTERS or len(name.split()) > MAX_NAME_WORDS
    return is_long or not isinstance(number_of(name), str) or name.rstrip().endswith((".", "!"))


def needs(preset: Preset) -> tuple[str, ...]:
    """The columns that a row of a preset has."""
    return preset.tells or ("prompt", "chosen", "rejected")


def _proposals(row: Row, presets: Sequence[Preset]) -> Iterator[dict[str, str]]:
    """Columns that may make the row readable, what is surest first."""
    for preset in presets:
        found = {own: _misspelt(own, row) for own in needs(preset)}
        if all(found.values()):
            yield _changed(found)
    labelled = [("labelled", columns) for columns in _labelled(row)]
    by_words = [("native", _columns_by_words(NATIVE, row)), *labelled]
    if two_answers(row) is None:
        by_words.append(("kto", _columns_by_words(KTO, row)))
    names = {preset.name for preset in presets}
    for form, found in by_words:
        if form in names and found:
            yield _changed(found)


def _changed(columns: Mapping[str, str | None]) -> dict[str, str]:
    return {own: name for own, name in columns.items() if name is not None and own != name}


def _misspelt(own: str, row: Row) -> str | None:
    """The column that is called so but for case, blanks, marks between words, or a letter."""
    if own in row:
        return own
    keys = {"_".join(words(name)): name for name in row if isinstance(name, str)}
    keys = {
        key: name
        for key, name in keys.items()
        if _digits(key) == _digits(own) and (key == own or not key.endswith(own))  # "unchosen"
    }
    near = get_close_matches("_".join(words(own)), keys, 1, CLOSE)
    return keys[near[0]] if near else None


def _digits(text: str) -> str:
    return "".join(filter(str.isdigit, text))


def _columns_by_words(preset: Preset, row: Row) -> dict[str, str | None]:
    """What a row calls a preset's columns, by words of their names; empty where one is missing.

    The prompt is then the only text that is left, or is not told apart from the answers.
    """
    found: dict[str, str | None] = {}
    for own in reversed(needs(preset)):  # answers first: "chosen_text" is no prompt
        taken = set(found.values())
        free = [name for name in row if isinstance(name, str) and name not in taken]
        found[own] = _misspelt(own, row) or next(
            (each for each in free if _WORDS[own] & set(words(each)) and _may_be(own, each, row)),
            None,
        )
    if found["prompt"] is None:
        left = [name for name in _texts(row) if name not in found.values()]
        found["prompt"] = left[0] if len(left) == 1 else None
    is_whole = all(name for own, name in found.items() if own != "prompt")
    return dict(reversed(found.items())) if is_whole else {}


def _may_be(own: str, name: str, row: Row) -> bool:
    """Whether a column may be what a word of its name says: an answer is no score."""
    said = set(words(name))
    if said & (_AGAINST if own in ("label", "winner") else _NEGATIONS):
        return False
    is_text = isinstance(row[name], str | list) and not _WORDS["score"] & set(words(name))
    return own in ("label", "winner") or is_text


def _texts(row: Row) -> list[str]:
    """The columns with texts or lists that are no numbers."""
    return [
        name
        for name, value in row.items()
        if isinstance(value, str | list) and isinstance(number_of(value), str | list)
    ]


def _labelled(row: Row) -> Iterator[dict[str, str | None]]:
    """Two answers in columns that differ in their side alone, and what may be a label of them."""
    answers = two_answers(row)
    if answers is None:
        return
    free = [name for name in row if isinstance(name, str) and name not in answers]
    texts = [name for name in free if name in _texts(row)]
    asked = [name for name in texts if _WORDS["prompt"] & set(words(name))] or texts
    for name in free:
        said = set(words(name))
        if _WORDS["winner"] & said and not said & (_AGAINST | _OF_ONE_SIDE):
            prompt = next((each for each in asked if each != name), None)
            yield {
                "prompt": prompt,
                "response_a": answers[0],
                "response_b": answers[1],
                "winner": name,
            }


def two_answers(row: Row) -> tuple[str, str] | None:
    """The columns of two answers, as "answer_1" and "answer_2": those with the longest texts."""
    named = {words(name): name for name in _texts(row)}
    found = []
    for parts, first in named.items():
        for place, part in enumerate(parts):
            for one, other in _SIDES:
                second = named.get((*parts[:place], other, *parts[place + 1 :]))
                if part == one and second is not None:
                    is_answer = bool(_WORDS["completion"] & set(parts))
                    found.append((is_answer, len(str(row[first])), (first, second)))
    return max(found)[2] if found else None


def _what_is_missing(row: Row, presets: Sequence[Preset], asked: str) -> str:
    """What a row that nothing reads seems to be, and what it lacks."""
    if asked == "auto" and (within := _rows_within(row)) is not None:
        return within
    texts, pair = _texts(row), two_answers(row)
    sides = [own for own in ("chosen", "rejected") if _column_by_word(own, row)]
    scores = [name for name in row if _is_score(name, row[name])]
    if asked == "auto" and len(sides) == 1 and pair is None:
        lacks = {"chosen": "rejected", "rejected": "chosen"}[sides[0]]
        which = "worse" if lacks == "rejected" else "better"
        return f"no column of this file is {lacks!r}, the {which} answer"
    if asked == "auto" and pair is not None:
        return (
            f"two answers ({', '.join(map(repr, pair))}), but no column that says which is better: "
            "winner, with a, b or tie"
        )
    if asked == "auto" and scores and texts:
        return (
            f"a text and a score ({scores[0]!r}) a row are pointwise data, and a pair needs two "
            "answers to one prompt: write those of one prompt in one row, as chosen the one of the "
            "higher score, as rejected the other"
        )
    if asked == "auto" and _is_demonstration(row, texts):
        return (
            "these rows have no label: one text or answer each is a prompt or a demonstration "
            "(preferences.demonstrations), not a preference between two answers"
        )
    near = max(presets, key=lambda preset: _share(preset, row))
    lacks_ = [name for name in needs(near) if name not in row]
    lacking = f"which lacks {', '.join(lacks_)}" if lacks_ else "whose values are of another type"
    return f"the nearest is {near.name} ({', '.join(needs(near))}), {lacking}"


def _rows_within(row: Row) -> str | None:
    """What is said of a row whose values, or lists of them, are rows themselves."""
    known = {name for preset in PRESETS for name in needs(preset)}
    for name, value in row.items():
        first = value[0] if isinstance(value, list) and value else value
        if isinstance(first, dict) and isinstance(first.get("row"), dict):  # the hub's API
            first = first["row"]
        if isinstance(first, dict) and len(known & {*first}) > 1:
            what = "a list of rows" if isinstance(value, list) else "an object"
            return (
                f"{name!r} holds {what} with {', '.join(sorted(known & {*first}))}: write each "
                "such row as an object of its own, one a line"
            )
    return None


def _column_by_word(field: str, row: Row) -> str | None:
    near = _misspelt(field, row)
    return near or next((name for name in _texts(row) if _WORDS[field] & set(words(name))), None)


def _is_score(name: Any, value: Any) -> bool:
    is_number = isinstance(number_of(value), int | float)
    return isinstance(name, str) and is_number and bool(_WORDS["score"] & set(words(name)))


def _is_demonstration(row: Row, texts: Sequence[str]) -> bool:
    """Whether nothing of a row is known but a prompt, an answer or a dialogue."""
    known = _WORDS["prompt"] | _WORDS["completion"] | _WORDS["dialogue"]
    return bool(texts) and all(known & set(words(name)) for name in texts)


def _share(preset: Preset, row: Row) -> tuple[float, bool]:
    return len(set(needs(preset)) & set(row)) / len(needs(preset)), preset is NATIVE
