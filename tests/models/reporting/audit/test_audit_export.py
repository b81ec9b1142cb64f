"""The audited set as data: the same rows in both files, and the same bytes every time."""

from __future__ import annotations

import gzip
import importlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from trimtab.models.data.loading import load_preferences
from trimtab.models.data.readers import Source
from trimtab.models.reporting.audit.export import export
from trimtab.models.reporting.audit.pairs import AuditedPair

parquet: Any = importlib.import_module("pyarrow.parquet")
datasets: Any = importlib.import_module("datasets")


def _lines(folder: Path) -> list[dict[str, Any]]:
    with gzip.open(folder / "audited.jsonl.gz", "rt", encoding="utf-8") as stream:
        return [json.loads(line) for line in stream]


def test_rows_by_hand_in_both_files(pairs: list[AuditedPair], tmp_path: Path) -> None:
    export(pairs, tmp_path)
    rows = _lines(tmp_path)
    assert rows == parquet.read_table(tmp_path / "audited.parquet").to_pylist()
    assert [row["id"] for row in rows] == ["t0", "t1", "t2", "t3", "v0", "e0"]
    texts = {name: getattr(pairs[1], name) for name in ("prompt", "chosen", "rejected")}
    assert rows[1] == texts | {
        "id": "t1",
        "source": "",
        "split": "train",
        "category": "a",
        "is_flipped": False,
        "label": 0.9,
        "margin": 0.0,
        "weight": 1.0,
        "review": None,
        "differences": [1.0, -2.0],
        "mean preference difference": -0.5,
        "std preference difference": 1.5,
    }


def test_types_are_those_of_the_annotated_hh_set(pairs: list[AuditedPair], tmp_path: Path) -> None:
    """Its mean and deviation are numbers, also where all are whole; our null is a null."""
    export([replace(pairs[0], differences=(None, -2.0), category=None)], tmp_path)
    features = datasets.Dataset.from_parquet(str(tmp_path / "audited.parquet")).features
    for name in ("mean preference difference", "std preference difference", "label", "margin"):
        assert features[name].dtype == "float64"
    assert features["category"].dtype == features["review"].dtype == "string"
    assert features["is_flipped"].dtype == "bool"
    (row,) = _lines(tmp_path)
    assert row["differences"] == [None, -2.0]


def test_same_pairs_give_the_same_bytes(pairs: list[AuditedPair], tmp_path: Path) -> None:
    contents = []
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        export(pairs, tmp_path / name)
        contents.append([file.read_bytes() for file in sorted((tmp_path / name).iterdir())])
    assert contents[0] == contents[1]


def test_no_number_that_is_none_is_written(pairs: list[AuditedPair], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        export([replace(pairs[0], margin=float("nan"))], tmp_path)


def test_what_was_exported_is_read_as_preferences(pairs: list[AuditedPair], tmp_path: Path) -> None:
    export(pairs, tmp_path)
    for name in ("audited.jsonl.gz", "audited.parquet"):
        read, _, report = load_preferences([Source(str(tmp_path / name))])
        found = [(p.id, p.prompt, p.chosen, p.rejected, p.category) for p in read]
        assert found == [(p.id, p.prompt, p.chosen, p.rejected, p.category) for p in pairs]
        assert {"label", "weight", "mean preference difference"} <= set(report.ignored_fields)
