"""What the rows of a file show together: labels that cannot be told, columns of no known form.

A row by itself is read; whether its 1 is the first answer or a mark of a scale, or whether the best
answer comes first, only the other rows of its file say. Where no form reads the rows, advice says
what their columns could be: a proposal is tried on a row before it is made. What a preset needs is
derived from PRESETS; the words of column names stand here.
"""

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, Final

from trimtab.models.data.columns import Mapped, Row, number_of, words
from trimtab.models.data.files import RawRow
from trimtab.models.data.formats import ParsedRow
from trimtab.models.data.presets import KTO, KTO_MESSAGES, NATIVE, PRESETS, Preset
from trimtab.models.data.problems import Problem, shorten
from trimtab.models.data.ranked_answers import PLACED
from trimtab.models.data.two_answers import (
    NUMBERED,
    SIDES,
    code_of_choice,
    is_told_by_number,
    other_choice,
)

MAX_UNKNOWN: Final = 1000
NUM_EXAMPLES: Final = 5
UNPAIRED: Final = frozenset({KTO.name, KTO_MESSAGES.name})
_IN_ORDER: Final = ("native", "alpaca-ranking")
_BY_PLACE: Final = "by place"


@dataclass(slots=True)
class FileNotes:
    """What was seen of a file: whether a row's form was known, columns, and rows that were not.

    examples: rows that were not read. lacking: columns that no row of a known form has, though that
    needs them. forms: of good rows. ambiguous: the first problem of a row whose answers could be
    ordered in several ways, and its form. codes: numbers in a column of winners, and which column;
    told: those that named one; is_numbered: the answers' columns have numbers. scores: the columns
    that ordered the answers of a row. choices: codes in columns that say which answer is better,
    beside chosen and rejected. implicit, apart: rows of two texts that start with one prompt, and
    that do not.
    """

    is_known: bool = False
    num_unknown: int = 0
    columns: set[str] = field(default_factory=set)
    examples: list[RawRow] = field(default_factory=list)
    lacking: set[str] | None = None
    forms: set[str] = field(default_factory=set)
    ambiguous: tuple[str, Problem] | None = None
    codes: dict[float, str] = field(default_factory=dict)
    told: set[float] = field(default_factory=set)
    is_numbered: bool = False
    choices: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    scores: str = ""
    implicit: int = 0
    apart: int = 0

    def note(self, preset: Preset, parsed: ParsedRow, mapped: Mapped, scores: str) -> None:
        """Keep of a row what can be judged over its file only.

        scores: the columns that ordered its answers, as the file calls them.
        """
        problems = parsed.problems
        unclear = next((p for p in problems if p.reason == "ambiguous_label"), None)
        is_placed = parsed.is_ranking and preset.name in _IN_ORDER
        form = _BY_PLACE if is_placed or (unclear and preset.name == "ranked") else preset.name
        if unclear is not None:
            self.ambiguous = self.ambiguous or (form, unclear)
        elif is_placed and self.scores:
            allowed = f"{self.scores}, as earlier rows of the file have, or {PLACED}"
            parsed.problems.append(Problem("ambiguous_label", None, "no scores", allowed))
        if not parsed.problems:
            self.forms.add(form)
            if preset.name == "ranked":
                self.scores = self.scores or scores
        if mapped.code is not None and len(self.codes) < MAX_UNKNOWN:
            column = "label" if preset.name in UNPAIRED else "winner"
            self.codes[mapped.code] = mapped.columns.get(column, column)
            self.told |= {mapped.code} if mapped.is_told else set()
            self.is_numbered |= column == "label"
            self.is_numbered |= is_told_by_number([*parsed.answer_fields, ""])
        if parsed.format == "implicit":
            is_apart = any(problem.reason == "no_common_prompt" for problem in problems)
            self.apart += is_apart
            self.implicit += not is_apart

    def note_choices(self, row: Row, parsed: ParsedRow, is_winner_named: bool) -> None:
        """Keep what columns that are not read say of which answer is better.

        is_winner_named: the source says which column names the winner.
        """
        if not parsed.ignored:
            return
        if not is_winner_named and not parsed.problems:
            other = other_choice(row, parsed.ignored, parsed.answer_fields, parsed.is_tie)
            if other is not None and self.ambiguous is None:
                self.ambiguous = parsed.format, other
        if parsed.answer_fields == ("chosen", "rejected"):
            codes = ((name, code_of_choice(name, row.get(name))) for name in parsed.ignored)
            for name, code in codes:
                if code is not None:
                    self.choices[name].add(code)

    def note_lacking(self, raw: RawRow, row: Row, parsed: ParsedRow, needed: Sequence[str]) -> None:
        """Keep which of a form's columns no row so far has."""
        absent = {each.field or "" for each in parsed.problems if each.reason == "missing_field"}
        absent &= {*needed} - {*row}
        self.lacking = absent if self.lacking is None else self.lacking & absent
        if self.lacking:
            self.keep(raw)

    def keep(self, raw: RawRow) -> None:
        """Keep a row that was not read, as an example."""
        if len(self.examples) < NUM_EXAMPLES:
            self.examples.append(raw)

    def problem(self, *, is_whole: bool) -> Problem | None:
        """What only all rows show: their answers could be ordered in more ways than one."""
        if self.ambiguous is not None:
            form, problem = self.ambiguous
            if form in self.forms or not self.forms:
                return dataclasses.replace(problem, reason="ambiguous_columns")
        column = next(iter(self.codes.values()), None)
        if self.told and len(self.codes) > len(self.told):
            found = f"numbers that may be of a scale: {shorten(sorted(self.codes))}"
            allowed = NUMBERED if self.forms - UNPAIRED else "true and false, or 1 and 0"
            return Problem("ambiguous_columns", column, found, allowed)
        if is_whole and len(self.told) == 1 and not self.is_numbered:
            found = f"{min(self.told):g} in every row that names the winner by a number"
            return Problem("ambiguous_columns", column, found, NUMBERED)
        if unclear := [name for name, codes in self.choices.items() if len(codes) > 1]:
            codes = " and ".join(map(str, sorted(self.choices[unclear[0]])))
            allowed = (
                "chosen and rejected alone to say which answer is better; "
                "preferences.format=native if they do, whatever this column says"
            )
            return Problem(
                "ambiguous_columns", unclear[0], f"{codes} beside chosen and rejected", allowed
            )
        if self.scores and _BY_PLACE in self.forms:
            found = f"rows with {self.scores}, and before them rows without"
            allowed = f"{self.scores} in every row, or {PLACED}"
            return Problem("ambiguous_columns", self.scores, found, allowed)
        if self.implicit and self.apart > self.implicit:
            rows = self.apart + self.implicit
            found = f"no prompt; {self.apart:,} of {rows:,} rows start differently"
            allowed = 'a column with the prompt: preferences.columns={"prompt": "..."}'
            return Problem("unknown_columns", "prompt", found, allowed)
        return None


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
_OF_ONE_SIDE: Final = frozenset(side for pair in SIDES for side in pair)


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
            for one, other in SIDES:
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
