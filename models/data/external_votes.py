"""What a user says of pairs, in files of any kind that pairs may have: votes, and a review.

A row of votes names its pair by `id` or, for pairs without one, by `line`: its number in the file
of pairs or, where these are of several files, "file:line", as the audit's `source` has it. It holds
`chosen_score` and `rejected_score`, or one `vote`, positive where the label is right. Other columns
are not read. A row of a review, which the audit's page writes, has `id`, `verdict` and a `note`,
which may be null. All that is wrong with a file is reported at once.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Final

from trimtab.models.data.columns import number_of
from trimtab.models.data.files import RawRow, SourceError
from trimtab.models.data.problems import BadRow, PreferenceDataError, Problem, shorten
from trimtab.models.data.readers import Source, read_source

VERDICTS: Final = ("keep", "flip", "drop", "unsure")
REVIEW_FIELDS: Final = ("id", "verdict", "note")
REVIEW_ADVICE: Final = (
    "correct the lines, or download the review again from the audit's page of the same pairs"
)


class ReviewError(PreferenceDataError):
    """All that is wrong with a review."""

    subject = "review"


def read_review(source: Source, known: Collection[str] | None) -> dict[str, str]:
    """Each reviewed pair's verdict by id: keep, flip, drop or unsure.

    known: ids of the pairs there are; none: not known yet, and any is taken. Raises ReviewError for
    any other id, a second verdict on a pair, a line of another form, or a source without lines.
    """
    verdicts: dict[str, str] = {}
    places: dict[str, str] = {}
    bad_rows: list[BadRow] = []
    for raw in object_rows(source, f"an object with {', '.join(REVIEW_FIELDS)}", bad_rows):
        if problems := [*_field_problems(raw.value), *_id_problems(raw, known, places)]:
            bad_rows.append(raw.refused(problems))
        else:
            verdicts[raw.value["id"]] = raw.value["verdict"]
    if not verdicts and not bad_rows:
        error = SourceError(source.label, 0, "empty_source", "0 verdicts", "at least one")
        bad_rows.append(error.refused())
    if bad_rows:
        raise ReviewError(bad_rows, REVIEW_ADVICE)
    return verdicts


def object_rows(source: Source, allowed: str, bad_rows: list[BadRow]) -> Iterator[RawRow]:
    """The rows of a source that are objects, which is what is `allowed`; of all others, and of a
    source that cannot be read to its end, what is wrong is added to `bad_rows`."""
    try:
        for raw in read_source(source, []):
            if raw.is_blank:
                continue
            if raw.problem is not None:
                bad_rows.append(raw.refused([raw.problem]))
            elif isinstance(raw.value, dict):
                yield raw
            else:
                problem = Problem("not_an_object", None, shorten(raw.value), allowed)
                bad_rows.append(raw.refused([problem]))
    except SourceError as error:
        bad_rows.append(error.refused())


def _id_problems(
    raw: RawRow, known: Collection[str] | None, places: dict[str, str]
) -> Iterator[Problem]:
    """What is wrong with a line's id; a pair that is there is noted in `places` by it."""
    if isinstance(identifier := raw.value.get("id"), str):
        if known is not None and identifier not in known:
            yield Problem("unknown_id", "id", shorten(identifier), "an id of this run's pairs")
        elif identifier in places:
            allowed = f"a pair other than that of {places[identifier]}"
            yield Problem("duplicate_id", "id", shorten(identifier), allowed)
        else:
            places[identifier] = f"{raw.file}:{raw.line}"


def _field_problems(row: dict[str, Any]) -> Iterator[Problem]:
    """What is wrong with a line's fields, each for itself."""
    for name in row:
        if name not in REVIEW_FIELDS:
            yield Problem("misplaced_field", name, shorten(row[name]), ", ".join(REVIEW_FIELDS))
    for name in ("id", "verdict"):
        if row.get(name) is None:
            yield Problem("missing_field", name, "nothing", "a text")
        elif not isinstance(row[name], str):
            yield Problem("wrong_type", name, shorten(row[name]), "a text")
    if not isinstance(row.get("note"), str | None):
        yield Problem("wrong_type", "note", shorten(row["note"]), "a text or null")
    if isinstance(row.get("verdict"), str) and row["verdict"] not in VERDICTS:
        yield Problem("out_of_range", "verdict", shorten(row["verdict"]), ", ".join(VERDICTS))


# Differences of scores up to this, and their squares, are finite.
LARGEST: Final = 1e30
SCORES: Final = ("chosen_score", "rejected_score")
VOTE: Final = "vote"
ADVICE: Final = "correct the lines; a pair that has no row in the file gets no vote from it"


class VotesError(PreferenceDataError):
    """All that is wrong with a file of votes."""

    subject = "votes"


class VotedPairs:
    """The pairs that a file may vote on, by id and by line.

    num_set_aside: further rows that were read and gave no pair of a split, about which a file may
    speak.
    """

    def __init__(self, rows: Iterable[Mapping[str, Any]], num_set_aside: int = 0) -> None:
        """rows: pairs with `id` and `source`."""
        self.num_set_aside = num_set_aside
        self.ids: set[str] = set()
        self.by_line: dict[str, list[str]] = {}
        for row in rows:
            self.ids.add(row["id"])
            file, _, lines = (row.get("source") or "").rpartition(":")
            for line in lines.split(",") if file else ():
                self.by_line.setdefault(f"{file}:{line}", []).append(row["id"])
        self.files = {place.rpartition(":")[0] for place in self.by_line}

    def place_of(self, line: int | str) -> str:
        """`line` as "file:line"."""
        return f"{min(self.files, default='')}:{line}" if isinstance(line, int) else line


