"""What the rows of a file show together: labels that cannot be told, columns of no known form.

A row by itself is read; whether its 1 is the first answer or a mark of a scale, or whether the best
answer comes first, only the other rows of its file say. Where no form reads the rows, advice says
what their columns could be: a proposal is tried on a row before it is made. What a preset needs is
derived from PRESETS; the words of column names stand here.
"""

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
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
    known_codes: those that named one; is_numbered: the answers' columns have numbers. scores: the
    columns that ordered the answers of a row. choices: codes in columns that say which answer is
    better, beside chosen and rejected. implicit, apart: rows of two texts that start with one
    prompt, and that do not.
    """

    is_known: bool = False
    num_unknown: int = 0
    columns: set[str] = field(default_factory=set)
    examples: list[RawRow] = field(default_factory=list)
    lacking: set[str] | None = None
    forms: set[str] = field(default_factory=set)
    ambiguous: tuple[str, Problem] | None = None
    codes: dict[float, str] = field(default_factory=dict)
    known_codes: set[float] = field(default_factory=set)
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
            parsed.refuse("ambiguous_label", None, "no scores", allowed)
        if not parsed.problems:
            self.forms.add(form)
            if preset.name == "ranked":
                self.scores = self.scores or scores
        if mapped.code is not None and len(self.codes) < MAX_UNKNOWN:
            column = "label" if preset.name in UNPAIRED else "winner"
            self.codes[mapped.code] = mapped.columns.get(column, column)
            self.known_codes |= {mapped.code} if mapped.is_told else set()
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
            for name in parsed.ignored:
                if (code := code_of_choice(name, row.get(name))) is not None:
                    self.choices[name].add(code)

    def note_lacking(self, raw: RawRow, row: Row, parsed: ParsedRow, needed: Sequence[str]) -> None:
        """Keep which of a form's columns no row so far has."""
        absent = {p.field or "" for p in parsed.problems if p.reason == "missing_field"}
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
        if self.known_codes and len(self.codes) > len(self.known_codes):
            values = f"numbers that may be of a scale: {shorten(sorted(self.codes))}"
            allowed = NUMBERED if self.forms - UNPAIRED else "true and false, or 1 and 0"
            return Problem("ambiguous_columns", column, values, allowed)
        if is_whole and len(self.known_codes) == 1 and not self.is_numbered:
            values = f"{min(self.known_codes):g} in every row that names the winner by a number"
            return Problem("ambiguous_columns", column, values, NUMBERED)
        if unclear := [name for name, codes in self.choices.items() if len(codes) > 1]:
            codes = " and ".join(map(str, sorted(self.choices[unclear[0]])))
            values = f"{codes} beside chosen and rejected"
            allowed = (
                "chosen and rejected alone to say which answer is better; "
                "preferences.format=native if they do, whatever this column says"
            )
            return Problem("ambiguous_columns", unclear[0], values, allowed)
        if self.scores and _BY_PLACE in self.forms:
            values = f"rows with {self.scores}, and before them rows without"
            allowed = f"{self.scores} in every row, or {PLACED}"
            return Problem("ambiguous_columns", self.scores, values, allowed)
        if self.implicit and self.apart > self.implicit:
            rows = self.apart + self.implicit
            values = f"no prompt; {self.apart:,} of {rows:,} rows start differently"
            allowed = 'a column with the prompt: preferences.columns={"prompt": "..."}'
            return Problem("unknown_columns", "prompt", values, allowed)
        return None


