"""Records that the stages exchange, and the JSON-lines files that hold them.

Every record is frozen, with ``to_json`` (a plain dict) and a strict inverse ``from_json``. Raw
pairs are never mutated: a relabelled pair is the raw pair plus what was decided about it.
"""

import dataclasses
import gzip
import json
import math
import os
import tempfile
import types
import typing
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Self, TypeVar


class RecordError(ValueError):
    """A record, or a line of a record file, that does not hold what its class demands."""


_FIELD_TYPES: dict[type, dict[str, tuple[type, bool]]] = {}


def _field_types(cls: type) -> dict[str, tuple[type, bool]]:
    """Map each field name to its type and whether it may be null."""
    if cls not in _FIELD_TYPES:
        hints = typing.get_type_hints(cls)
        kinds: dict[str, tuple[type, bool]] = {}
        for field in dataclasses.fields(cls):
            arms = typing.get_args(hints[field.name]) or (hints[field.name],)
            kinds[field.name] = (arms[0], types.NoneType in arms)
        _FIELD_TYPES[cls] = kinds
    return _FIELD_TYPES[cls]


def _checked(cls: type, name: str, value: Any, wanted: type, nullable: bool) -> Any:
    """Return `value` as `wanted`, or raise RecordError."""
    if value is None and nullable:
        return None
    if issubclass(wanted, Record) and isinstance(value, Mapping):
        return wanted.from_json(value)
    if wanted is float and type(value) is int:
        return float(value)
    if type(value) is not wanted:  # exactly, so that true is no 1
        allowed = wanted.__name__ + (" or null" if nullable else "")
        raise RecordError(f"{cls.__name__}.{name}: found {value!r}, allowed: {allowed}")
    return value


class Record:
    """Base of all records: conversion to and from plain JSON dicts."""

    __slots__ = ()

    def to_json(self) -> dict[str, Any]:
        """Return the fields, in order of declaration, as values `json.dumps` takes."""
        values: dict[str, Any] = {}
        for name in _field_types(type(self)):
            value = getattr(self, name)
            values[name] = value.to_json() if isinstance(value, Record) else value
        return values

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Build the record. Raises RecordError; a nullable key may be left out."""
        if not isinstance(data, Mapping):
            raise RecordError(f"{cls.__name__}: found {type(data).__name__}, allowed: an object")
        fields = _field_types(cls)
        unknown = sorted(set(data) - set(fields))
        missing = [n for n, (_, nullable) in fields.items() if n not in data and not nullable]
        if unknown or missing:
            problem = f"unknown keys {unknown}, missing keys {missing}; allowed: {list(fields)}"
            raise RecordError(f"{cls.__name__}: {problem}")
        values = {n: _checked(cls, n, data.get(n), *kind) for n, kind in fields.items()}
        return cls(**values)


@dataclass(frozen=True, slots=True)
class Votes(Record):
    """How many annotators preferred the chosen answer, the rejected one, or neither."""

    chosen: int
    rejected: int
    equal: int = 0

    def __post_init__(self) -> None:
        if min(self.chosen, self.rejected, self.equal) < 0:
            raise RecordError(f"Votes: found {self!r}, allowed: counts of 0 or more")


@dataclass(frozen=True, slots=True)
class PreferencePair(Record):
    """One raw comparison.

    prompt: the whole dialogue up to the last assistant turn; chosen, rejected: only the answer.
    rating: 1 (barely better) to 4 (much better). group: one ranking's pairs. source: "file:line".
    """

    id: str
    prompt: str
    chosen: str
    rejected: str
    category: str | None = None
    rating: int | None = None
    votes: Votes | None = None
    group: str | None = None
    source: str = ""


@dataclass(frozen=True, slots=True)
class PairStrength(Record):
    """Mean and standard deviation (dividing by M) of M reward models' score differences."""

    id: str
    strength_mean: float
    strength_std: float
    num_members: int

    def __post_init__(self) -> None:
        finite = math.isfinite(self.strength_mean) and math.isfinite(self.strength_std)
        if not finite or self.strength_std < 0 or self.num_members < 1:
            allowed = "finite numbers, strength_std >= 0, num_members >= 1"
            raise RecordError(f"found {self!r}, allowed: {allowed}")


