"""Data files: from each kind of file to raw rows with their line, one at a time.

JSON lines, a JSON array, CSV and TSV (plain or packed, told by content), Parquet and Arrow. A row
that cannot even be read becomes a RawRow with its problem; only a broken file, or one that unpacks
to too much (`trimtab.models.data.unpacking`), stops its reader (SourceError). Memory is that of the
longest row, and of a batch of rows in Parquet and Arrow.
"""

import csv
import importlib
import io
import json
import lzma
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from trimtab.models.data.json_text import JsonText
from trimtab.models.data.problems import BadRow, Problem, raw_text, shorten
from trimtab.models.data.unpacking import (
    CHUNK_BYTES,
    MAX_BATCH_BYTES,
    MAX_ROW_BYTES,
    TooLargeError,
    check_expansion,
    check_row,
    limited_memory,
    open_text,
)

JSON_SUFFIXES: Final = (".jsonl", ".ndjson", ".json")
DELIMITERS: Final = {".csv": ",", ".tsv": "\t"}
PACKED: Final = ("", ".gz", ".bz2", ".xz", ".zst")
_TEXTS: Final = tuple(kind + packed for kind in (*JSON_SUFFIXES, *DELIMITERS) for packed in PACKED)
SUFFIXES: Final = (*_TEXTS, ".parquet", ".arrow")
KINDS: Final = (
    f"files ending in {', '.join((*JSON_SUFFIXES, *DELIMITERS))} (or packed: "
    f"{', '.join(PACKED[1:])}), .parquet or .arrow"
)
"""SUFFIXES in words."""

BATCH_ROWS, BATCH_BYTES = 512, 64 << 20
MAX_COLUMNS: Final = 10_000
SEPARATORS: Final = (",", ";", "\t", "|")
BOM: Final = b"\xef\xbb\xbf"
# What Excel writes ahead of a table.
_SEPARATOR_LINE: Final = re.compile(r"sep=(.)\r?\n", re.IGNORECASE)
# A list of objects; the same under "data"; objects written over several lines.
_ARRAY: Final = re.compile(rb'\s*(?P<opening>(?:\{\s*"data"\s*:\s*)?\[)\s*[\{\]]')
_OBJECTS: Final = re.compile(rb'\s*\{[ \t\r]*\n\s*"')
# JSON in a file that is called a table.
_JSON: Final = re.compile(rb'\s*(?:\[\s*)?\{\s*"[^"\n]*"\s*:')
# How files start that are no texts: what they are, and what to do.
_NO_TEXTS: Final = {
    b"PK\x03\x04": (
        "a zip archive, as workbooks of Excel are",
        "a table saved as CSV, or unpacked",
    ),
    b"PAR1": ("Parquet", "Parquet in a file ending in .parquet"),
    b"ARROW1": ("Arrow", "Arrow in a file ending in .arrow"),
    b"\x1f\x8b": ("a file that is packed twice", "one that is packed once"),
}
_DAMAGED: Final = (OSError, EOFError, zlib.error, lzma.LZMAError)


@dataclass(frozen=True, slots=True)
class RawRow:
    """One row as read. value is None where it has a problem, or where the line is blank.

    is_text: all values are text, as in CSV, and numbers or lists are to be read from it.
    """

    file: str
    line: int
    raw: bytes | dict[str, Any]
    value: Any
    problem: Problem | None = None
    is_text: bool = False

    @property
    def is_blank(self) -> bool:
        """Whether this is a line of white space only, which is no row."""
        return isinstance(self.raw, bytes) and not self.raw.strip()

    def refused(self, problems: Sequence[Problem]) -> BadRow:
        """The row with what is wrong with it."""
        return BadRow(self.file, self.line, raw_text(self.raw), tuple(problems))


class SourceError(ValueError):
    """A source that is missing or cannot be read to its end."""

    def __init__(self, file: str, line: int, reason: str, shown: str, allowed: str) -> None:
        super().__init__(f"{file}: {reason}: {shown}")
        self.file, self.line = file, line
        self.problem = Problem(reason, None, shown, allowed)

    def refused(self) -> BadRow:
        """The source in place of its rows."""
        return BadRow(self.file, self.line, "", (self.problem,))


def read_file(path: Path, label: str) -> Iterator[RawRow]:
    """Yield the rows of a file, by the end of its name. Raises SourceError."""
    name = path.name.lower()
    if name.endswith(".parquet"):
        return _read_columns(path, label, "Parquet")
    if name.endswith(".arrow"):
        return _read_columns(path, label, "Arrow")
    if not name.endswith(SUFFIXES):
        raise SourceError(label, 0, "unreadable_source", repr(path.suffix), KINDS)
    return _read_text(path, label)


