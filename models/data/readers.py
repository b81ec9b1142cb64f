"""Readers: from files, folders and the hub to raw rows with their place, one at a time.

JSON lines (plain or gzip, told by content) and Parquet are streamed. A row that cannot even be
read becomes a RawRow with its problem; only a broken source stops its reader (SourceError).
"""

import gzip
import importlib
import json
import os
import re
import warnings
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from trimtab.models.data.problems import Problem, shorten

JSON_SUFFIXES: Final = (".jsonl", ".ndjson", ".json", ".jsonl.gz", ".ndjson.gz", ".json.gz")
SUFFIXES: Final = (*JSON_SUFFIXES, ".parquet")
HUB_ID: Final = re.compile(r"[\w.-]+(/[\w.-]+)?(/[\w./-]+)?(:[\w.-]+)?")
PARQUET_BATCH_ROWS: Final = 512


@dataclass(frozen=True, slots=True)
class Source:
    """Where preference rows come from.

    path: a JSON-lines or Parquet file, a folder of them, or a hub data set
    `owner/name[/folder][:config]`. category: for rows that have none of their own. split: of a
    hub data set (default "train"), or the files of a folder that carry this word in their name
    or in that of a folder. name: what messages and records call the source instead of its path;
    give one where the path is temporary, so that results do not depend on it.
    """

    path: str
    category: str | None = None
    split: str | None = None
    name: str | None = None

    @property
    def label(self) -> str:
        """The name for people, always printable as UTF-8."""
        return _printable(self.name or self.path)

    @property
    def key(self) -> str:
        """The label, with the split where there is one: unique in a list of sources."""
        return self.label if self.split is None else f"{self.label}[{self.split}]"


@dataclass(frozen=True, slots=True)
class RawRow:
    """One row as read. value is None where it has a problem, or where the line is blank."""

    file: str
    line: int
    raw: bytes | dict[str, Any]
    value: Any
    problem: Problem | None = None

    @property
    def is_blank(self) -> bool:
        """Whether this is a line of white space only, which is no row."""
        return isinstance(self.raw, bytes) and not self.raw.strip()


class SourceError(ValueError):
    """A source that is missing or cannot be read to its end."""

    def __init__(self, file: str, line: int, problem: Problem) -> None:
        super().__init__(f"{file}: {problem.reason}: {problem.found}")
        self.file, self.line, self.problem = file, line, problem


def read_source(source: Source, ignored_files: list[str]) -> Iterator[RawRow]:
    """Yield the rows of a source; names of skipped files are added to `ignored_files`.

    Raises SourceError. Warns where `split` has no meaning.
    """
    path, label = Path(source.path), source.label
    if source.path and path.is_dir():  # Path("") would be the current folder
        for file in _files_of_folder(path, source, ignored_files):
            yield from _read_file(file, _name_in_folder(file, source))
    elif source.path and path.exists():
        if source.split is not None:
            warnings.warn(f"{label}: split {source.split!r} is ignored for a file", stacklevel=2)
        yield from _read_file(path, label)
    elif looks_like_hub_id(source.path):
        yield from _read_hub(source)
    else:
        allowed = "an existing file or folder, or a hub id owner/name[/folder][:config]"
        raise SourceError(label, 0, Problem("missing_source", None, repr(source.path), allowed))


def _printable(path: str | Path) -> str:
    """Return a path as text that UTF-8 can hold, which file names need not be."""
    return os.fsencode(path).decode("utf-8", "replace")


def _name_in_folder(file: Path, source: Source) -> str:
    return f"{source.label.rstrip('/')}/{_printable(file.relative_to(source.path))}"


def looks_like_hub_id(path: str) -> bool:
    """Whether what is no file or folder here may be a data set of the hub."""
    is_local = path.startswith((".", "~")) or path.lower().endswith(SUFFIXES)
    return not is_local and HUB_ID.fullmatch(path) is not None


