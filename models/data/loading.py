"""Loading preferences: read, parse, check all rows, report everything that is wrong at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Literal, get_args

from trimtab.models.data.files import RawRow, SourceError
from trimtab.models.data.formats import ParsedRow
from trimtab.models.data.messages import GIVEN, Render
from trimtab.models.data.problems import (
    NUM_KEPT,
    BadRow,
    PreferenceDataError,
    Problem,
    advice_on,
    length_problem,
)
from trimtab.models.data.ranked_answers import MAX_ANSWERS
from trimtab.models.data.readers import Source, read_source
from trimtab.models.data.records import PairMessages, PreferencePair
from trimtab.models.data.row_account import PreferenceReport, RowCounts, content_digest
from trimtab.models.data.row_fields import RowFields, further_fields, plain
from trimtab.models.data.row_reader import RowReader, check_form

OnBadRows = Literal["fail", "quarantine"]
OnTies = Literal["fail", "drop"]


class PreferenceOptionError(ValueError):
    """An invalid argument of `load_preferences`."""


@dataclass(frozen=True)
class TokenLimit:
    """The most tokens of a prompt and any one of its answers together, and how they are counted."""

    most: int
    count: Callable[[str], int]


def load_preferences(
    sources: Sequence[Source],
    *,
    on_bad_rows: OnBadRows = "fail",
    max_characters: int | None = None,
    on_ties: OnTies = "fail",
    render: Render | None = None,
    max_tokens: TokenLimit | None = None,
    fields: RowFields | None = None,
) -> tuple[list[PreferencePair], list[BadRow], PreferenceReport]:
    """Read preference pairs from all sources.

    on_bad_rows: "fail" raises PreferenceDataError with all of them, "quarantine" returns them.
    on_ties: rows with `tie: true` are bad rows, or dropped and counted. render: prompt text of
    message lists (see `chat_renderer`; None: HH-RLHF text). max_characters, max_tokens: of a
    prompt and any one of its answers together. fields: takes what pairs do not hold of their rows.

    Raises PreferenceDataError in both modes where a source is missing, empty or unreadable, or
    where no usable row is left; PreferenceOptionError for arguments.
    """
    _check_options(sources, on_bad_rows, on_ties, max_characters, max_tokens)
    loader = _Loader(on_ties == "drop", render, max_characters, max_tokens, fields=fields)
    for source in sources:
        loader.read(source)
    bad_rows, report = loader.bad_rows, loader.report
    advice = advice_on(bad_rows, on_bad_rows)
    if advice is not None:
        raise PreferenceDataError(bad_rows, advice)
    report.describe_pairs(loader.pairs)
    report.check()
    if not loader.pairs:
        advice = "correct the rows, or give other sources: no usable row left of "
        raise PreferenceDataError(bad_rows, advice + read_in_words(report))
    return loader.pairs, bad_rows, report


@dataclass(frozen=True)
class Look:
    """What a preview of sources found. is_whole: every row was read."""

    pairs: list[PreferencePair]
    bad_rows: list[BadRow]
    report: PreferenceReport
    is_whole: bool


def look_through(
    sources: Sequence[Source], *, on_ties: OnTies = "fail", max_rows: int | None = None
) -> Look:
    """Read the first rows of each source, or all, and refuse none of them.

    As `load_preferences` without a tokenizer: message lists are HH-RLHF text, and how long rows
    are is not looked at. Raises PreferenceOptionError for sources of one name.
    """
    _check_options(sources, "fail", on_ties, None, None)
    loader = _Loader(on_ties == "drop", max_rows=max_rows)
    for source in sources:
        loader.read(source)
    loader.report.describe_pairs(loader.pairs)
    return Look(loader.pairs, loader.bad_rows, loader.report, loader.is_whole)


def read_in_words(report: PreferenceReport) -> str:
    """Where the rows went that were read, where none was used."""
    rows = report.total
    reasons = ", ".join(f"{why} {n}" for why, n in report.bad_rows_by_reason.most_common())
    places = {
        f"refused ({reasons})": rows.quarantined,
        "ties dropped": rows.ties_dropped,
        "of one answer, and none of the other kind to the same prompt": rows.unpaired,
    }
    parts = [f"{count:,} {place}" for place, count in places.items() if count]
    return f"{rows.read:,} rows read" + (f": {', '.join(parts)}" if parts else "")


def _check_options(
    sources: Sequence[Source],
    on_bad_rows: str,
    on_ties: str,
    max_characters: int | None,
    max_tokens: TokenLimit | None,
) -> None:
    problems: list[str] = []
    if not sources:
        problems.append("sources: found none, allowed: at least one")
    for source in sources:
        problems += check_form(source.format, source.columns)
    keys = Counter(source.label for source in sources)
    repeated = [key for key, count in keys.items() if count > 1]
    if repeated:
        problems.append(f"sources: found {repeated} more than once, allowed: different names")
    for name, value, kind in (
        ("on_bad_rows", on_bad_rows, OnBadRows),
        ("on_ties", on_ties, OnTies),
    ):
        if value not in get_args(kind):
            problems.append(f"{name}: found {value!r}, allowed: {get_args(kind)}")
    tokens = None if max_tokens is None else max_tokens.most
    for name, limit in (("max_characters", max_characters), ("max_tokens", tokens)):
        if limit is not None and limit < 1:
            problems.append(f"{name}: found {limit}, allowed: 1 or more, or None")
    if problems:
        raise PreferenceOptionError("load_preferences: " + "; ".join(problems))


@dataclass
class _Loader:
    """The state of one `load_preferences`: what was used and refused so far, and the ids seen."""

    drop_ties: bool
    render: Render | None = None
    max_characters: int | None = None
    max_tokens: TokenLimit | None = None
    max_rows: int | None = None
    fields: RowFields | None = None
    is_whole: bool = True
    pairs: list[PreferencePair] = field(default_factory=list)
    bad_rows: list[BadRow] = field(default_factory=list)
    report: PreferenceReport = field(default_factory=PreferenceReport)
    ids: set[str] = field(default_factory=set)
    repeats: dict[str, int] = field(default_factory=dict)

    def read(self, source: Source) -> None:
        """Take in all rows of a source."""
        counts = self.report.by_source.setdefault(source.label, RowCounts())
        reader = RowReader(source, self.render, self._length_problems)
        try:
            rows = read_source(source, self.report.ignored_files)
            for raw in islice(rows, self.max_rows):
                if not raw.is_blank and raw.file not in reader.given_up:
                    counts.read += 1
                    self._take(raw, source, counts, reader)
            is_whole = self.max_rows is None or next(rows, None) is None
            self.is_whole &= is_whole
            if counts.read == 0 and is_whole:
                raise SourceError(source.label, 0, "empty_source", "0 rows", "at least one row")
            self._refuse_files(reader, is_whole=is_whole)
        except SourceError as error:
            self.bad_rows.append(error.refused())
        counts.unpaired = reader.num_waiting

    def _refuse_files(self, reader: RowReader, *, is_whole: bool) -> None:
        """Put one problem in place of those that follow from a file's columns in all its rows."""
        for file, problem in reader.problems_of_files(is_whole=is_whole).items():
            followed = {"unknown_format", "missing_field", "no_common_prompt"}
            if problem.reason == "ambiguous_columns":
                followed = {"ambiguous_label"}
            self.bad_rows = [
                bad for bad in self.bad_rows if bad.file != file or bad.reason not in followed
            ]
            self.bad_rows.append(BadRow(file, 0, "", (problem,)))

    def _take(self, raw: RawRow, source: Source, counts: RowCounts, reader: RowReader) -> None:
        """Count one row as used, dropped, quarantined or waiting: exactly one of them."""
        if raw.problem is not None:
            parsed = ParsedRow(problems=[raw.problem])
        else:
            parsed = reader.parse(raw, counts.read)
            parsed.problems += self._length_problems(parsed)
            if not parsed.is_waiting:
                self._claim_id(parsed)
        if parsed.is_tie and not self.drop_ties:
            parsed.refuse("tie", "tie", "true", "false, as pairs need a winner")
        if parsed.problems:
            bad = raw.refused(parsed.problems[:NUM_KEPT])
            self.bad_rows.append(bad)
            self.report.bad_rows_by_reason[bad.reason] += 1
            counts.quarantined += 1
        elif parsed.is_tie:
            counts.ties_dropped += 1
        else:
            if self.fields is not None:
                further = further_fields(raw.value, parsed, source.columns)
                self.fields.add(source.label, counts.read, further)
                self.fields.columns.add(source.label, counts.read, raw.value)
            if not parsed.is_waiting:
                self._use(parsed, source, _short_place(raw, source, parsed.lines), counts)

    def _use(self, parsed: ParsedRow, source: Source, place: str, counts: RowCounts) -> None:
        """Take in the pairs of a good row, or of two rows that make one."""
        pairs = _pairs_of(parsed, source, place)
        self.pairs.extend(pairs)
        rows: tuple[str | int, ...] = (source.label, *(parsed.rows or (counts.read,)))
        for pair in pairs:
            self.report.row_of[pair.id] = rows
            if parsed.is_against_scores is not None:
                self.report.is_against_scores[pair.id] = parsed.is_against_scores
        num_rows = len(rows) - 1
        counts.used += num_rows
        self.report.rows_by_format[parsed.format] += num_rows
        for name in parsed.ignored:
            self.report.ignored_fields[name] += num_rows

    def _length_problems(self, parsed: ParsedRow) -> list[Problem]:
        tokens = self.max_tokens
        most, count = (None, None) if tokens is None else (tokens.most, tokens.count)
        problems = (
            length_problem(
                name,
                parsed.prompt + answer,
                self.max_characters,
                most,
                count,
                of=" of prompt and answer",
            )
            for name, answer in zip(parsed.answer_fields, parsed.answers, strict=False)
        )
        return [problem for problem in problems if problem is not None]

    def _claim_id(self, parsed: ParsedRow) -> None:
        """Give a row an id of its own: one made from its texts where it has none.

        An id that an earlier row has (as that of a prompt) gets a number. Refused rows hold on to
        theirs: once such a row is corrected the others keep the ids that they had.
        """
        if parsed.id is None and parsed.problems:
            return
        stem = parsed.id
        if stem is None:
            stem = f"p-{content_digest(parsed.prompt, *parsed.answers).hex()[:16]}"
        parsed.id, repeat = stem, self.repeats.get(stem, 1)
        while not self.ids.isdisjoint([parsed.id, *_pair_ids(parsed)]):
            repeat += 1
            parsed.id = f"{stem}-{repeat}"
        self.repeats[stem] = repeat
        self.ids.update([parsed.id, *_pair_ids(parsed)])