PAGE: Final = "a form of docs/how-to/own-preferences.md"
CLOSE: Final = 0.85
"""How alike a misspelt name is: 1 is the same. "answer2" is no "answers": digits must agree."""
MAX_NAMES, MAX_NAME_SEARCHED = 200, 1000
MAX_NAME_CHARACTERS, MAX_NAME_WORDS = 60, 6
"""Names that are longer are the values of a row."""
_ANSWER: Final = "response answer completion output reply text candidate option generation summary"
_WORDS: Final[dict[str, frozenset[str]]] = {
    column: frozenset(text.split())
    for column, text in {
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


def hint(row: Row, form: str, is_table: bool, try_columns: Try) -> Hint:
    """Advice about a row of no known form.

    form: the source's `format`. is_table: the row is of a CSV file. try_columns:
    what is wrong with the row if its columns are named so.
    """
    names = [name for name in row if isinstance(name, str) and len(name) <= MAX_NAME_SEARCHED]
    names = names[:MAX_NAMES]
    row = {name: row[name] for name in names}
    if is_table and any(map(_is_a_value, names)):
        text = "a first row with the names of the columns, where this file seems to have its first "
        return Hint(f"{text}pair: write one above it, such as prompt,chosen,rejected", {})
    presets = [preset for preset in PRESETS if form in ("auto", preset.name)]
    proposals = [
        {column: name for column, name in columns.items() if name and name != column}
        for columns in _proposals(row, presets)
    ]
    tried = [(columns, try_columns(columns)) for columns in proposals if columns]
    for columns, problems in tried:
        if not problems:
            return Hint(PAGE, columns)
    for columns, problems in tried:
        if len(problems) == 1 and problems[0].field == columns.get("winner"):
            text = f"{PAGE}; in {problems[0].field!r} allowed: {problems[0].allowed}"
            return Hint(text, columns)
    missing = _what_is_missing(row, presets, form)
    if is_table and not any(_share(preset, row)[0] for preset in presets):
        missing += ". If this table has no header, write one above its first row"
    return Hint(f"{PAGE}; {missing}", {})


def _is_a_value(name: str) -> bool:
    is_long = len(name) > MAX_NAME_CHARACTERS or len(name.split()) > MAX_NAME_WORDS
    return is_long or not isinstance(number_of(name), str) or name.rstrip().endswith((".", "!"))


def needs(preset: Preset) -> tuple[str, ...]:
    """The columns that a row of a preset has."""
    return preset.tells or ("prompt", "chosen", "rejected")


def _proposals(row: Row, presets: Sequence[Preset]) -> Iterator[dict[str, str | None]]:
    """What the row may call the columns of a preset, what is surest first."""
    for preset in presets:
        columns = {column: _misspelt(column, row) for column in needs(preset)}
        if all(columns.values()):
            yield columns
    names = {preset.name for preset in presets}
    if "native" in names:
        yield _columns_by_words(NATIVE, row)
    if "labelled" in names:
        yield from _labelled(row)
    if "kto" in names and two_answers(row) is None:
        yield _columns_by_words(KTO, row)


def _misspelt(column: str, row: Row) -> str | None:
    """The column that is called so but for case, blanks, marks between words, or a letter."""
    if column in row:
        return column
    keys = {"_".join(words(name)): name for name in row}
    keys = {
        key: name
        for key, name in keys.items()
        if _digits(key) == _digits(column)
        and (key == column or not key.endswith(column))  # "unchosen"
    }
    near = get_close_matches("_".join(words(column)), keys, 1, CLOSE)
    return keys[near[0]] if near else None


def _digits(text: str) -> str:
    return "".join(filter(str.isdigit, text))


def _columns_by_words(preset: Preset, row: Row) -> dict[str, str | None]:
    """What a row calls a preset's columns, by words of their names; empty where one is missing.

    The prompt is then the only text that is left, or is not told apart from the answers.
    """
    columns: dict[str, str | None] = {}
    for column in reversed(needs(preset)):  # answers first: "chosen_text" is no prompt
        free = [name for name in row if name not in columns.values()]
        likely = (name for name in free if _may_be(column, name, row))
        columns[column] = _misspelt(column, row) or next(likely, None)
    if columns["prompt"] is None:
        left = [name for name in _texts(row) if name not in columns.values()]
        columns["prompt"] = left[0] if len(left) == 1 else None
    is_whole = all(name for column, name in columns.items() if column != "prompt")
    return dict(reversed(columns.items())) if is_whole else {}


def _may_be(column: str, name: str, row: Row) -> bool:
    """Whether a column may be what a word of its name says: an answer is no score."""
    parts, is_label = set(words(name)), column in ("label", "winner")
    if not _WORDS[column] & parts or parts & (_AGAINST if is_label else _NEGATIONS):
        return False
    return is_label or (isinstance(row[name], str | list) and not _WORDS["score"] & parts)


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
    free = [name for name in row if name not in answers]
    texts = [name for name in _texts(row) if name in free]
    prompts = [name for name in texts if _WORDS["prompt"] & set(words(name))] or texts
    columns = dict(zip(("response_a", "response_b"), answers, strict=True))
    for name in free:
        if _may_be("winner", name, row) and not _OF_ONE_SIDE & set(words(name)):
            prompt = next((text for text in prompts if text != name), None)
            yield {"prompt": prompt, **columns, "winner": name}


def two_answers(row: Row) -> tuple[str, str] | None:
    """The columns of two answers, as "answer_1" and "answer_2": those with the longest texts."""
    named = {words(name): name for name in _texts(row)}
    pairs = []
    for parts, first in named.items():
        for place, part in enumerate(parts):
            for side, other in SIDES:
                second = named.get((*parts[:place], other, *parts[place + 1 :]))
                if part == side and second is not None:
                    is_answer = bool(_WORDS["completion"] & set(parts))
                    pairs.append((is_answer, len(str(row[first])), (first, second)))
    return max(pairs)[2] if pairs else None


def _what_is_missing(row: Row, presets: Sequence[Preset], form: str) -> str:
    """What a row that nothing reads seems to be, and what it lacks."""
    if form == "auto" and (guess := _what_it_is(row)) is not None:
        return guess
    near = max(presets, key=lambda preset: _share(preset, row))
    missing = [name for name in needs(near) if name not in row]
    lacks = f"which lacks {', '.join(missing)}" if missing else "whose values are of another type"
    return f"the nearest is {near.name} ({', '.join(needs(near))}), {lacks}"


def _what_it_is(row: Row) -> str | None:
    """Which kind of data a row seems to be of, that nothing reads."""
    if (rows := _rows_within(row)) is not None:
        return rows
    texts, pair = _texts(row), two_answers(row)
    if pair is not None:
        return (
            f"two answers ({', '.join(map(repr, pair))}), but no column that says which is better: "
            "winner, with a, b or tie"
        )
    lacking = [side for side in ("chosen", "rejected") if _column_by_word(side, row) is None]
    if len(lacking) == 1:
        side = "worse" if lacking[0] == "rejected" else "better"
        return f"no column of this file is {lacking[0]!r}, the {side} answer"
    scores = [name for name, value in row.items() if _is_score(name, value)]
    if scores and texts:
        return (
            f"a text and a score ({scores[0]!r}) a row are pointwise data, and a pair needs two "
            "answers to one prompt: write those of one prompt in one row, as chosen the one of the "
            "higher score, as rejected the other"
        )
    known = _WORDS["prompt"] | _WORDS["completion"] | _WORDS["dialogue"]
    if texts and all(known & set(words(name)) for name in texts):
        return (
            "these rows have no label: one text or answer each is a prompt or a demonstration "
            "(preferences.demonstrations), not a preference between two answers"
        )
    return None


def _rows_within(row: Row) -> str | None:
    """What is said of a row whose values, or lists of them, are rows themselves."""
    known = {name for preset in PRESETS for name in needs(preset)}
    for name, value in row.items():
        first = value[0] if isinstance(value, list) and value else value
        if isinstance(first, dict) and isinstance(first.get("row"), dict):  # the hub's API
            first = first["row"]
        if isinstance(first, dict) and len(known & {*first}) > 1:
            kind = "a list of rows" if isinstance(value, list) else "an object"
            return (
                f"{name!r} holds {kind} with {', '.join(sorted(known & {*first}))}: write each "
                "such row as an object of its own, one a line"
            )
    return None


def _column_by_word(column: str, row: Row) -> str | None:
    likely = (name for name in _texts(row) if _WORDS[column] & set(words(name)))
    return _misspelt(column, row) or next(likely, None)


def _is_score(name: str, value: Any) -> bool:
    return isinstance(number_of(value), int | float) and bool(_WORDS["score"] & set(words(name)))


def _share(preset: Preset, row: Row) -> tuple[float, bool]:
    return len(set(needs(preset)) & set(row)) / len(needs(preset)), preset is NATIVE
