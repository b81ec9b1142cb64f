"""From raw rows to parsed ones: which preset reads a row, renamed columns, rows that pair up.

A reader is of one source. It knows for each set of columns which preset reads it, so that telling
costs nothing for a row. Rows of unpaired data (KTO) wait until an answer of the other kind to the
same prompt is read, wherever in their file it is: what waits is held in memory, at most the file's
own texts.
"""

import dataclasses
import math
import re
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache, partial
from itertools import chain, islice
from typing import Any, Final

from trimtab.models.data.columns import (
    MAX_VALUES,
    Mapped,
    Row,
    is_against,
    list_of,
    list_of_messages,
    number_of,
    own_scores,
)
from trimtab.models.data.file_problems import MAX_UNKNOWN, UNPAIRED, FileNotes, hint, needs
from trimtab.models.data.files import MAX_COLUMNS, RawRow
from trimtab.models.data.formats import ParsedRow, parse_metadata, parse_row
from trimtab.models.data.messages import Render
from trimtab.models.data.presets import (
    BY_NAME,
    COLUMNS,
    FORMATS,
    METADATA,
    NATIVE,
    PRESETS,
    Preset,
)
from trimtab.models.data.problems import MAX_FOUND_CHARACTERS, Problem, shorten, typed
from trimtab.models.data.ranked_answers import ANSWERS
from trimtab.models.data.readers import Source

MAX_KNOWN: Final = 1000
"""Sets of columns for which is kept what reads them."""
NUM_COLUMNS_SHOWN, NUM_CHARACTERS_SHOWN = 12, 24
WRITTEN_BY_PYTHON: Final = re.compile(r"\s*\[\{'(role|content)'")
_NUMBERS: Final = frozenset({"rating", "votes_chosen", "votes_rejected", "votes_equal"})


class ColumnsError(ValueError):
    """An invalid `format` or `columns` of a source."""


def check_form(name: str, columns: Mapping[str, str]) -> list[str]:
    """What is wrong with a source's `format` and `columns`."""
    problems = []
    if name not in FORMATS:
        allowed = ", ".join(FORMATS) + _did_you_mean(name, FORMATS)
        problems.append(f"format: found {name!r}, allowed: {allowed}")
    for column in columns:
        if column not in COLUMNS:
            allowed = f"{', '.join(NATIVE.reads)}, {', '.join(METADATA)}, or a preset's column"
            allowed += _did_you_mean(column, COLUMNS)
            problems.append(f"columns: found {column!r}, allowed: {allowed}")
    theirs = list(columns.values())
    if len(set(theirs)) < len(theirs):
        problems.append(f"columns: found {theirs}, allowed: a column of its own for each")
    return problems


def _did_you_mean(name: str, known: Iterable[str]) -> str:
    near = get_close_matches(name, known, 1)
    return f"; did you mean {near[0]!r}?" if near else ""


@dataclass(frozen=True, slots=True)
class _Form:
    """A preset for rows of some columns.

    columns: what the row calls the preset's; named: what the user's file calls these and those of
    the source's `columns`. ignored: those that the preset does not read.
    """

    preset: Preset
    columns: dict[str, str]
    named: dict[str, str]
    ignored: tuple[str, ...]


def _find_forms(
    format_: str, source_columns: Mapping[str, str], keys: tuple[str, ...]
) -> list[_Form]:
    """The forms of a source's format and columns that a row with these columns may have."""
    forms = []
    names = tuple(name for name in keys if isinstance(name, str))
    for preset in PRESETS:
        is_wanted = preset.is_automatic if format_ == "auto" else preset.name == format_
        columns = preset.columns_in(names) if is_wanted else None
        if columns is not None:
            known = {*columns.values(), *preset.reads, *METADATA}
            others = {column: name for column, name in columns.items() if column != name}
            named = {column: source_columns.get(name, name) for column, name in others.items()}
            ignored = tuple(str(key) for key in keys if key not in known)
            forms.append(_Form(preset, others, {**source_columns, **named}, ignored))
    return forms