def _pair_ids(parsed: ParsedRow) -> list[str]:
    """Return the ids of the pairs of a ranking, by ranks from 1: "row#1-2" is best over second."""
    if not parsed.is_ranking or len(parsed.answers) > MAX_ANSWERS:  # which is refused
        return []
    return [f"{parsed.id}#{better + 1}-{worse + 1}" for better, worse in parsed.better_worse]


def _short_place(raw: RawRow, source: Source, lines: Sequence[int]) -> str:
    """Return "file:line" without the folders above a source, which differ by machine.

    lines: of the rows that make one pair: "file:3,7".
    """
    line = ",".join(map(str, lines)) if lines else raw.line
    above = "" if source.name else source.label.rstrip("/").rpartition("/")[0]
    return f"{raw.file.removeprefix(above).lstrip('/')}:{line}"


def _pairs_of(parsed: ParsedRow, source: Source, place: str) -> list[PreferencePair]:
    """Return a good row's pairs: one, or those of a ranking, which share a group."""
    return [
        PreferencePair(
            id=identity,
            prompt=parsed.prompt,
            chosen=parsed.answers[better],
            rejected=parsed.answers[worse],
            category=parsed.category or source.category,
            rating=parsed.rating,
            votes=parsed.votes,
            group=parsed.group or (parsed.id if parsed.is_ranking else None),
            source=place,
            opinions=parsed.opinions,
            messages=_dialogues(parsed, better, worse),
        )
        for identity, (better, worse) in zip(
            _pair_ids(parsed) or [str(parsed.id)], parsed.better_worse, strict=True
        )
    ]


