"""The audited set as data: every pair with its vote and its treatment, as JSON lines and Parquet.

`mean preference difference` and `std preference difference` are named as in the annotated HH set
of [RM], arXiv 2401.06080 (fnlp/hh-rlhf-strength-cleaned), so that the two compare. There `chosen`
and `rejected` are lists of turns; here they are the answers, and `prompt` is what goes before.

Behind these columns comes, where pairs were read as messages, `messages`: {prompt, chosen,
rejected}, of which their texts were made; and then the further fields of the rows that pairs were
read from. `chosen` is the answer labelled better in both forms, also where `is_flipped` says that
the treatment prefers the other.

In Parquet a further field is a column of the type of its values, and there each key of an object is
a column of its own. So that rows of very many keys take neither time nor memory without bound,
there are at most MAX_FIELDS such columns, and MAX_PARTS keys of objects in all of them together.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from trimtab.models.reporting.audit.pairs import AuditedPair
from trimtab.models.reporting.kit.artifacts import SPLITS, Row

MESSAGES = "messages"
MEAN, STD = "mean preference difference", "std preference difference"
SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("source", pa.string(), nullable=False),
        pa.field("split", pa.string(), nullable=False),
        pa.field("category", pa.string()),
        pa.field("prompt", pa.string(), nullable=False),
        pa.field("chosen", pa.string(), nullable=False),
        pa.field("rejected", pa.string(), nullable=False),
        pa.field("is_flipped", pa.bool_(), nullable=False),
        pa.field("label", pa.float64(), nullable=False),
        pa.field("margin", pa.float64(), nullable=False),
        pa.field("weight", pa.float64(), nullable=False),
        pa.field("review", pa.string()),
        pa.field("differences", pa.list_(pa.float64()), nullable=False),
        pa.field(MEAN, pa.float64(), nullable=False),
        pa.field(STD, pa.float64(), nullable=False),
    ]
)
GIVEN, REST = "given_", "further_fields"
MAX_FIELDS, MAX_PARTS = 500, 500
# In memory at once: rows, and the characters of their texts and fields, where one row has no more.
ROWS_AT_ONCE, CHARACTERS_AT_ONCE = 2_000, 16_000_000

Item = TypeVar("Item")


@dataclass(frozen=True)
class FurtherFields:
    """The fields that stage `preferences` kept beside its pairs, in the order of `audited_pairs`:
    each pair's a JSON object.

    folder: of `RowFields.write`; where there is none, no row had any.
    """

    folder: Path

    def __iter__(self) -> Iterator[str]:
        for split in SPLITS if self.folder.is_dir() else ():
            with (self.folder / f"{split}.jsonl").open(encoding="utf-8") as lines:
                yield from lines


def export(pairs: Sequence[AuditedPair], folder: Path, further: Iterable[str] = ()) -> None:
    """Write audited.jsonl.gz and audited.parquet; the bytes depend on the arguments only.

    further: fields of the pairs' rows, each pair's a JSON object, in the order of `pairs`, or none
    at all; read twice, ROWS_AT_ONCE or CHARACTERS_AT_ONCE of them at once.
    """
    messages = FieldColumns(())
    for dialogues in _batches((pair for pair in pairs if pair.messages), _num_characters):
        messages.add([{MESSAGES: pair.messages} for pair in dialogues])
    known = pa.schema([*SCHEMA, *messages.schema()])
    columns, has_any = FieldColumns(known.names), False
    for lines in _batches(further, len):
        columns.add([json.loads(line) for line in lines])
        has_any = True
    names, schema = columns.new_names(), pa.schema([*known, *columns.schema()])
    fields = further if has_any else repeat("{}", len(pairs))
    with (
        (folder / "audited.jsonl.gz").open("wb") as raw,
        gzip.GzipFile("", "wb", compresslevel=6, fileobj=raw, mtime=0) as stream,
        pq.ParquetWriter(folder / "audited.parquet", schema, compression="zstd") as table,
    ):
        both = zip(pairs, fields, strict=True)
        for batch in _batches(both, lambda both: _num_characters(both[0]) + len(both[1])):
            rows = [
                {name: getattr(pair, name, None) for name in known.names}
                | {MEAN: pair.strength_mean, STD: pair.strength_std}
                for pair, _ in batch
            ]
            extras = [json.loads(line) for _, line in batch]
            for row, extra in zip(rows, extras, strict=True):
                row_and_extra = row | {names.get(name, name): extra[name] for name in extra}
                line = json.dumps(row_and_extra, ensure_ascii=False, allow_nan=False)
                stream.write(line.encode("utf-8") + b"\n")
            arrays = [*pa.Table.from_pylist(rows, SCHEMA).columns, *messages.arrays(rows)]
            arrays += columns.arrays(extras)
            table.write_table(pa.Table.from_arrays(arrays, schema=schema))


def _batches(items: Iterable[Item], size: Callable[[Item], int]) -> Iterator[list[Item]]:
    """Items in their order, so many together as may be in memory at once."""
    batch: list[Item] = []
    total = 0
    for item in items:
        batch.append(item)
        total += size(item)
        if len(batch) >= ROWS_AT_ONCE or total >= CHARACTERS_AT_ONCE:
            yield batch
            batch, total = [], 0
    if batch:
        yield batch


def _num_characters(pair: AuditedPair) -> int:
    texts = len(pair.prompt) + len(pair.chosen) + len(pair.rejected)
    return texts if pair.messages is None else 2 * texts


class FieldColumns:
    """The columns of fields, in the order in which they occur; all rows are to be added first.

    A field is JSON text where its values have no type in common, or more keys than are left of
    MAX_PARTS. Fields beyond MAX_FIELDS are together a JSON object, in the column REST.
    """

    def __init__(self, taken: Iterable[str]) -> None:
        """taken: names of other columns. A field named like one, or REST, has GIVEN before it."""
        self._taken = {*taken, REST}
        self._types: dict[str, pa.DataType | None] = {}  # None: JSON text
        self._keys: dict[str, set[tuple[str, ...]]] = {}
        self._clashing: set[str] = set()
        self._has_rest = False

    def add(self, rows: Sequence[Row]) -> None:
        """Take the fields of some rows into account."""
        for name in dict.fromkeys(name for row in rows for name in row):
            if name in self._taken or name.startswith(GIVEN):
                self._clashing.add(name)
            if name in self._types or len(self._types) < MAX_FIELDS:
                known = self._types.get(name, pa.null())
                if known is not None:
                    self._types[name] = self._type(name, known, [row.get(name) for row in rows])
            else:
                self._has_rest = True

    def _type(self, name: str, known: pa.DataType, values: list[Any]) -> pa.DataType | None:
        keys = self._keys.pop(name, set())
        left = MAX_PARTS - sum(map(len, self._keys.values()))
        if not _add_keys(values, (), keys, left):  # before Arrow makes a column of each
            return None
        kind = _common_type(known, values)
        if kind is not None:
            self._keys[name] = keys
        return kind

    def new_names(self) -> dict[str, str]:
        """What fields are called whose names are taken."""
        names = {}
        for name in self._clashing & self._taken:
            new = name
            while new in self._taken or new in self._clashing:
                new = f"{GIVEN}{new}"
            names[name] = new
        return names

    def schema(self) -> list[pa.Field]:
        """Names and types of the columns."""
        names = self.new_names()
        fields = [
            pa.field(names.get(n, n), pa.string() if _is_text(kind) else kind)
            for n, kind in self._types.items()
        ]
        return [*fields, pa.field(REST, pa.string())] if self._has_rest else fields

    def arrays(self, rows: Sequence[Row]) -> list[pa.Array]:
        """The columns of some rows."""
        arrays = [_array([row.get(n) for row in rows], kind) for n, kind in self._types.items()]
        if self._has_rest:
            rest = [{n: v for n, v in row.items() if n not in self._types} for row in rows]
            arrays.append(_array([fields or None for fields in rest], None))
        return arrays


def _add_keys(
    value: dict[str, Any] | list[Any], path: tuple[str, ...], keys: set[tuple[str, ...]], most: int
) -> bool:
    """Add the paths of all objects' keys; False, and not all of them, where there are too many."""
    if isinstance(value, dict):
        keys.update((*path, name) for name in value)
        parts = (((*path, name), part) for name, part in value.items())
    else:
        parts = ((path, part) for part in value)
    return len(keys) <= most and all(
        _add_keys(part, place, keys, most) for place, part in parts if isinstance(part, dict | list)
    )


def _common_type(known: pa.DataType, values: Sequence[Any]) -> pa.DataType | None:
    """A type that these values have in common with others; None where there is none."""
    try:
        schemas = [pa.schema([("", kind)]) for kind in (known, pa.array(values).type)]
        return pa.unify_schemas(schemas, promote_options="permissive").field(0).type
    except (pa.ArrowException, OverflowError):
        return None


def _is_text(kind: pa.DataType | None) -> bool:
    """Whether a column is text: of values without a type in common, or of objects that may have no
    key, which Parquet cannot hold."""
    if kind is None:
        return True
    if pa.types.is_list(kind):
        return _is_text(kind.value_type)
    if pa.types.is_struct(kind):
        return not kind.num_fields or any(_is_text(field.type) for field in kind)
    return False


def _array(values: Sequence[Any], kind: pa.DataType | None) -> pa.Array:
    """A column of a type. Of whole numbers beside others it keeps what a float64 holds."""
    if _is_text(kind):
        texts = [None if v is None else json.dumps(v, ensure_ascii=False) for v in values]
        return pa.array(texts, pa.string())
    try:
        return pa.array(values, kind)
    except pa.ArrowInvalid:
        return pa.array(values).cast(kind, safe=False)