class RowReader:
    """Reads the rows of one source by its `format` and `columns`. Raises ColumnsError.

    length_problems: of a row that is too long, which then waits for no other half.
    given_up: files of which so many rows are of no known form, and none of one, that the rest need
    not be read.
    """

    def __init__(
        self,
        source: Source,
        render: Render | None = None,
        length_problems: Callable[[ParsedRow], Sequence[Problem]] = lambda _: (),
    ) -> None:
        if problems := check_form(source.format, source.columns):
            raise ColumnsError("; ".join(problems))
        self.render, self.length_problems = render, length_problems
        self.given_up: set[str] = set()
        self.format, self.columns = source.format, source.columns
        self._renamed = {theirs: name for name, theirs in source.columns.items() if name != theirs}
        self._forms_of = lru_cache(MAX_KNOWN)(partial(_find_forms, self.format, self.columns))
        self._compares = lru_cache(MAX_KNOWN)(own_scores)
        self._files: dict[str, FileNotes] = defaultdict(FileNotes)
        self._waiting: dict[tuple[str, str, bool], deque[ParsedRow]] = defaultdict(deque)

    @property
    def num_waiting(self) -> int:
        """Rows of unpaired data for which no other half was read."""
        return sum(map(len, self._waiting.values()))

    def parse(self, raw: RawRow, number: int = 0) -> ParsedRow:
        """Parse one row that could be read. number: among all rows of the source."""
        row = raw.value
        if not isinstance(row, dict):
            return parse_row(row, self.render)
        if (problem := self._too_many(row)) is not None:
            return ParsedRow(problems=[problem])
        seen = self._files[raw.file]
        row = self._named(row, raw.is_text, seen)
        form = self._form_of(row)
        if form is None:
            seen.num_unknown += 1
            seen.keep(raw)
            if seen.num_unknown == MAX_UNKNOWN and not seen.is_known:
                self.given_up.add(raw.file)
            return self._unknown(raw.value)
        seen.is_known = True
        return self._parse(raw, _renamed(row, form.columns), form, number)

    def _too_many(self, row: Row) -> Problem | None:
        """What is wrong with a row of so many values that each of them would be a problem."""
        if len(row) > MAX_COLUMNS:
            allowed = f"at most {MAX_COLUMNS:,}"
            return Problem("out_of_range", None, f"{len(row):,} fields", allowed)
        for name, value in row.items():
            if not isinstance(value, list | dict):
                continue
            lists = value.values() if isinstance(value, dict) else (value,)
            longest = max((len(part) for part in lists if isinstance(part, list)), default=0)
            if longest > MAX_VALUES and self._renamed.get(name, name) in COLUMNS:
                values, allowed = f"a list of {longest:,} values", f"at most {MAX_VALUES:,}"
                return Problem("out_of_range", name, values, allowed)
        return None

    def _parse(self, raw: RawRow, row: Row, form: _Form, number: int) -> ParsedRow:
        """Parse a row in the preset's columns, and note what can be judged over its file only."""
        seen = self._files[raw.file]
        mapped = Mapped({n: row[n] for n in METADATA if n in row}, columns=form.named)
        if form.preset.name in UNPAIRED:
            parsed = self._pair_up(row, raw, number, form.preset, mapped)
        elif form.preset.convert is None:
            parsed = parse_row(row, self.render)
        else:
            parsed = _convert(form.preset, row, self.render, mapped)
        ignored = (name for name in form.ignored if name not in mapped.reads)
        parsed.ignored = tuple(map(self._their, ignored))
        if seen.lacking != set():
            seen.note_lacking(raw, row, parsed, needs(form.preset))
        if raw.is_text:
            parsed.problems += _text_problems(row)
        _rename(parsed, mapped.columns)
        scores = ", ".join(map(self._their, sorted(mapped.reads))) if mapped.reads else ""
        seen.note(form.preset, parsed, mapped, scores)
        if self.format == "auto":
            seen.note_choices(raw.value, parsed, "winner" in self.columns)
        parsed.is_against_scores = self._is_against_scores(raw.value, form.preset, parsed)
        return parsed

    def _named(self, row: Row, is_text: bool, seen: FileNotes) -> Row:
        """A row with the names that the source's `columns` give, and without NaN."""
        if self.columns:
            seen.columns.update(row)
            named = {name: row[theirs] for name, theirs in self.columns.items() if theirs in row}
            row = {name: value for name, value in row.items() if name not in self.columns} | named
            row = {name: value for name, value in row.items() if name not in self._renamed}
        # what pandas writes for an absent value
        nans = [name for name, v in row.items() if type(v) is float and math.isnan(v)]
        row = row | dict.fromkeys(nans)
        return {name: _typed(name, value) for name, value in row.items()} if is_text else row

    def _their(self, name: str) -> str:
        """What the user's file calls one of Trimtab's columns."""
        return self.columns.get(name, name)

    def _form_of(self, row: Row) -> _Form | None:
        """The form of a row: the first preset that reads it."""
        for form in self._forms_of(tuple(row)):
            matches = form.preset.matches
            if matches is None or matches(_renamed(row, form.columns)):
                return form
        return None

    def _is_against_scores(self, row: Row, preset: Preset, parsed: ParsedRow) -> bool | None:
        """Whether a pair's own scores or margin prefer the answer that is labelled worse."""
        if parsed.problems or parsed.is_ranking or len(parsed.answer_fields) != 2:
            return None
        votes = getattr(preset.convert, "counts", None) or ()
        columns = tuple(name for name in row if name not in votes)
        return is_against(row, self._compares(columns, *parsed.answer_fields))

    def _unknown(self, row: Row) -> ParsedRow:
        parsed = ParsedRow()
        parse_metadata({name: row.get(name) for name in METADATA}, parsed)
        allowed = "a form of docs/how-to/own-preferences.md, or preferences.columns"
        if self.format != "auto":
            allowed = f"columns of format {self.format}: {', '.join(needs(BY_NAME[self.format]))}"
        parsed.refuse("unknown_format", None, f"fields {shorten(list(row))}", allowed)
        return parsed

    def _pair_up(
        self, row: Row, raw: RawRow, number: int, preset: Preset, mapped: Mapped
    ) -> ParsedRow:
        """A pair with a row that waits, or this row as one that waits."""
        parsed = _convert(preset, row, self.render, mapped)
        is_good = _is_good(row.get("label"), parsed)
        code = number_of(row.get("label"))
        if isinstance(code, int | float) and not isinstance(code, bool):
            mapped.code, mapped.is_told = code, is_good is not None
        problems = [*parsed.problems, *self.length_problems(parsed)]
        if raw.is_text:
            problems += _text_problems(row)
        if problems or is_good is None:  # what is refused is nobody's other half
            return parsed
        key = raw.file, parsed.prompt
        others = self._waiting.get((*key, not is_good))
        if not others:
            parsed = dataclasses.replace(parsed, lines=(raw.line,), rows=(number,), is_waiting=True)
            self._waiting[*key, is_good].append(parsed)
            return dataclasses.replace(parsed)  # what is returned has its fields renamed
        other, answer = others[0], parsed.answers[0]
        if answer.strip() == other.answers[0].strip():
            allowed = f"an answer other than that of line {other.lines[0]}, whose label differs"
            problem = Problem("identical_responses", "completion", shorten(answer), allowed)
            return dataclasses.replace(parsed, problems=[problem], answers=())
        others.popleft()
        if not others:
            del self._waiting[*key, not is_good]
        rows = [parsed, other] if is_good else [other, parsed]
        turns = [half.messages[1:] for half in rows]
        return dataclasses.replace(
            parsed,
            id=None,
            answers=tuple(half.answers[0] for half in rows),
            messages=(parsed.messages[0], *chain(*turns)) if all(turns) else (),
            answer_fields=("completion", "completion"),
            category=parsed.category or other.category,
            opinions=None,  # each annotator judged one answer
            lines=(*other.lines, raw.line),
            rows=(number, *other.rows) if is_good else (*other.rows, number),
            pairs=None,
            is_ranking=False,
        )

    def problems_of_files(self, *, is_whole: bool = True) -> dict[str, Problem]:
        """By file, what is wrong with all its rows: no known form, or a named column is in none.

        is_whole: all rows were read, so that a column that none has is known to be absent.
        """
        problems = {}
        for file, seen in self._files.items():
            absent = [name for name in self.columns.values() if name not in seen.columns]
            if seen.examples and (seen.lacking or not seen.is_known):
                problems[file] = self._describe(seen, absent)
            elif (problem := seen.problem(is_whole=is_whole)) is not None:
                problems[file] = problem
            elif absent and is_whole:
                allowed = f"columns of the file: {shorten(sorted(seen.columns))}"
                shown = f"preferences.columns names {', '.join(map(repr, absent))}"
                problems[file] = Problem("unknown_columns", None, shown, allowed)
        return problems

    def _describe(self, seen: FileNotes, absent: list[str]) -> Problem:
        """The one problem of a file that has rows, with what would make it readable."""
        raw = seen.examples[0]
        shown = [
            f"{_shown(str(name))}: {type(value).__name__} {_short(value)}"
            for name, value in islice(raw.value.items(), NUM_COLUMNS_SHOWN)
        ]
        more = len(raw.value) - len(shown)
        shown += [f"and {more} more"] if more > 0 else []
        text = f"columns {', '.join(shown) or 'none'}"
        if absent:
            text += f"; preferences.columns names {', '.join(map(repr, absent))}, which no row has"
        if lacking := sorted(seen.lacking or ()):
            text += f"; no row has {', '.join(map(repr, lacking))}"
        named = {name: theirs for name, theirs in self.columns.items() if theirs not in absent}
        renamed = {theirs: name for name, theirs in named.items()}
        row = {renamed.get(name, name): value for name, value in raw.value.items()}

        def try_columns(columns: dict[str, str]) -> list[Problem]:
            source = Source("", format=self.format, columns=named | columns)
            reader = RowReader(source, self.render)
            return min((reader.parse(example).problems for example in seen.examples), key=len)

        advice = hint(row, self.format, raw.is_text, try_columns)
        columns = tuple((named | advice.columns).items()) if advice.columns else ()
        return Problem("unknown_columns", None, text, advice.text, columns)


