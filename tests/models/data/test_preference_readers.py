"""Readers: gzip, Parquet, folders, the hub, and sources that cannot be read to their end."""

import gzip
import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trimtab.models.data.loading import load_preferences
from trimtab.models.data.problems import PreferenceDataError
from trimtab.models.data.readers import Source

# modules without type stubs
datasets = importlib.import_module("datasets")
pyarrow = importlib.import_module("pyarrow")
parquet = importlib.import_module("pyarrow.parquet")

WriteRows = Callable[..., str]
ROWS: list[dict[str, Any]] = [
    {"id": str(n), "prompt": f"Q{n}", "chosen": "A", "rejected": "B"} for n in range(1200)
]


def ids(path: str) -> list[str]:
    pairs, _, _ = load_preferences([Source(path)])
    return [pair.id for pair in pairs]


@pytest.mark.parametrize("name", ["rows.jsonl.gz", "rows.jsonl", "ROWS.JSON"])
def test_gzip_is_told_by_content(tmp_path: Path, name: str) -> None:
    text = "".join(json.dumps(row) + "\r\n" for row in ROWS[:3])
    (tmp_path / name).write_bytes(gzip.compress(text.encode()))
    assert ids(str(tmp_path / name)) == ["0", "1", "2"]


def test_blank_lines_and_a_byte_order_mark_are_no_rows(write_rows: WriteRows) -> None:
    rows = [b"\xef\xbb\xbf" + json.dumps(ROWS[0]).encode(), b"", b" \t\r", ROWS[1]]
    pairs, _, report = load_preferences([Source(write_rows(rows))])
    assert [pair.source for pair in pairs] == ["rows.jsonl:1", "rows.jsonl:4"]
    assert report.total.read == 2


def test_a_last_line_without_its_end_is_a_row(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text(json.dumps(ROWS[0]))
    assert ids(str(tmp_path / "rows.jsonl")) == ["0"]


def test_parquet_with_nulls_and_message_lists(tmp_path: Path) -> None:
    user, yes = {"role": "user", "content": "Q"}, {"role": "assistant", "content": "yes"}
    rows: list[dict[str, Any]] = [
        {"chosen": [user, yes], "rejected": [user, yes | {"content": "no"}], "rating": None},
        {"chosen": [user, yes], "rejected": [user, yes], "rating": 2},
    ]
    path = tmp_path / "rows.parquet"
    parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    pairs, bad_rows, _ = load_preferences([Source(str(path))], on_bad_rows="quarantine")
    assert [(pair.chosen, pair.rating) for pair in pairs] == [(" yes", None)]
    assert [(bad.line, bad.reason) for bad in bad_rows] == [(2, "identical_responses")]
    assert json.loads(bad_rows[0].row) == rows[1]


def test_parquet_of_several_batches_keeps_row_numbers(tmp_path: Path) -> None:
    parquet.write_table(pyarrow.Table.from_pylist(ROWS), tmp_path / "rows.parquet")
    pairs, _, _ = load_preferences([Source(str(tmp_path / "rows.parquet"))])
    expected = [f"rows.parquet:{n}" for n in range(1, 1201)]
    assert [pair.source for pair in pairs] == expected


def test_one_parquet_row_of_invalid_utf8_does_not_spoil_the_others(tmp_path: Path) -> None:
    texts = pyarrow.array([b"Q0", b"Q\xff", b"Q2"], pyarrow.binary())
    forged = pyarrow.Array.from_buffers(pyarrow.string(), 3, texts.buffers())
    table = pyarrow.table({"prompt": forged, "chosen": ["A"] * 3, "rejected": ["B"] * 3})
    parquet.write_table(table, tmp_path / "rows.parquet")
    pairs, bad_rows, _ = load_preferences(
        [Source(str(tmp_path / "rows.parquet"))], on_bad_rows="quarantine"
    )
    assert [pair.prompt for pair in pairs] == ["Q0", "Q2"]
    assert [(b.line, b.reason, b.row) for b in bad_rows] == [(2, "invalid_utf8", repr(b"Q\xff"))]


def test_a_folder_is_read_in_order_and_what_is_skipped_is_named(
    write_rows: WriteRows, tmp_path: Path
) -> None:
    for name, row in (("b.jsonl", 1), ("a/c.json", 0), ("z.parquet.jsonl", 2)):
        write_rows([ROWS[row]], f"data/{name}")
    write_rows([b"hello"], "data/README.md")
    write_rows([ROWS[3]], "data/.hidden.jsonl")
    write_rows([ROWS[4]], "data/.git/rows.jsonl")
    pairs, _, report = load_preferences([Source(str(tmp_path / "data"))])
    assert [(pair.id, pair.source) for pair in pairs] == [
        ("0", "data/a/c.json:1"),
        ("1", "data/b.jsonl:1"),
        ("2", "data/z.parquet.jsonl:1"),
    ]
    skipped = [f"{tmp_path}/data/{name}" for name in (".git", ".hidden.jsonl", "README.md")]
    assert report.ignored_files == skipped


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("owner/name", ("owner/name", None, None, "train")),
        ("owner/name:config", ("owner/name", "config", None, "train")),
        ("owner/name/folder/deep", ("owner/name", None, "folder/deep", "train")),
        ("name", ("name", None, None, "train")),
    ],
)
def test_a_hub_id_is_taken_apart(
    monkeypatch: pytest.MonkeyPatch, path: str, expected: tuple[object, ...]
) -> None:
    asked: list[tuple[object, ...]] = []

    def load(address: str, *, name: object, data_dir: object, split: str) -> Any:
        asked.append((address, name, data_dir, split))
        return datasets.Dataset.from_list(ROWS[:2])

    monkeypatch.setattr(datasets, "load_dataset", load)
    assert ids(path) == ["0", "1"]
    assert asked == [expected]


def test_a_hub_that_cannot_be_reached_is_a_missing_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(PreferenceDataError, match=r"missing_source: found 'owner/nothing'"):
        ids("owner/nothing")


@pytest.mark.parametrize("path", ["/no/such/file.jsonl", "no/such.parquet", "./no", "a b", ""])
def test_a_path_that_is_not_there(path: str) -> None:
    with pytest.raises(PreferenceDataError, match="missing_source") as caught:
        ids(path)
    assert [bad.reason for bad in caught.value.bad_rows] == ["missing_source"]


def test_a_source_that_breaks_off_is_never_quarantined(tmp_path: Path) -> None:
    text = "".join(json.dumps(row) + "\n" for row in ROWS).encode()
    (tmp_path / "cut.jsonl.gz").write_bytes(gzip.compress(text)[:-500])
    packed = bytearray(gzip.compress(text))
    packed[10] = 0xFF  # RFC 1951: after the gzip header, a block of the reserved type 3
    (tmp_path / "damaged.jsonl.gz").write_bytes(bytes(packed))
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 and no more")
    (tmp_path / "empty.jsonl").touch()
    (tmp_path / "table.csv").write_text("prompt,chosen,rejected\n")
    (tmp_path / "table.xlsx").write_bytes(b"PK")
    names = ["cut.jsonl.gz", "damaged.jsonl.gz", "bad.parquet", "table.xlsx"]
    empty = ["empty.jsonl", "table.csv"]
    sources = [Source(str(tmp_path / name)) for name in names + empty]
    with pytest.raises(PreferenceDataError) as caught:
        load_preferences(sources, on_bad_rows="quarantine")
    found = {Path(b.file).name: b.reason for b in caught.value.bad_rows if "source" in b.reason}
    expected = dict.fromkeys(names, "unreadable_source") | dict.fromkeys(empty, "empty_source")
    assert found == expected