def read_votes(source: Source, pairs: VotedPairs | None = None) -> dict[str, tuple[float, float]]:
    """The scores of the better and of the worse answer of each pair voted on, by the pair's id.

    Of one `vote` the second is 0. pairs: None: not known yet, and any is taken. Raises VotesError:
    for a pair that there is not, unless these are of no more rows than were set aside; for a second
    vote on a pair, numbers that are not finite, lines of another form, a source without a vote. A
    row whose scores are empty abstains.
    """
    bad_rows: list[BadRow] = []
    unknown: list[BadRow] = []
    # The rows that unknown pairs are of: all pairs of a ranking have its id, and then # and more.
    strangers: set[str] = set()
    votes: dict[str, tuple[float, float]] = {}
    places: dict[str, str] = {}
    for raw in object_rows(source, "an object with id or line, and scores or a vote", bad_rows):
        row = _numbered(raw)
        scores, problems = _scores(row)
        pair = _pair_of(row, pairs)
        if isinstance(pair, Problem):
            problems.append(pair)
        elif pair in places:
            allowed = f"a pair other than that of {places[pair]}"
            problems.append(Problem("duplicate_id", _key_of(row), shorten(pair), allowed))
        else:
            places[pair] = f"{raw.file}:{raw.line}"
            if scores is not None:
                votes[pair] = scores
        if problems and all(problem.reason == "unknown_id" for problem in problems):
            unknown.append(raw.refused(problems))
            strangers.add(str(row[_key_of(row)]).partition("#")[0])
        elif problems:
            bad_rows.append(raw.refused(problems))
    if pairs is not None and len(strangers) > pairs.num_set_aside:
        bad_rows += unknown
    if not votes and not bad_rows:
        count = f"{len(unknown)} votes, none of them on a pair of this run"
        error = SourceError(source.label, 0, "empty_source", count, "at least one")
        bad_rows.append(error.refused())
    if bad_rows:
        raise VotesError(sorted(bad_rows, key=lambda row: (row.file, row.line)), ADVICE)
    return votes


def _numbered(raw: RawRow) -> dict[str, Any]:
    """A row with numbers for text that is one, and with a text for an `id` that is a number."""
    row: dict[str, Any] = raw.value
    if raw.is_text:
        row = {n: number_of(v) if n in (*SCORES, VOTE, "line") else v for n, v in row.items()}
    return {**row, "id": str(row["id"])} if type(row.get("id")) is int else row


def _pair_of(row: Mapping[str, Any], pairs: VotedPairs | None) -> str | Problem:
    """The id of the pair that a row names, or what is wrong with it."""
    key = _key_of(row)
    value = row.get(key)
    if value is None:
        return Problem("missing_field", key, "nothing", "a pair's id, or its line")
    if key == "id" and not isinstance(value, str):
        return Problem("wrong_type", key, shorten(value), "a text")
    if key == "line" and (isinstance(value, bool) or not isinstance(value, int | str)):
        return Problem("wrong_type", key, shorten(value), 'a whole number, or a text "file:line"')
    if pairs is None:
        return f"{key} {value}"
    if key == "line" and isinstance(value, int) and len(pairs.files) > 1:
        allowed = f'a text "file:line", as the pairs are of {len(pairs.files)} files'
        return Problem("wrong_type", key, shorten(value), allowed)
    if key == "id":
        ids, allowed = [value] if value in pairs.ids else [], "an id of this run's pairs"
    else:
        ids = pairs.by_line.get(pairs.place_of(value), [])
        allowed = "a line that a pair of this run was read from"
    if len(ids) > 1:
        count = f"{shorten(value)}, of which there are {len(ids)} pairs"
        return Problem("out_of_range", key, count, "the id of one of them")
    return str(ids[0]) if ids else Problem("unknown_id", key, shorten(value), allowed)


def _key_of(row: Mapping[str, Any]) -> str:
    return "id" if row.get("id") is not None or row.get("line") is None else "line"


def _scores(row: Mapping[str, Any]) -> tuple[tuple[float, float] | None, list[Problem]]:
    """A row's two scores, None where all are empty: it abstains; and what is wrong with them."""
    names = [name for name in (*SCORES, VOTE) if name in row]
    if names not in (list(SCORES), [VOTE]):
        allowed = f"{' and '.join(SCORES)}, or {VOTE}"
        return None, [Problem("missing_field", None, ", ".join(names) or "none of them", allowed)]
    if all(_is_empty(row[name]) for name in names):
        return None, []
    problems = []
    for name in names:
        value = row[name]
        if _is_empty(value) or isinstance(value, bool) or not isinstance(value, int | float):
            shown = "nothing" if _is_empty(value) else shorten(value)
            problems.append(Problem("wrong_type", name, shown, "a number"))
        elif not math.isfinite(value) or abs(value) > LARGEST:
            allowed = f"a finite number, at most {LARGEST:g} in size"
            problems.append(Problem("out_of_range", name, shorten(value), allowed))
    if problems:
        return None, problems
    return (float(row[names[0]]), float(row[names[1]]) if len(names) == 2 else 0.0), []


def _is_empty(value: Any) -> bool:
    """What tables have in a cell without a value: null, an empty text, NaN."""
    return value is None or value == "" or (isinstance(value, float) and math.isnan(value))
