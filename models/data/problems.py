"""What can be wrong with preference data, and its report: all problems at once."""

import json
import os
import shlex
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

NUM_LISTED: Final = 20
NUM_DESCRIBED, NUM_KEPT = 10, 100
"""Of a row's problems: in a line for people, and in all."""
MAX_FOUND_CHARACTERS: Final = 120

REASONS: Final[dict[str, str]] = {
    "not_json": "the line is not one JSON value",
    "not_csv": "the line is no row of the table: its quotes, or its number of values",
    "not_an_object": "the row is not an object with named fields",
    "invalid_utf8": "bytes or characters that UTF-8 does not have",
    "unknown_format": "the fields match no known format, or more than one",
    "missing_field": "a field that the row's format needs is absent or null",
    "empty_field": "a field holds nothing but white space",
    "wrong_type": "a field holds another type of value",
    "out_of_range": "a value outside its range",
    "misplaced_field": "a field that has no meaning in the row's format",
    "no_common_prompt": "chosen and rejected do not start with the same dialogue",
    "bad_turns": "the turns of a message list are not in a usable order",
    "not_renderable": "the chat template refuses the messages",
    "identical_responses": "two answers are the same",
    "too_long": "prompt and answer together pass the limit",
    "duplicate_id": "an earlier row has the same id",
    "unknown_id": "an id or a line, in a review or in votes, that no pair has",
    "ambiguous_label": "which answer is better could be read in more ways than one",
    "tie": "neither answer was preferred",
    "ambiguous_columns": "which answer is better could be read in more ways than one in all rows",
    "unknown_columns": "no row of the file has a known form, or a named column",
    "missing_source": "nothing was found at the source",
    "unreadable_source": "the source cannot be read to its end",
    "empty_source": "the source has no rows",
}
"""Every reason a row (or a whole source: SOURCE_REASONS) can be refused for."""

SOURCE_REASONS: Final = frozenset(
    {"ambiguous_columns", "unknown_columns", "missing_source", "unreadable_source", "empty_source"}
)
"""Never quarantined: nothing of the source is usable, or how many rows are lost is unknown."""


def shorten(value: object, most: int = MAX_FOUND_CHARACTERS) -> str:
    """Return the value's repr, cut in the middle to at most that many characters."""
    text = repr(value)
    if len(text) <= most:
        return text
    half = most // 2 - 3
    return f"{text[:half]} ... {text[-half:]}"