def _read_text(path: Path, label: str) -> Iterator[RawRow]:
    line = 0
    try:
        with open_text(path) as stream:
            for row in _rows_of_text(path, label, stream):
                line = row.line
                yield row
    except TooLargeError as error:
        raise _too_large(label, error, line) from error
    except (*_DAMAGED, ValueError) as error:
        if isinstance(error, SourceError):
            raise
        where = f"{type(error).__name__}: {error}, after line {line}"
        allowed = "a file readable to its end"
        raise SourceError(label, line, "unreadable_source", where, allowed) from error


def _too_large(label: str, error: TooLargeError, after: int) -> SourceError:
    """after: the line, or row, up to which all was read."""
    line = after + 1 if error.line is None else error.line
    return SourceError(label, line, "unreadable_source", error.size, error.allowed)


def _rows_of_text(path: Path, label: str, stream: Any) -> Iterator[RawRow]:
    name = path.name.lower()
    start = stream.peek(CHUNK_BYTES).removeprefix(BOM)
    for magic, (kind, allowed) in _NO_TEXTS.items():
        if start.startswith(magic):
            raise SourceError(label, 0, "unreadable_source", kind, allowed)
    for suffix, delimiter in DELIMITERS.items():
        if name.endswith(tuple(suffix + packed for packed in PACKED)) and not _JSON.match(start):
            return _read_table(stream, label, delimiter)
    if array := _ARRAY.match(start):
        return _read_values(stream, label, array["opening"].decode())
    if _OBJECTS.match(start):
        return _read_values(stream, label, "")
    return _read_json_lines(stream, label)


def _read_json_lines(stream: Any, label: str) -> Iterator[RawRow]:
    lines = iter(partial(stream.readline, MAX_ROW_BYTES + 1), b"")
    for number, line in enumerate(lines, start=1):
        check_row(len(line), number)
        # a byte order mark is allowed where Windows tools write it: at the very start
        text = line.removeprefix(BOM) if number == 1 else line
        value, problem = parse_json(text.strip()) if text.strip() else (None, None)
        yield RawRow(label, number, text, value, problem)


def parse_json(line: bytes) -> tuple[Any, Problem | None]:
    """Return (value, None) or (None, problem) for one line. Raises nothing.

    Stricter than `json.loads`, which lets the last of two equal keys win.
    """
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        return None, _utf8_problem(error)
    try:
        return json.loads(text, object_pairs_hook=_unique), None
    except (ValueError, RecursionError) as error:
        shown = f"{shorten(text)} ({str(error)[:120]})"
        return None, Problem("not_json", None, shown, "one JSON object a line")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        raise ValueError("a key occurs twice in one object")
    return result


def _utf8_problem(error: UnicodeDecodeError) -> Problem:
    around = error.object[max(0, error.start - 20) : error.end + 20]
    allowed = "UTF-8 text: save the file as UTF-8, or leave the row out"
    return Problem("invalid_utf8", None, f"{around!r} at byte {error.start}", allowed)


def _read_values(stream: Any, label: str, opening: str) -> Iterator[RawRow]:
    """Rows that are the values of a list behind `opening`, or (without one) follow one another.

    A list that starts in the file's first line numbers its rows, as several may share a line.
    """
    parser = json.JSONDecoder(object_pairs_hook=_unique)
    text = JsonText(stream, parser)
    for mark in re.findall(r'"data"|\S', opening):
        text.peek()
        text.move(text.at + len(mark))
    closing = "]" if opening else ""
    text.peek()
    is_numbered = bool(opening) and text.line == 1  # rows may share a line: by their number then
    number = 0
    while (mark := text.peek()) != closing:
        if not mark:
            raise EOFError("the list at the start of the file is not closed")
        if opening and number:
            if mark != ",":
                raise ValueError(f"{mark!r} in line {text.line}, where a comma or ] was expected")
            text.move(text.at + 1)
            text.peek()
        number += 1
        line = number if is_numbered else text.line
        yield _row_of_value(label, line, *text.value())
    text.move(text.at + len(closing))
    if opening == "[" and (mark := text.peek()):
        raise ValueError(f"{mark!r} in line {text.line}, behind the end of the list")


