"""Fields of the user's rows reach the audited set, from every kind of file, whole and in place."""

from __future__ import annotations

import csv
import datetime
import gzip
import importlib
import json
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from tests.models.conftest import run_stage
from tests.models.reporting.audit.conftest import PAIR
from trimtab.models.config.data import PreferencesConfig
from trimtab.models.data.records import read_rows
from trimtab.models.data.row_fields import MAX_DEPTH, plain
from trimtab.models.reporting.audit import export as exporting
from trimtab.models.reporting.audit.export import FurtherFields, export

pyarrow: Any = importlib.import_module("pyarrow")
parquet: Any = importlib.import_module("pyarrow.parquet")
Row = dict[str, Any]
SPLITS = ("train", "validation", "test")
ROWS: list[Row] = [
    {
        "prompt": f"question {n}",
        "chosen": f"good {n}",
        "rejected": f"bad {n}",
        "source": "survey" if n % 2 else None,
        "annotator": f"worker {n % 7}",
        "seconds": n / 4,
        "meta": {"models": ["a", f"m{n}"], "round": n if n % 3 else None},
    }
    for n in range(60)
]


def _json_lines(path: Path) -> Path:
    path = path / "pairs.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


def _json_list(path: Path) -> Path:
    path = path / "pairs.json"
    path.write_text(json.dumps(ROWS))
    return path


def _csv(path: Path) -> Path:
    path = path / "pairs.csv"
    with path.open("w", newline="") as stream:
        table = csv.DictWriter(stream, ROWS[0])
        table.writeheader()
        table.writerows(row | {"meta": json.dumps(row["meta"])} for row in ROWS)
    return path


def _parquet(path: Path) -> Path:
    parquet.write_table(pyarrow.Table.from_pylist(ROWS), path / "pairs.parquet")
    return path / "pairs.parquet"


def _arrow(path: Path) -> Path:
    table = pyarrow.Table.from_pylist(ROWS)
    with pyarrow.ipc.new_stream(str(path / "pairs.arrow"), table.schema) as stream:
        stream.write_table(table)
    return path / "pairs.arrow"


def _preferences(file: Path, work: Path, **changes: Any) -> Path:
    config = PreferencesConfig(
        sources=(file.name,), validation_share=0.2, test_share=0.2, max_pairs=50, **changes
    )
    return run_stage("preferences", config, work, source_0=file.parent)


def _audited(preferences: Path, folder: Path) -> tuple[list[Row], list[Row]]:
    """The audited set of all pairs of the stage, from both files."""
    rows = [
        row | {"split": split}
        for split in SPLITS
        for row in read_rows(preferences / f"{split}.jsonl")
    ]
    names = ("id", "prompt", "chosen", "rejected", "category", "split", "source")
    pairs = [
        replace(PAIR, **{name: row[name] for name in names}, messages=row.get("messages"))
        for row in rows
    ]
    export(pairs, folder, FurtherFields(preferences / "fields"))
    with gzip.open(folder / "audited.jsonl.gz", "rt", encoding="utf-8") as stream:
        lines = [json.loads(line) for line in stream]
    return lines, parquet.read_table(folder / "audited.parquet").to_pylist()


