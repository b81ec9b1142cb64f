"""The audited set as data: every pair with its vote and its treatment, as JSON lines and Parquet.

`mean preference difference` and `std preference difference` are named as in the annotated HH set
of [RM], arXiv 2401.06080 (fnlp/hh-rlhf-strength-cleaned), so that the two compare. There `chosen`
and `rejected` are lists of turns; here they are the answers, and `prompt` is what goes before.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from trimtab.models.reporting.audit.pairs import AuditedPair

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
ROWS_AT_ONCE = 10_000


def export(pairs: Sequence[AuditedPair], folder: Path) -> None:
    """Write audited.jsonl.gz and audited.parquet; the bytes depend on the pairs only."""
    with (
        (folder / "audited.jsonl.gz").open("wb") as raw,
        gzip.GzipFile("", "wb", compresslevel=6, fileobj=raw, mtime=0) as lines,
        pq.ParquetWriter(folder / "audited.parquet", SCHEMA, compression="zstd") as table,
    ):
        for start in range(0, len(pairs), ROWS_AT_ONCE):
            rows = [_row(pair) for pair in pairs[start : start + ROWS_AT_ONCE]]
            for row in rows:
                line = json.dumps(row, ensure_ascii=False, allow_nan=False)
                lines.write(line.encode("utf-8") + b"\n")
            table.write_table(pa.Table.from_pylist(rows, SCHEMA))


def _row(pair: AuditedPair) -> dict[str, Any]:
    row = {name: getattr(pair, name, None) for name in SCHEMA.names}
    return row | {
        "differences": list(pair.differences),
        MEAN: pair.strength_mean,
        STD: pair.strength_std,
    }
