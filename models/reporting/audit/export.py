"""The audited set as data: every pair with its vote and its treatment, as JSON lines and Parquet.

`mean preference difference` and `std preference difference` are named as in the annotated HH set
of [RM], arXiv 2401.06080 (fnlp/hh-rlhf-strength-cleaned), so that the two compare. There `chosen`
and `rejected` are lists of turns; here they are the answers, and `prompt` is what goes before.

Behind these columns come the further fields of the rows that pairs were read from; one that is
named as a column of ours has GIVEN before its name.
"""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from trimtab.models.reporting.audit.pairs import AuditedPair
from trimtab.models.reporting.kit.artifacts import SPLITS, Row

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
GIVEN = "given_"
ROWS_AT_ONCE = 2_000
# A value of more parts than this is JSON text in Parquet: each part is a column of its own there.
MAX_PARTS = 500


@dataclass(frozen=True)
class FurtherFields:
    """The fields that stage `preferences` kept beside its pairs, in the order of `audited_pairs`.

    folder: of `RowFields.write`; where there is none, no row had any.
    """

    folder: Path

    def __iter__(self) -> Iterator[Row]:
        for split in SPLITS if self.folder.is_dir() else ():
            with (self.folder / f"{split}.jsonl").open(encoding="utf-8") as lines:
                yield from map(json.loads, lines)


def export(pairs: Sequence[AuditedPair], folder: Path, further: Iterable[Row] = ()) -> None:
    """Write audited.jsonl.gz and audited.parquet; the bytes depend on the arguments only.

    further: fields of the pairs' rows, each pair's in the order of `pairs`, or none at all; read
    twice, ROWS_AT_ONCE of them at once. In Parquet a column has the type of its values, nested too;
    where they have none in common it is JSON text.
    """
    types = _types(further)
    names = {name: _name(name, types) for name in types}
    schema = pa.schema([*SCHEMA, *(_field(names[n], kind) for n, kind in types.items())])
    fields = iter(further)
    with (
        (folder / "audited.jsonl.gz").open("wb") as raw,
        gzip.GzipFile("", "wb", compresslevel=6, fileobj=raw, mtime=0) as lines,
        pq.ParquetWriter(folder / "audited.parquet", schema, compression="zstd") as table,
    ):
        for start in range(0, len(pairs), ROWS_AT_ONCE):
            rows = [_row(pair) for pair in pairs[start : start + ROWS_AT_ONCE]]
            own = list(islice(fields, len(rows))) if types else [{}] * len(rows)
            for row, extra in zip(rows, own, strict=True):
                found = row | {names[name]: value for name, value in extra.items()}
                line = json.dumps(found, ensure_ascii=False, allow_nan=False)
                lines.write(line.encode("utf-8") + b"\n")
            columns = pa.Table.from_pylist(rows, SCHEMA).columns
            columns += [_column([row.get(n) for row in own], kind) for n, kind in types.items()]
            table.write_table(pa.Table.from_arrays(columns, schema=schema))


def _row(pair: AuditedPair) -> dict[str, Any]:
    row = {name: getattr(pair, name, None) for name in SCHEMA.names}
    return row | {
        "differences": list(pair.differences),
        MEAN: pair.strength_mean,
        STD: pair.strength_std,
    }


def _name(name: str, taken: Iterable[str]) -> str:
    """What a further field is called: one that is named as a column of ours, or the like, anew."""
    if name not in SCHEMA.names:
        return name
    while name in SCHEMA.names or name in taken:
        name = f"{GIVEN}{name}"
    return name


def _field(name: str, kind: pa.DataType | None) -> pa.Field:
    return pa.field(name, pa.string() if kind is None else kind)


def _types(further: Iterable[Row]) -> dict[str, pa.DataType | None]:
    """The type of each further field in Parquet, in the order in which they occur; None: text."""
    found: dict[str, pa.DataType | None] = {}
    rows = iter(further)
    while batch := list(islice(rows, ROWS_AT_ONCE)):
        for name in dict.fromkeys(name for row in batch for name in row):
            known = found.get(name, pa.null())
            if known is not None:
                found[name] = _common_type(known, [row.get(name) for row in batch])
    return {n: k if k is not None and _parts(k) <= MAX_PARTS else None for n, k in found.items()}


def _common_type(known: pa.DataType, values: Sequence[Any]) -> pa.DataType | None:
    """A type that these values have in common with others; None where there is none."""
    try:
        schemas = [pa.schema([("", kind)]) for kind in (known, pa.array(values).type)]
        return pa.unify_schemas(schemas, promote_options="permissive").field(0).type
    except (pa.ArrowException, OverflowError):
        return None


def _parts(kind: pa.DataType) -> float:
    """How many columns of Parquet hold a type; infinite where Parquet cannot hold it."""
    if pa.types.is_list(kind):
        return _parts(kind.value_type)
    if pa.types.is_struct(kind):
        return sum(_parts(kind.field(index).type) for index in range(kind.num_fields)) or math.inf
    return 1


def _column(values: Sequence[Any], kind: pa.DataType | None) -> pa.Array:
    """A column of a type. Of whole numbers beside others it keeps what a float64 holds."""
    if kind is None:
        texts = [None if each is None else json.dumps(each, ensure_ascii=False) for each in values]
        return pa.array(texts, pa.string())
    try:
        return pa.array(values, kind)
    except pa.ArrowInvalid:
        return pa.array(values).cast(kind, safe=False)
