"""Data files: from each kind of file to raw rows with their line, one at a time.

JSON lines, a JSON array, CSV and TSV (plain or packed, told by content), Parquet and Arrow. A row
that cannot even be read becomes a RawRow with its problem; only a broken file stops its reader
(SourceError). Memory is that of the longest row, and of a batch of rows in Parquet and Arrow.
"""

import bz2
import codecs
import csv
import gzip
import importlib
import io
import json
import lzma
import re
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from trimtab.models.data.problems import Problem, shorten

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

BATCH_ROWS: Final = 512
CHUNK_CHARACTERS: Final = 1 << 20
MAX_CELL_CHARACTERS: Final = 1 << 26
BOM: Final = b"\xef\xbb\xbf"
# A list of objects; the same under "data"; objects written over several lines.
_ARRAY: Final = re.compile(rb'\s*(?P<opening>(?:\{\s*"data"\s*:\s*)?\[)\s*[\{\]]')
_OBJECTS: Final = re.compile(rb'\s*\{[ \t\r]*\n\s*"')
# A string up to its quote (or the end of its line), or a mark between values.
_TOKEN: Final = re.compile(r'"(?:[^"\\\n]|\\[^\n])*(?P<quote>"?)|[\[\]{},]')
_NEXT_VALUE: Final = re.compile(r'\s*[^"}\s]')
_SPACE: Final = re.compile(r"[ \t\n\r]*")
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


class SourceError(ValueError):
    """A source that is missing or cannot be read to its end."""

    def __init__(self, file: str, line: int, problem: Problem) -> None:
        super().__init__(f"{file}: {problem.reason}: {problem.found}")
        self.file, self.line, self.problem = file, line, problem


def read_file(path: Path, label: str) -> Iterator[RawRow]:
    """Yield the rows of a file, by the end of its name. Raises SourceError."""
    name = path.name.lower()
    if name.endswith(".parquet"):
        return _read_columns(path, label, "Parquet")
    if name.endswith(".arrow"):
        return _read_columns(path, label, "Arrow")
    if not name.endswith(SUFFIXES):
        raise SourceError(label, 0, Problem("unreadable_source", None, repr(path.suffix), KINDS))
    return _read_text(path, label)


def _read_text(path: Path, label: str) -> Iterator[RawRow]:
    line = 0
    try:
        with _open(path) as stream:
            for row in _rows_of_text(path, label, stream):
                line = row.line
                yield row
    except (*_DAMAGED, ValueError) as error:
        if isinstance(error, SourceError):
            raise
        found = f"{type(error).__name__}: {error}, after line {line}"
        problem = Problem("unreadable_source", None, found, "a file readable to its end")
        raise SourceError(label, line, problem) from error


def _open(path: Path) -> Any:
    """Open a file for reading bytes, unpacked where its first bytes say that it is packed."""
    with path.open("rb") as stream:
        start = stream.read(6)
    if start.startswith(b"\x1f\x8b"):
        return gzip.open(path)
    if start.startswith(b"BZh"):
        return bz2.open(path)
    if start == b"\xfd7zXZ\x00":
        return lzma.open(path)
    if start.startswith(b"\x28\xb5\x2f\xfd"):  # not in the standard library before Python 3.14
        pyarrow = importlib.import_module("pyarrow")
        return io.BufferedReader(pyarrow.input_stream(str(path), compression="zstd"))
    return path.open("rb", buffering=1 << 16)


def _rows_of_text(path: Path, label: str, stream: Any) -> Iterator[RawRow]:
    name = path.name.lower()
    for kind, delimiter in DELIMITERS.items():
        if name.endswith(tuple(kind + packed for packed in PACKED)):
            return _read_table(stream, label, delimiter)
    start = stream.peek(1 << 16).removeprefix(BOM)
    if found := _ARRAY.match(start):
        return _read_values(stream, label, found["opening"].decode())
    if _OBJECTS.match(start):
        return _read_values(stream, label, "")
    return _read_json_lines(stream, label)


def _read_json_lines(stream: Iterable[bytes], label: str) -> Iterator[RawRow]:
    for number, line in enumerate(stream, start=1):
        # a byte order mark is allowed where Windows tools write it: at the very start
        text = line.removeprefix(BOM) if number == 1 else line
        value, problem = parse_json(text.strip()) if text.strip() else (None, None)
        yield RawRow(label, number, text, value, problem)