def _row_of_value(label: str, line: int, text: str, value: Any, wrong: str | None) -> RawRow:
    raw = text.encode("utf-8", "surrogateescape")
    problem = _bad_bytes(raw)
    if wrong is not None:
        problem = Problem("not_json", None, f"{shorten(text)} ({wrong})", "a JSON object")
    if problem is None and isinstance(value, dict):
        return RawRow(label, line, value, value)
    return RawRow(label, line, raw, None if problem else value, problem)


def _bad_bytes(raw: bytes) -> Problem | None:
    """What is wrong with bytes that are no UTF-8."""
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError as error:
        return _utf8_problem(error)
    return None


def _read_table(stream: Any, label: str, usual: str) -> Iterator[RawRow]:
    """Rows of a table whose first row is the header; an empty cell is an absent value."""
    csv.field_size_limit(MAX_ROW_BYTES)  # for the whole process: 131,072 is too few here
    start = stream.peek(CHUNK_BYTES).decode("utf-8", "replace").removeprefix("\ufeff")
    lines = _Lines(io.TextIOWrapper(stream, "utf-8-sig", "surrogateescape", newline=""))
    if named := _SEPARATOR_LINE.match(start):
        next(lines)
        lines.end_row()
    delimiter = named[1] if named else _delimiter(start, usual)
    cells = csv.reader(lines, delimiter=delimiter, strict=True)
    header: list[str] = []
    while True:
        problem, row = None, None
        try:
            row = next(cells, None)
        except csv.Error as error:
            problem = _quote_problem(str(error), lines.line)
        if row is None and problem is None:
            return
        line, raw = lines.line, lines.row_text.getvalue().encode("utf-8", "surrogateescape")
        if problem is not None or not row:
            yield RawRow(label, line, raw if problem else b"", None, problem)
        elif not header:
            header = _header(row, label, line)
        else:
            yield _row_of_table(row, header, label, line, raw)
        lines.end_row()


class _Lines:
    """Lines of a table. line: where the row that is read starts; row_text: its text so far."""

    def __init__(self, text: io.TextIOWrapper) -> None:
        self.text, self.line, self.num_lines = text, 1, 0
        self.row_text = io.StringIO(newline="")

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = self.text.readline(MAX_ROW_BYTES + 1)
        if not line:
            raise StopIteration
        self.row_text.write(line)
        self.num_lines += 1
        check_row(self.row_text.tell(), self.line)
        return line

    def end_row(self) -> None:
        """Go on with the next row."""
        self.line, self.num_lines = self.line + self.num_lines, 0
        self.row_text = io.StringIO(newline="")


def _delimiter(start: str, usual: str) -> str:
    """What separates the cells of a table: by which most first rows are of one length.

    start: of the table. usual: for tables of one column, and where others do as well.
    """

    def num_regular(delimiter: str) -> int:
        rows = [row for row in csv.reader(io.StringIO(start, ""), delimiter=delimiter) if row]
        lengths = [len(row) for row in rows]
        return lengths.count(lengths[0]) if lengths and lengths[0] > 1 else 0

    return max((usual, *SEPARATORS), key=num_regular)


def _quote_problem(error: str, line: int) -> Problem:
    """What is wrong with a row's quotes; raises EOFError where they swallow the rest of a file."""
    if "unexpected end" in error or "field limit" in error:
        raise EOFError(f"a quote that is opened in line {line} or later is not closed")
    return Problem("not_csv", None, error, "quotes around a whole value, doubled inside it")


def _header(row: list[str], label: str, line: int) -> list[str]:
    if len(row) > MAX_COLUMNS:
        raise TooLargeError(f"{len(row):,} columns", f"at most {MAX_COLUMNS:,}", line)
    header = [name.strip() or f"column {index}" for index, name in enumerate(row, start=1)]
    if len(set(header)) < len(header):
        shown = f"header {shorten(row)}"
        allowed = "a first row of different names: write one above the rows if there is none"
        raise SourceError(label, line, "unreadable_source", shown, allowed)
    return header


def _row_of_table(row: list[str], header: list[str], label: str, line: int, raw: bytes) -> RawRow:
    problem = _bad_bytes(raw)
    while len(row) > len(header) and not row[-1]:  # separators at the end of a line
        row.pop()
    if problem is None and len(row) != len(header):
        shown, allowed = f"{len(row)} values: {shorten(row)}", f"{len(header)}, as in the header"
        problem = Problem("not_csv", None, shown, allowed)
    if problem is not None:
        return RawRow(label, line, raw, None, problem)
    value = {name: cell or None for name, cell in zip(header, row, strict=True)}
    return RawRow(label, line, raw, value, is_text=True)