def _dialogues(parsed: ParsedRow, better: int, worse: int) -> PairMessages | None:
    """The messages of a pair of a row's answers, as JSON has them."""
    if not parsed.messages:
        return None
    start, *sides = (
        [message if GIVEN not in message else plain(message[GIVEN]) for message in turns]
        for turns in parsed.messages
    )
    return PairMessages(start, sides[better], sides[worse])


# Pairs whose tokens are counted, spread over all of them: in about a second.
MOST_COUNTED = 1000


def share_over_tokens(pairs: Sequence[PreferencePair], folder: Path, limit: int) -> float | None:
    """The share of pairs of which prompt and an answer together have more tokens than `limit`.

    Messages are counted as texts, without what a chat template adds. folder: of a model. None where
    it has no tokenizer.json that can be read, or there are no pairs.
    """
    path = folder / "tokenizer.json"
    if not path.is_file() or not pairs:
        return None
    from tokenizers import Tokenizer

    try:
        tokenizer: Any = Tokenizer.from_file(str(path))
    except Exception:  # the library raises nothing more specific; the run says what is wrong
        return None
    tokenizer.no_truncation()
    some = pairs[:: -(-len(pairs) // MOST_COUNTED)]
    texts = [pair.prompt + answer for pair in some for answer in (pair.chosen, pair.rejected)]
    counts = [len(encoding.ids) for encoding in tokenizer.encode_batch(texts)]
    longer = [max(both) > limit for both in zip(counts[::2], counts[1::2], strict=True)]
    return sum(longer) / len(longer)
