"""A reviewer's verdicts on pairs: JSON lines of `id`, `verdict` and a `note`, which may be null.

The page of the label audit writes such files. All that is wrong with one is reported at once.
"""

from collections.abc import Collection, Iterator, Sequence
from typing import Any, Final

from trimtab.models.data.files import RawRow, SourceError
from trimtab.models.data.problems import BadRow, PreferenceDataError, Problem, raw_text, shorten
from trimtab.models.data.readers import Source, read_source

VERDICTS: Final = ("keep", "flip", "drop", "unsure")
FIELDS: Final = ("id", "verdict", "note")
ADVICE: Final = (
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
    for raw in object_rows(source, f"an object with {', '.join(FIELDS)}", bad_rows):
        if problems := [*_field_problems(raw.value), *_id_problems(raw, known, places)]:
            bad_rows.append(refused(raw, problems))
        else:
            verdicts[raw.value["id"]] = raw.value["verdict"]
    if not verdicts and not bad_rows:
        problem = Problem("empty_source", None, "0 verdicts", "at least one")
        bad_rows.append(BadRow(source.label, 0, "", (problem,)))
    if bad_rows:
        raise ReviewError(bad_rows, ADVICE)
    return verdicts


def object_rows(source: Source, allowed: str, bad_rows: list[BadRow]) -> Iterator[RawRow]:
    """The rows of a source that are objects, which is what is `allowed`; of all others, and of a
    source that cannot be read to its end, what is wrong is added to `bad_rows`."""
    try:
        for raw in read_source(source, []):
            if raw.is_blank:
                continue
            problem = raw.problem
            if problem is None and not isinstance(raw.value, dict):
                problem = Problem("not_an_object", None, shorten(raw.value), allowed)
            if problem is None:
                yield raw
            else:
                bad_rows.append(refused(raw, [problem]))
    except SourceError as error:
        bad_rows.append(BadRow(error.file, error.line, "", (error.problem,)))


def refused(raw: RawRow, problems: Sequence[Problem]) -> BadRow:
    """A row with what is wrong with it."""
    return BadRow(raw.file, raw.line, raw_text(raw.raw), tuple(problems))


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
        if name not in FIELDS:
            yield Problem("misplaced_field", name, shorten(row[name]), ", ".join(FIELDS))
    for name in ("id", "verdict"):
        if row.get(name) is None:
            yield Problem("missing_field", name, "nothing", "a text")
        elif not isinstance(row[name], str):
            yield Problem("wrong_type", name, shorten(row[name]), "a text")
    if not isinstance(row.get("note"), str | None):
        yield Problem("wrong_type", "note", shorten(row["note"]), "a text or null")
    if isinstance(row.get("verdict"), str) and row["verdict"] not in VERDICTS:
        yield Problem("out_of_range", "verdict", shorten(row["verdict"]), ", ".join(VERDICTS))