@dataclass(frozen=True, slots=True)
class RelabelledPair(PreferencePair):
    """A raw pair, its fields untouched, and what relabelling decided about it.

    is_flipped: train as if `rejected` had been preferred. label: the probability in [0, 1] that
    `preferred` (that is, after the flip) is the better answer: 1 is a hard label, 1 - alpha a
    smoothed one. margin: subtracted from the score difference (preferred minus other), in
    units of score. weight: 0 or more.
    """

    is_flipped: bool = False
    label: float = 1.0
    margin: float = 0.0
    weight: float = 1.0

    def __post_init__(self) -> None:
        whole = 0.0 <= self.label <= 1.0 and 0.0 <= self.weight < math.inf
        if not whole or not math.isfinite(self.margin):
            found = f"label {self.label!r}, margin {self.margin!r}, weight {self.weight!r}"
            allowed = "label 0 to 1, margin finite, weight 0 or more"
            raise RecordError(f"pair {self.id}: found {found}; allowed: {allowed}")

    @classmethod
    def from_pair(cls, pair: PreferencePair, **decision: Any) -> Self:
        """Put a decision (is_flipped, label, margin, weight) beside a raw pair."""
        return cls(**{n: getattr(pair, n) for n in _field_types(PreferencePair)}, **decision)

    @property
    def preferred(self) -> str:
        """The answer to prefer, after the flip."""
        return self.rejected if self.is_flipped else self.chosen

    @property
    def other(self) -> str:
        """The other answer, after the flip."""
        return self.chosen if self.is_flipped else self.rejected


@dataclass(frozen=True, slots=True)
class Rollout(Record):
    """A response sampled from a policy, with its score where one was given."""

    prompt: str
    response: str
    category: str | None = None
    score: float | None = None


@dataclass(frozen=True, slots=True)
class RehearsalExample(Record):
    """A response kept for rehearsal: its prompt's cluster and its Advantage Model score."""

    prompt: str
    response: str
    cluster: int
    advantage_score: float


@dataclass(frozen=True, slots=True)
class ArtifactRef(Record):
    """Names one committed artifact; `digest` is the sha256 over its files."""

    stage: str
    key: str
    digest: str


RecordT = TypeVar("RecordT", bound=Record)


def read_jsonl(path: str | os.PathLike[str], cls: type[RecordT]) -> list[RecordT]:
    """Read a plain or .gz file that `write_jsonl` wrote. RecordError gives file and line."""
    path, number = Path(path), 0
    records: list[RecordT] = []
    with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as stream:
        try:
            for line in stream:
                number += 1
                records.append(cls.from_json(json.loads(line)))
        except (ValueError, RecursionError) as error:
            raise RecordError(f"{path}:{number}: {error}") from error
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise RecordError(f"{path}: damaged after line {number}: {error}") from error
    return records


def write_jsonl(path: str | os.PathLike[str], rows: Iterable[Record]) -> int:
    """Write records, one JSON object a line, and return how many.

    Atomic: a reader sees the old file or the whole new one. The bytes depend on the records
    only (a .gz file carries neither name nor time). NaN and infinities are a ValueError.
    """
    path = Path(path)
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as raw:
            if path.suffix == ".gz":
                with gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0) as packed:
                    count = _write_lines(packed, rows)
            else:
                count = _write_lines(raw, rows)
            raw.flush()
            os.fsync(raw.fileno())
            os.fchmod(raw.fileno(), 0o644)  # mkstemp makes private files
        os.replace(temporary, path)
    finally:
        Path(temporary).unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    os.fsync(folder)  # makes the rename itself durable
    os.close(folder)
    return count


def _write_lines(stream: IO[bytes] | gzip.GzipFile, rows: Iterable[Record]) -> int:
    count = 0
    for row in rows:
        line = json.dumps(row.to_json(), ensure_ascii=False, allow_nan=False)
        stream.write(line.encode("utf-8") + b"\n")
        count += 1
    return count