def typed(value: object) -> str:
    """Return the value as `shorten` does, behind the name of its type."""
    return f"{type(value).__name__} {shorten(value)}"


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong: why, in which field (None: the whole row), found and allowed.

    columns: of a source, the names that make it readable: Trimtab's, and the source's own.
    """

    reason: str
    field: str | None
    found: str
    allowed: str
    columns: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        assert self.reason in REASONS, self.reason


@dataclass(frozen=True, slots=True)
class BadRow:
    """A refused row with what is wrong with it.

    line: from 1 (in Parquet and on the hub, the row's number); 0 for a whole source.
    row: the row as it was read, or the repr of its bytes where they are not UTF-8.
    """

    file: str
    line: int
    row: str
    problems: tuple[Problem, ...]

    @property
    def reason(self) -> str:
        """The first problem's reason, by which the row is counted."""
        return self.problems[0].reason

    def to_json(self) -> dict[str, Any]:
        """Return a line of the quarantine file: the first problem, others under `also`."""
        first, *others = [
            {"reason": p.reason, "field": p.field, "found": p.found, "allowed": p.allowed}
            for p in self.problems
        ]
        return {"file": self.file, "line": self.line, **first, "also": others, "row": self.row}

    def describe(self, *, as_option: bool = False) -> str:
        """Return one line for a person. as_option: columns are named by `--columns`."""
        place = f"{self.file}:{self.line}" if self.line else self.file
        parts = []
        for problem in self.problems[:NUM_DESCRIBED]:
            field = f" in field {problem.field!r}" if problem.field else ""
            part = f"{problem.reason}{field}: found {problem.found}, allowed: {problem.allowed}"
            if problem.columns:
                part += f"; name the columns: {columns_in_words(problem.columns, as_option)}"
            parts.append(part)
        if len(self.problems) > NUM_DESCRIBED:
            parts.append(f"and {len(self.problems) - NUM_DESCRIBED:,} more")
        return f"{place}: {'; '.join(parts)}"


def columns_in_words(columns: Sequence[tuple[str, str]], as_option: bool) -> str:
    """What to type that a source's columns are called so; the option takes no comma or `=`."""
    names = [name for pair in columns for name in pair]
    if as_option and all(name == name.strip() and not set(",=") & set(name) for name in names):
        named = ",".join(f"{name}={theirs}" for name, theirs in columns)
        return f"--columns {shlex.quote(named)}"
    return shlex.quote(f"preferences.columns={json.dumps(dict(columns), ensure_ascii=False)}")


def listed(bad_rows: Sequence[BadRow]) -> list[BadRow]:
    """The first NUM_LISTED rows, or fewer of them, so that the first of every reason is there."""
    firsts = {row.reason: index for index, row in reversed([*enumerate(bad_rows)])}
    order = dict.fromkeys([*firsts.values(), *range(len(bad_rows))])
    return [bad_rows[index] for index in sorted([*order][:NUM_LISTED])]


def first_of_each(bad_rows: Sequence[BadRow], *, as_option: bool = False) -> list[str]:
    """A line for each reason: its first row, and how many more there are."""
    first: dict[str, BadRow] = {}
    for row in bad_rows:
        first.setdefault(row.reason, row)
    counts = Counter(row.reason for row in bad_rows)
    more = {why: f" (and {n - 1:,} more: {why})" if n > 1 else "" for why, n in counts.items()}
    return [row.describe(as_option=as_option) + more[why] for why, row in first.items()]


class PreferenceDataError(ValueError):
    """All that is wrong with preference data, in one message.

    bad_rows: every refused row, in order of reading. The message lists the first 20 and the
    counts by reason.
    """

    subject = "preference data"

    def __init__(self, bad_rows: Sequence[BadRow], advice: str) -> None:
        self.bad_rows = list(bad_rows)
        self.advice = advice
        self.by_reason = Counter(row.reason for row in bad_rows)
        super().__init__(self._message())

    def __reduce__(self) -> tuple[Any, ...]:
        # exceptions are pickled by their message, which is not what __init__ takes
        return type(self), (self.bad_rows, self.advice)

    def _message(self) -> str:
        counts = ", ".join(f"{reason} {n}" for reason, n in self.by_reason.most_common())
        more = f" ({counts})" if counts else ""
        lines = [f"{self.subject}: {len(self.bad_rows)} refused{more}"]
        lines += [f"  {row.describe()}" for row in listed(self.bad_rows)]
        if len(self.bad_rows) > NUM_LISTED:
            lines.append(f"  ... and {len(self.bad_rows) - NUM_LISTED} more")
        lines.append(f"What to do: {self.advice}")
        return "\n".join(lines)


def advice_on(bad_rows: Sequence[BadRow], on_bad_rows: str) -> str | None:
    """What to do about refused rows; None if there are none, or reading goes on without them."""
    reasons = {row.reason for row in bad_rows}
    is_broken = not reasons.isdisjoint(SOURCE_REASONS)
    if not bad_rows or not (is_broken or on_bad_rows == "fail"):
        return None
    advice = "correct the sources" if is_broken else "correct the rows"
    if not is_broken:
        advice += ", or set on_bad_rows to 'quarantine' to go on without them"
    if "tie" in reasons:
        advice += "; set on_ties to 'drop' to leave ties out"
    return advice


def write_quarantine(path: str | os.PathLike[str], bad_rows: Sequence[BadRow]) -> int:
    """Write refused rows as JSON lines; return how many.

    Each holds file, line, reason, field, found, allowed, the row's other problems under `also`
    and the raw row as text.
    """
    with Path(path).open("w", encoding="utf-8") as stream:
        for row in bad_rows:
            stream.write(json.dumps(row.to_json(), ensure_ascii=False) + "\n")
    return len(bad_rows)


def length_problem(
    field: str,
    text: str,
    max_characters: int | None,
    max_tokens: int | None,
    count_tokens: Callable[[str], int] | None,
    *,
    of: str = "",
) -> Problem | None:
    """What is wrong with a text's length. of: what the text is, behind the count."""
    for count, limit, unit in (
        (len, max_characters, "characters"),
        (count_tokens, max_tokens, "tokens"),
    ):
        if count is not None and limit is not None and (length := count(text)) > limit:
            return Problem("too_long", field, f"{length} {unit}{of}", f"at most {limit} {unit}")
    return None


def raw_text(raw: bytes | dict[str, Any]) -> str:
    """Return a raw row as text: as it was where it is UTF-8, else the repr of its bytes."""
    if isinstance(raw, dict):
        return json.dumps(raw, default=repr)
    try:
        return raw.rstrip(b"\r\n").decode("utf-8")
    except UnicodeDecodeError:
        return repr(raw.rstrip(b"\r\n"))