def _renamed(row: Row, columns: Mapping[str, str]) -> Row:
    """A row with its own columns under the names that a preset has for them."""
    if not columns:
        return row
    theirs = set(columns.values())
    others = {name: value for name, value in row.items() if name not in theirs}
    return others | {column: row[name] for column, name in columns.items()}


def _is_good(label: Any, parsed: ParsedRow) -> bool | None:
    known = {True: True, False: False, "true": True, "false": False, "1": True, "0": False}
    key = label.strip().lower() if isinstance(label, str) else label
    if isinstance(key, str | bool | int) and key in known:
        return known[key]
    if label is None:
        parsed.refuse("missing_field", "label", "nothing", "true or false")
    else:
        parsed.refuse("wrong_type", "label", typed(label), "true or false")
    return None


def _convert(preset: Preset, row: Row, render: Render | None, mapped: Mapped) -> ParsedRow:
    """Parse a row that a preset brings into Trimtab's columns; problems name the row's own."""
    assert preset.convert is not None
    preset.convert(row, mapped)
    parsed = parse_row(mapped.values, render, mapped.pairs)
    parsed.format = preset.name
    _rename(parsed, mapped.names)
    known = {problem.field for problem in mapped.problems}
    parsed.problems = mapped.problems + [p for p in parsed.problems if p.field not in known]
    return parsed


