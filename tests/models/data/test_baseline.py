"""Audits compared by the pairs' texts, by hand."""

from __future__ import annotations

import gzip
import importlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from trimtab.models.data.baseline import BaselineError, compare, read_baseline

parquet: Any = importlib.import_module("pyarrow.parquet")
pyarrow: Any = importlib.import_module("pyarrow")
NAMES = ("prompt", "chosen", "rejected", "mean preference difference")
BEFORE = [
    ("p", "a", "b", 1.0),  # stays right
    ("p", "c", "d", 1.0),  # newly wrong
    ("p", "e", "f", -1.0),  # no longer wrong
    ("p", "g", "h", -1.0),  # stays wrong
    ("p", "i", "j", -1.0),  # flipped
    ("p", "k", "l", -0.5),  # gone
]
AFTER = [
    ("p", "a", "b", 0.0),
    ("p", "c", "d", -0.1),
    ("p", "e", "f", 2.0),
    ("p", "g", "h", -2.0),
    ("p", "j", "i", 1.0),
    ("q", "a", "b", -1.0),  # new: of another prompt
    ("pa", "", "b", 1.0),  # new, though the texts together are the same
]


def _write(path: Path, rows: Sequence[tuple[Any, ...]]) -> Path:
    values = [dict(zip(NAMES, row, strict=True)) | {"note": [1]} for row in rows]
    if path.suffix == ".parquet":
        parquet.write_table(pyarrow.Table.from_pylist(values), path)
    else:
        with gzip.open(path, "wt", encoding="utf-8") as lines:
            lines.writelines(json.dumps(value) + "\n" for value in values)
    return path


@pytest.mark.parametrize("kind", ["parquet", "jsonl.gz"])
def test_labels_by_hand(tmp_path: Path, kind: str) -> None:
    before = read_baseline(_write(tmp_path / f"before.{kind}", BEFORE))
    found = compare(before, _write(tmp_path / f"after.{kind}", AFTER))
    assert found.numbers == {
        "num_common": 4,
        "num_newly_wrong": 1,
        "num_no_longer_wrong": 1,
        "num_turned": 1,
        "num_turned_wrong": 0,
        "num_new": 2,
        "num_new_wrong": 1,
        "num_gone": 1,
        "num_changed": 3,
        "num_changed_wrong": 1,
    }
    assert found.strengths == [row[3] for row in AFTER]
    assert found.is_changed == [False] * 4 + [True] * 3
    assert "1 newly look wrong, and 1 no longer do" in found.lines()[0]
    assert "1 look wrong (33.3%)" in found.lines()[1]
    same = compare(before, tmp_path / f"before.{kind}")
    assert [same.numbers[f"num_{part}"] for part in ("common", "changed", "gone")] == [6, 0, 0]
    assert "0 look wrong." in same.lines()[1]


def test_files_that_are_no_audit_and_audits_of_other_pairs(tmp_path: Path) -> None:
    audited = _write(tmp_path / "audited.parquet", AFTER)
    other = read_baseline(_write(tmp_path / "other.parquet", [("other", "x", "y", 1.0)]))
    with pytest.raises(BaselineError, match="none of the 1 labels of the baseline"):
        compare(other, audited)
    (tmp_path / "text.txt").write_text("x")
    (tmp_path / "broken.parquet").write_text("x")
    (tmp_path / "empty.jsonl").write_text("\n")
    (tmp_path / "nan.jsonl").write_text(json.dumps(dict(zip(NAMES, (*"pab", None), strict=True))))
    for name, said in (
        ("nothing.parquet", "found no file"),
        ("text.txt", "unreadable_source"),
        ("broken.parquet", "unreadable_source"),
        ("empty.jsonl", "has no pairs"),
        ("nan.jsonl", "nan.jsonl:1 is no row of an audit"),
    ):
        with pytest.raises(BaselineError, match=rf"(?s){said}.*allowed: audited\.parquet"):
            read_baseline(tmp_path / name)