@pytest.mark.parametrize("write", [_json_lines, _json_list, _csv, _parquet, _arrow])
def test_fields_of_every_kind_of_file(write: Callable[[Path], Path], tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    raw.mkdir()
    lines, table = _audited(_preferences(write(raw), tmp_path / "work"), tmp_path)
    assert len(lines) == len(table) == 50
    by_prompt = {row["prompt"]: row for row in ROWS}
    for found in (lines, table):
        for row in found:
            given = by_prompt[row["prompt"]]
            assert row["given_source"] == given["source"]  # `source` is our own file and line
            assert row["source"].startswith("pairs.")
            assert row["annotator"] == given["annotator"]
            if write is _csv:  # where all is text
                assert float(row["seconds"]) == given["seconds"]
                assert json.loads(row["meta"]) == given["meta"]
            else:
                assert (row["seconds"], row["meta"]) == (given["seconds"], given["meta"])
            assert "given_prompt" not in row  # what the pair holds as it is stands once


def test_whole_dialogues_are_not_kept_twice_and_message_lists_are_kept(tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    raw.mkdir()
    text = "\n\nHuman: question {}\n\nAssistant: {}"
    rows: list[Row] = [
        {"chosen": text.format(n, "good"), "rejected": text.format(n, "bad")} for n in range(40)
    ]
    (raw / "pairs.jsonl").write_text("\n".join(map(json.dumps, rows)))
    work = _preferences(raw / "pairs.jsonl", tmp_path / "hh")
    assert not (work / "fields").exists()
    lines, table = _audited(work, tmp_path)
    assert set(lines[0]) == set(table[0]) == set(exporting.SCHEMA.names)
    said = [
        {"role": "assistant", "content": "good"},
        {"role": "assistant", "content": "bad"},
    ]
    rows = [
        {"prompt": [{"role": "user", "content": f"q{n}"}], "chosen": said[:1], "rejected": said[1:]}
        for n in range(40)
    ]
    (raw / "pairs.jsonl").write_text("\n".join(map(json.dumps, rows)))
    for found in _audited(_preferences(raw / "pairs.jsonl", tmp_path / "messages"), tmp_path):
        assert set(found[0]) == {*exporting.SCHEMA.names, "messages"}
        assert (found[0]["messages"]["chosen"], found[0]["chosen"]) == (said[:1], " good")
        assert found[0]["messages"]["prompt"][0]["role"] == "user"


def test_rows_of_several_pairs_and_pairs_of_two_rows(tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    raw.mkdir()
    rows: list[Row] = [
        {"id": f"r{n}", "prompt": f"q{n}", "responses": ["a", "b", "c"], "when": n}
        for n in range(40)
    ]
    (raw / "pairs.jsonl").write_text("\n".join(map(json.dumps, rows)))
    lines, _ = _audited(_preferences(raw / "pairs.jsonl", tmp_path / "kwise"), tmp_path)
    for row in lines:
        number, _, ranks = row["id"].partition("#")
        assert (row["when"], row["given_id"], bool(ranks)) == (int(number[1:]), number, True)
        assert "responses" not in row  # of which the answers are made
    rows = [
        {"prompt": f"q{n}", "completion": f"c{label}", "label": label, "who": f"w{n}{label}"}
        for label in (False, True)
        for n in range(40)
    ]
    (raw / "pairs.jsonl").write_text("\n".join(map(json.dumps, rows)))
    lines, _ = _audited(_preferences(raw / "pairs.jsonl", tmp_path / "kto"), tmp_path)
    for row in lines:
        number = row["prompt"][1:]
        assert (row["chosen_who"], row["rejected_who"]) == (f"w{number}True", f"w{number}False")
        assert "chosen_completion" not in row


def _exported(folder: Path, values: list[Row]) -> tuple[list[Row], list[Row], Any]:
    pairs = [replace(PAIR, id=str(n)) for n in range(len(values))]
    export(pairs, folder, list(map(json.dumps, values)))
    with gzip.open(folder / "audited.jsonl.gz", "rt", encoding="utf-8") as stream:
        lines = [json.loads(line) for line in stream]
    table = parquet.read_table(folder / "audited.parquet")
    return lines, table.to_pylist(), table.schema


def test_types_of_columns_by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporting, "ROWS_AT_ONCE", 2)  # values of one field in several batches
    values: list[Row] = [
        {
            "n": 2**60 + 1,
            "deep": {"a": [1]},
            "mixed": "x",
            "large": 2**70,
            "none": None,
            "bare": {},
        },
        {"label": "good", "given_label": "mine"},
        {"n": 0.5, "deep": {"b": {"c": "d"}}, "mixed": [1], "bare": {}},
        {"deep": {"a": [2.5], "b": None}},
    ]
    lines, rows, schema = _exported(tmp_path, values)
    own = {name for row in values for name in row} - {"label"}
    assert [{n: row[n] for n in own if n in row} for row in lines] == [
        {n: v for n, v in row.items() if n != "label"} for row in values
    ]
    assert lines[1]["given_given_label"] == "good"  # ours is `label`, and `given_label` is taken
    assert (lines[1]["label"], lines[1]["given_label"]) == (1.0, "mine")
    assert [row["n"] for row in rows] == [float(2**60), None, 0.5, None]
    assert [row["deep"] for row in rows] == [
        {"a": [1.0], "b": None},
        None,
        {"a": None, "b": {"c": "d"}},
        {"a": [2.5], "b": None},
    ]
    assert [row["mixed"] for row in rows] == ['"x"', None, "[1]", None]  # JSON text
    assert [row["large"] for row in rows] == [str(2**70), None, None, None]
    assert [row["bare"] for row in rows] == ["{}", None, "{}", None]
    assert (
        str(schema.field("deep").type) == "struct<a: list<element: double>, b: struct<c: string>>"
    )


def test_objects_of_very_many_keys_are_text_in_parquet(tmp_path: Path) -> None:
    values = [{"meta": {f"key {n} {m}": m for m in range(30)}} for n in range(20)]
    lines, rows, _ = _exported(tmp_path, values)
    assert [row["meta"] for row in lines] == [each["meta"] for each in values]
    assert [json.loads(row["meta"]) for row in rows] == [each["meta"] for each in values]


def test_an_object_of_very_many_keys_is_never_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Arrow would make a column of each of its keys, and those of rows before it."""
    typed: list[int] = []
    common_type = exporting._common_type

    def watched(known: Any, values: list[Any]) -> Any:
        typed.append(len(values))
        return common_type(known, values)

    monkeypatch.setattr(exporting, "_common_type", watched)
    monkeypatch.setattr(exporting, "ROWS_AT_ONCE", 2)
    many = {f"key {n}": n for n in range(2_000)}
    values = [{"meta": {"a": 1}}, {"meta": None}, {"meta": [{"deep": many}]}, {"meta": {"a": 2}}]
    lines, rows, schema = _exported(tmp_path, values)
    assert typed == [2]  # the first batch alone
    assert schema.field("meta").type == pyarrow.string()
    assert [row["meta"] for row in lines] == [each["meta"] for each in values]
    assert rows[1]["meta"] is None
    assert json.loads(rows[2]["meta"]) == values[2]["meta"]


def test_keys_of_all_objects_together_have_a_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of five keys `a` takes two, `b` would take four, which are not left, and `c` takes three."""
    monkeypatch.setattr(exporting, "MAX_PARTS", 5)
    values: list[Row] = [
        {"a": {"x": 1, "y": [{}]}, "b": {"s": {"t": {"u": 1, "v": 2}}}, "c": {"p": {"q": 1}}},
        {"a": {"x": 2}, "c": {"p": {"r": 2}}},
    ]
    _, rows, schema = _exported(tmp_path, values)
    kinds = {name: pyarrow.types.is_struct(schema.field(name).type) for name in "bc"}
    assert kinds == {"b": False, "c": True}
    assert json.loads(rows[0]["b"]) == values[0]["b"]
    assert rows[1]["c"] == {"p": {"q": None, "r": 2}}
    assert json.loads(rows[0]["a"]) == values[0]["a"]  # an object without keys is no column


def test_fields_beyond_a_number_are_one_column(tmp_path: Path) -> None:
    """A field of its own in each row; one of the rest, and one of all, have the names of ours."""
    most = exporting.MAX_FIELDS
    values: list[Row] = [{f"key {n}": n} for n in range(most + 20)]
    values[0] = {"key 0": 0, "further_fields": "mine"}
    values[-1] |= {"label": "good"}
    lines, rows, schema = _exported(tmp_path, values)
    assert len(schema) == len(exporting.SCHEMA) + most + 1
    own = range(most - 1)  # beside `further_fields`
    assert all(rows[n][f"key {n}"] == n for n in own)
    assert rows[0]["given_further_fields"] == "mine"
    assert all(rows[n]["further_fields"] is None for n in own)
    for n in range(most - 1, most + 20):
        assert json.loads(rows[n]["further_fields"]) == values[n]
        assert lines[n][f"key {n}"] == n
    assert (lines[-1]["label"], lines[-1]["given_label"]) == (1.0, "good")


def test_rows_are_in_memory_by_their_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each row is some 500 characters: two together have more than 900."""
    monkeypatch.setattr(exporting, "CHARACTERS_AT_ONCE", 900)
    values = [{"text": f"{n}" * 500} for n in range(5)]
    _, rows, _ = _exported(tmp_path, values)
    assert [row["text"] for row in rows] == [each["text"] for each in values]
    table = parquet.ParquetFile(tmp_path / "audited.parquet").metadata
    groups = [table.row_group(n).num_rows for n in range(table.num_row_groups)]
    assert groups == [2, 2, 1]
    texts = [replace(PAIR, prompt="x" * 900)] * 3
    export(texts, tmp_path)
    assert parquet.ParquetFile(tmp_path / "audited.parquet").metadata.num_row_groups == 3


def test_values_that_are_no_json(tmp_path: Path) -> None:
    deep: Any = "end"
    for _ in range(MAX_DEPTH + 5):
        deep = [deep]
    for given, found in (
        (datetime.date(2026, 1, 2), "2026-01-02"),
        (Decimal("1.50"), "1.50"),
        (b"\xff\x00", "/wA="),
        (float("nan"), None),
        ({"a": float("inf"), 1: ("x", None)}, {"a": None, "1": ["x", None]}),
        ("half \ud83d é", "half ? é"),
    ):
        assert plain(given) == found
    found = plain(deep)
    for _ in range(MAX_DEPTH):
        (found,) = found
    assert json.loads(found) == [[[[["end"]]]]]


class _Many:
    """Fields of many rows, made when they are read."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Iterator[str]:
        return (json.dumps({"meta": {"text": f"{n}" * 400}}) for n in range(self.count))


@pytest.mark.slow
def test_memory_does_not_grow_with_the_fields(tmp_path: Path) -> None:
    peaks = []
    for count in (4_000, 12_000):
        pairs = [PAIR] * count
        tracemalloc.start()
        export(pairs, tmp_path, _Many(count))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.2 * peaks[0]