def _read_columns(path: Path, label: str, kind: str) -> Iterator[RawRow]:
    pyarrow = importlib.import_module("pyarrow")
    number, num_bytes, packed_bytes = 0, 0, path.stat().st_size
    try:
        for row in _rows_of_batches(path, label, kind):
            size = _size(row.value)
            num_bytes += size
            check_row(size, row.line)
            check_expansion(num_bytes, packed_bytes)
            number = row.line
            yield row
    except TooLargeError as error:
        raise _too_large(label, error, number) from error
    except MemoryError as error:
        rows = f"rows from {number + 1} on that unpack to more than {MAX_BATCH_BYTES >> 20:,} MiB"
        allowed = f"less in {BATCH_ROWS} rows, of at most {MAX_ROW_BYTES >> 20} MiB each"
        raise _too_large(label, TooLargeError(rows, allowed), number) from error
    except (OSError, pyarrow.ArrowException) as error:
        where = f"{type(error).__name__}: {error}, after row {number}"
        allowed = f"a file of {kind} readable to its end"
        raise SourceError(label, number, "unreadable_source", where, allowed) from error


def _size(value: Any) -> int:
    """About the bytes that a value of Arrow holds: characters of its texts, 8 for all else."""
    if isinstance(value, str | bytes):
        return len(value)
    if isinstance(value, dict):
        return sum(map(_size, value.values()))
    return sum(map(_size, value)) if isinstance(value, list) else 8


def _rows_of_batches(path: Path, label: str, kind: str) -> Iterator[RawRow]:
    importlib.import_module("pyarrow.parquet" if kind == "Parquet" else "pyarrow.ipc")
    pyarrow = importlib.import_module("pyarrow")
    # Arrow's own allocator reserves a GiB at its first use, which the limit would count.
    pyarrow.set_memory_pool(pyarrow.system_memory_pool())
    batches = _parquet_batches(path) if kind == "Parquet" else _arrow_batches(path)
    number = 0
    while True:
        with limited_memory():
            batch = next(batches, None)
            rows = [] if batch is None else _rows_of_batch(batch, label, number)
        if batch is None:
            return
        yield from rows
        number += batch.num_rows


def _rows_at_a_time(num_bytes: int, num_rows: int) -> int:
    """Rows in a batch of at most BATCH_BYTES, as the mean of `num_rows` is."""
    mean = max(1, num_bytes // max(1, num_rows))
    return min(BATCH_ROWS, max(1, BATCH_BYTES // mean))


def _parquet_batches(path: Path) -> Iterator[Any]:
    parquet = importlib.import_module("pyarrow.parquet")
    with parquet.ParquetFile(path, buffer_size=1 << 20, pre_buffer=False) as file:
        for index in range(file.num_row_groups):
            group = file.metadata.row_group(index)
            count = _rows_at_a_time(group.total_byte_size, group.num_rows)
            yield from file.iter_batches(count, row_groups=[index], use_threads=False)


def _arrow_batches(path: Path) -> Iterator[Any]:
    """Batches of an IPC file, or of a stream, which is what `datasets` writes."""
    pyarrow, ipc = importlib.import_module("pyarrow"), importlib.import_module("pyarrow.ipc")
    options = ipc.IpcReadOptions(use_threads=False)
    with pyarrow.memory_map(str(path)) as source:
        is_file = source.read(6) == b"ARROW1"
        source.seek(0)
        if is_file:
            file = ipc.open_file(source, options=options)
            batches = (file.get_batch(index) for index in range(file.num_record_batches))
        else:
            batches = ipc.open_stream(source, options=options)
        for batch in batches:
            count = _rows_at_a_time(batch.nbytes, batch.num_rows)
            for start in range(0, batch.num_rows, count):
                yield batch.slice(start, count)


def _rows_of_batch(batch: Any, label: str, start: int) -> list[RawRow]:
    """The rows of an Arrow batch; one with invalid UTF-8 does not spoil the others."""
    try:
        values = batch.to_pylist()
    except UnicodeDecodeError:
        pass  # it does not say in which row: read them one by one, below
    else:
        return [RawRow(label, n, value, value) for n, value in enumerate(values, start + 1)]
    rows = []
    for index in range(batch.num_rows):
        number = start + index + 1
        try:
            (value,) = batch.slice(index, 1).to_pylist()
        except UnicodeDecodeError as error:
            rows.append(RawRow(label, number, error.object, None, _utf8_problem(error)))
        else:
            rows.append(RawRow(label, number, value, value))
    return rows