def parse_json(line: bytes) -> tuple[Any, Problem | None]:
    """Return (value, None) or (None, problem) for one line. Raises nothing.

    Stricter than `json.loads`, which takes NaN and lets the last of two equal keys win.
    """
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        return None, _utf8_problem(error)
    try:
        return json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse), None
    except (ValueError, RecursionError) as error:
        found = f"{shorten(text)} ({str(error)[:120]})"
        return None, Problem("not_json", None, found, "one JSON object a line")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        raise ValueError("a key occurs twice in one object")
    return result


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def _utf8_problem(error: UnicodeDecodeError) -> Problem:
    around = error.object[max(0, error.start - 20) : error.end + 20]
    return Problem("invalid_utf8", None, f"{around!r} at byte {error.start}", "UTF-8 text")


class _JsonText:
    """A JSON text read in chunks: what is read, up to where it is used, and the line of that."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream
        self.decoder = codecs.getincrementaldecoder("utf-8-sig")("surrogateescape")
        self.parser = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_refuse)
        self.text, self.at, self.line, self.is_whole = "", 0, 1, False

    def read_more(self) -> bool:
        """Read a chunk, at least as long as what waits: each character is searched O(1) times."""
        if self.is_whole:
            return False
        chunk = self.stream.read(max(CHUNK_CHARACTERS, len(self.text) - self.at))
        self.is_whole = not chunk
        self.text = self.text[self.at :] + self.decoder.decode(chunk, final=self.is_whole)
        self.at = 0
        return True

    def move(self, end: int) -> None:
        """Use the text up to `end`."""
        self.line += self.text.count("\n", self.at, end)
        self.at = end

    def peek(self) -> str:
        """The next character that is no white space; "" at the end of the text."""
        while True:
            space = _SPACE.match(self.text, self.at)
            self.move(space.end() if space else self.at)
            if self.at < len(self.text):
                return self.text[self.at]
            if not self.read_more():
                return ""

    def value(self) -> tuple[str, Any, str | None]:
        """The next value's text, the value, and what is wrong with it if it is none.

        Raises EOFError where the text ends within it.
        """
        while True:
            stop: int | None
            wrong = None
            try:
                value, stop = self.parser.raw_decode(self.text, self.at)
            except (ValueError, RecursionError) as error:
                value, stop = None, self._end_of_value()
                wrong = str(getattr(error, "msg", error))[:120]
            if stop is not None and (stop < len(self.text) or self.is_whole):
                text = self.text[self.at : stop]
                self.move(stop)
                return text, value, wrong
            if not self.read_more():
                raise EOFError("the text ends within a value")

    def _end_of_value(self) -> int | None:
        """Where a value that may be no JSON ends, by its brackets; None: not in the text so far.

        Behind a quote that is not closed in its line it ends where the next line starts a value.
        """
        depth = 0
        for token in _TOKEN.finditer(self.text, self.at):
            mark, end = token.group(), token.end()
            is_open = mark.startswith('"') and not token["quote"]
            if is_open and self.text.startswith("\n", end) and _NEXT_VALUE.match(self.text, end):
                return self.at + len(self.text[self.at : end].rstrip(", \t\r"))
            if depth == 0 and mark in ",]}":
                return token.start()
            depth += (mark in "[{") - (mark in "]}")
            if depth == 0 and mark in "]}":
                return end
        return len(self.text) if self.is_whole and depth == 0 else None


def _read_values(stream: Any, label: str, opening: str) -> Iterator[RawRow]:
    """Rows that are the values of a list behind `opening`, or (without one) follow one another.

    A list that starts in the file's first line numbers its rows, as several may share a line.
    """
    text = _JsonText(stream)
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
    problem = None
    if wrong is not None:
        problem = Problem("not_json", None, f"{shorten(text)} ({wrong})", "a JSON object")
    elif (surrogate := _bad_bytes(text)) is not None:
        problem = surrogate
    if problem is None and isinstance(value, dict):
        return RawRow(label, line, value, value)
    raw = text.encode("utf-8", "surrogateescape")
    return RawRow(label, line, raw, None if problem else value, problem)


def _bad_bytes(text: str) -> Problem | None:
    """What is wrong with text decoded by "surrogateescape", if bytes were no UTF-8."""
    if text.isascii():
        return None
    try:
        text.encode("utf-8", "surrogateescape").decode("utf-8")
    except UnicodeDecodeError as error:
        return _utf8_problem(error)
    except UnicodeEncodeError:  # half of a surrogate pair, which the fields' checks name
        return None
    return None


def _read_table(stream: Any, label: str, delimiter: str) -> Iterator[RawRow]:
    """Rows of a table whose first row is the header; an empty cell is an absent value."""
    lines = io.TextIOWrapper(stream, "utf-8-sig", "surrogateescape", newline="")
    csv.field_size_limit(MAX_CELL_CHARACTERS)  # for the whole process: 131,072 is too few here
    kept: list[str] = []  # the lines of the row that is read
    cells = csv.reader(_kept(lines, kept), delimiter=delimiter, strict=True)
    header: list[str] = []
    line = 1
    while True:
        problem, row = None, None
        try:
            row = next(cells, None)
        except csv.Error as error:
            problem = _quote_problem(str(error), line)
        if row is None and problem is None:
            return
        raw = "".join(kept).encode("utf-8", "surrogateescape")
        if problem is not None or not row:
            yield RawRow(label, line, raw if problem else b"", None, problem)
        elif not header:
            header = _header(row, label, line)
        else:
            yield _row_of_table(row, header, label, line, raw)
        line += len(kept)
        kept.clear()


def _kept(lines: Iterable[str], kept: list[str]) -> Iterator[str]:
    for line in lines:
        kept.append(line)
        yield line


def _quote_problem(error: str, line: int) -> Problem:
    """What is wrong with a row's quotes; raises EOFError where they swallow the rest of a file."""
    if "unexpected end" in error or "field limit" in error:
        raise EOFError(f"a quote that is opened in line {line} or later is not closed")
    return Problem("not_csv", None, error, "quotes around a whole value, doubled inside it")