def _rename(parsed: ParsedRow, names: Mapping[str, str]) -> None:
    """Give problems and answers the names that the row itself has for its columns."""
    if not names:
        return
    parsed.answer_fields = tuple(_name(place, names) for place in parsed.answer_fields)
    parsed.problems = [
        dataclasses.replace(problem, field=problem.field and _name(problem.field, names))
        for problem in parsed.problems
    ]


def _name(place: str, names: Mapping[str, str]) -> str:
    """ "chosen[1].content" with the row's name for "chosen", or for "chosen[1]"."""
    for end in (place.find(".", 0), place.find("["), len(place)):
        if end > 0 and place[:end] in names:
            return names[place[:end]] + place[end:]
    return place


def _typed(name: str, value: Any) -> Any:
    """A cell of a table as what its column holds: a number, a list, true or false, or text."""
    if not isinstance(value, str):
        return value
    if name in _NUMBERS:
        return number_of(value)
    if name == "tie":
        return {"true": True, "1": True, "false": False, "0": False}.get(value.lower(), value)
    if name in ("votes", "opinions"):
        return list_of(value)
    answers = list_of(value)
    is_list = name in ANSWERS and isinstance(answers, list) and len(answers) > 1
    if is_list and all(isinstance(answer, str | dict | list) for answer in answers):
        return answers
    return list_of_messages(value)


def _text_problems(row: Row) -> list[Problem]:
    """Cells that hold a message list as Python writes it, which would be read as plain text."""
    return [
        Problem("wrong_type", name, shorten(value), 'a message list as JSON: [{"role": ...}]')
        for name, value in row.items()
        if name in COLUMNS and isinstance(value, str) and WRITTEN_BY_PYTHON.match(value)
    ]


def _shown(name: str) -> str:
    """A column's name: as it is, where it can be printed and is none of a damaged file."""
    return name if name.isprintable() and len(name) <= MAX_FOUND_CHARACTERS else shorten(name)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= NUM_CHARACTERS_SHOWN else f"{text[:NUM_CHARACTERS_SHOWN]}..."