def _files_of_folder(folder: Path, source: Source, ignored_files: list[str]) -> list[Path]:
    """Return the folder's data files in order of name, those of the split if there is one."""
    chosen: list[Path] = []
    others: list[Path] = []
    for file in sorted(_walk(folder)):
        parts = file.relative_to(folder).parts
        words = set(parts[:-1]) | set(re.split(r"[-._]", parts[-1]))
        is_data = file.is_file() and file.name.lower().endswith(SUFFIXES) and file.name[0] != "."
        in_split = source.split is None or source.split in words
        (chosen if is_data and in_split else others).append(file)
    ignored_files.extend(_name_in_folder(file, source) for file in others)
    if not chosen:
        allowed = f"files ending in {', '.join(SUFFIXES)}"
        if source.split is not None:
            allowed += f" with the word {source.split!r} in the name"
        found = shorten([file.name for file in others])
        raise SourceError(source.label, 0, Problem("missing_source", None, found, allowed))
    return chosen


def _walk(folder: Path) -> Iterator[Path]:
    """Yield all files below, and hidden folders (.git, .cache) as one entry each."""
    for place, folders, files in os.walk(folder):
        hidden = [name for name in folders if name.startswith(".")]
        yield from (Path(place, name) for name in files + hidden)
        folders[:] = [name for name in folders if name not in hidden]


def _read_file(path: Path, label: str) -> Iterator[RawRow]:
    name = path.name.lower()
    if name.endswith(".parquet"):
        return _read_parquet(path, label)
    if name.endswith(JSON_SUFFIXES):
        return _read_json_lines(path, label)
    problem = Problem("unreadable_source", None, repr(path.suffix), ", ".join(SUFFIXES))
    raise SourceError(label, 0, problem)


def _read_json_lines(path: Path, label: str) -> Iterator[RawRow]:
    number = 0
    try:
        with path.open("rb") as stream:
            is_packed = stream.read(2) == b"\x1f\x8b"
        with gzip.open(path, "rb") if is_packed else path.open("rb") as stream:
            for number, line in enumerate(stream, start=1):
                # a byte order mark is allowed where Windows tools write it: at the very start
                text = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
                value, problem = parse_json(text.strip()) if text.strip() else (None, None)
                yield RawRow(label, number, text, value, problem)
    except (OSError, EOFError, zlib.error) as error:
        found = f"{type(error).__name__}: {error}, after line {number}"
        problem = Problem("unreadable_source", None, found, "a file readable to its end")
        raise SourceError(label, number, problem) from error


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


def _read_parquet(path: Path, label: str) -> Iterator[RawRow]:
    pyarrow = importlib.import_module("pyarrow")
    parquet = importlib.import_module("pyarrow.parquet")
    number = 0
    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=PARQUET_BATCH_ROWS):
                for row in _rows_of_batch(batch, label, number):
                    number = row.line
                    yield row
    except (OSError, pyarrow.ArrowException) as error:
        found = f"{type(error).__name__}: {error}, after row {number}"
        problem = Problem("unreadable_source", None, found, "a Parquet file readable to its end")
        raise SourceError(label, number, problem) from error


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


def _read_hub(source: Source) -> Iterator[RawRow]:
    datasets = importlib.import_module("datasets")
    address, _, config = source.path.partition(":")
    owner_and_name, folder = "/".join(address.split("/")[:2]), "/".join(address.split("/")[2:])
    try:
        split = source.split or "train"
        rows = datasets.load_dataset(
            owner_and_name, name=config or None, data_dir=folder or None, split=split
        )
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        found = f"{shorten(source.path)} ({type(error).__name__}: {str(error)[:300]})"
        allowed = "an existing file or folder, or a data set of the hub that can be reached"
        problem = Problem("missing_source", None, found, allowed)
        raise SourceError(source.label, 0, problem) from error
    for number, row in enumerate(rows, start=1):
        yield RawRow(source.label, number, row, dict(row))