def _header(row: list[str], label: str, line: int) -> list[str]:
    header = [name or f"column {index}" for index, name in enumerate(row, start=1)]
    if len(set(header)) < len(header):
        found = f"header {shorten(row)}"
        problem = Problem("unreadable_source", None, found, "a first row of different names")
        raise SourceError(label, line, problem)
    return header


def _row_of_table(row: list[str], header: list[str], label: str, line: int, raw: bytes) -> RawRow:
    problem = None
    if not raw.isascii():
        try:
            raw.decode("utf-8")
        except UnicodeDecodeError as error:
            problem = _utf8_problem(error)
    if problem is None and len(row) != len(header):
        found, allowed = f"{len(row)} values: {shorten(row)}", f"{len(header)}, as in the header"
        problem = Problem("not_csv", None, found, allowed)
    if problem is not None:
        return RawRow(label, line, raw, None, problem)
    value = {name: cell or None for name, cell in zip(header, row, strict=True)}
    return RawRow(label, line, raw, value, is_text=True)


def _read_columns(path: Path, label: str, kind: str) -> Iterator[RawRow]:
    pyarrow = importlib.import_module("pyarrow")
    number = 0
    try:
        for batch in _parquet_batches(path) if kind == "Parquet" else _arrow_batches(path):
            for row in _rows_of_batch(batch, label, number):
                number = row.line
                yield row
    except (OSError, pyarrow.ArrowException) as error:
        found = f"{type(error).__name__}: {error}, after row {number}"
        problem = Problem("unreadable_source", None, found, f"a file of {kind} readable to its end")
        raise SourceError(label, number, problem) from error


def _parquet_batches(path: Path) -> Iterator[Any]:
    parquet = importlib.import_module("pyarrow.parquet")
    with parquet.ParquetFile(path) as file:
        yield from file.iter_batches(batch_size=BATCH_ROWS)


def _arrow_batches(path: Path) -> Iterator[Any]:
    """Batches of an IPC file, or of a stream, which is what `datasets` writes."""
    pyarrow, ipc = importlib.import_module("pyarrow"), importlib.import_module("pyarrow.ipc")
    with pyarrow.memory_map(str(path)) as source:
        is_file = source.read(6) == b"ARROW1"
        source.seek(0)
        if is_file:
            file = ipc.open_file(source)
            batches = (file.get_batch(index) for index in range(file.num_record_batches))
        else:
            batches = ipc.open_stream(source)
        for batch in batches:
            for start in range(0, batch.num_rows, BATCH_ROWS):
                yield batch.slice(start, BATCH_ROWS)


def _rows_of_batch(batch: Any, label: str, start: int) -> Iterator[RawRow]:
    """Yield the rows of an Arrow batch; one with invalid UTF-8 does not spoil the others."""
    try:
        values = batch.to_pylist()
    except UnicodeDecodeError:
        pass  # it does not say in which row: read them one by one, below
    else:
        for number, value in enumerate(values, start=start + 1):
            yield RawRow(label, number, value, value)
        return
    for index in range(batch.num_rows):
        number = start + index + 1
        try:
            (value,) = batch.slice(index, 1).to_pylist()
        except UnicodeDecodeError as error:
            yield RawRow(label, number, error.object, None, _utf8_problem(error))
        else:
            yield RawRow(label, number, value, value)
