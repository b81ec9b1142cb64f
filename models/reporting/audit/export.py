"""The audited set as data: every pair with its vote and its treatment, as JSON lines and Parquet.

`mean preference difference` and `std preference difference` are named as in the annotated HH set
of [RM], arXiv 2401.06080 (fnlp/hh-rlhf-strength-cleaned), so that the two compare. There `chosen`
and `rejected` are lists of turns; here they are the answers, and `prompt` is what goes before.

Behind these columns comes, where pairs were read as messages, `messages`: {prompt, chosen,
rejected}, of which their texts were made; and then the further fields of the rows that pairs were
read from (`trimtab.models.reporting.audit.columns`). `chosen` is the answer labelled better in both
forms, also where `is_flipped` says that the treatment prefers the other.
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

from trimtab.models.reporting.audit.columns import FieldColumns
from trimtab.models.reporting.audit.pairs import AuditedPair
from trimtab.models.reporting.kit.artifacts import SPLITS

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
    said = FieldColumns(())
    for some in _batches((pair for pair in pairs if pair.messages), _num_characters):
        said.add([{MESSAGES: pair.messages} for pair in some])
    known = pa.schema([*SCHEMA, *said.schema()])
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
        for batch in _batches(zip(pairs, fields, strict=True), _num_characters_of_both):
            rows = [_row(pair, known) for pair, _ in batch]
            own = [json.loads(line) for _, line in batch]
            for row, extra in zip(rows, own, strict=True):
                found = row | {names.get(name, name): value for name, value in extra.items()}
                line = json.dumps(found, ensure_ascii=False, allow_nan=False)
                stream.write(line.encode("utf-8") + b"\n")
            arrays = [*pa.Table.from_pylist(rows, SCHEMA).columns, *said.arrays(rows)]
            table.write_table(pa.Table.from_arrays([*arrays, *columns.arrays(own)], schema=schema))


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


def _num_characters_of_both(pair_and_fields: tuple[AuditedPair, str]) -> int:
    pair, fields = pair_and_fields
    return _num_characters(pair) + len(fields)


def _row(pair: AuditedPair, schema: pa.Schema) -> dict[str, Any]:
    row = {name: getattr(pair, name, None) for name in schema.names}
    return row | {
        "differences": list(pair.differences),
        MEAN: pair.strength_mean,
        STD: pair.strength_std,
    }
