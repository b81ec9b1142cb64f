"""Kinds of files: the same rows from each, bad ones with their line, and files that break off."""

import bz2
import csv
import gzip
import importlib
import io
import json
import lzma
import random
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trimtab.models.data.files import read_file
from trimtab.models.data.json_text import CHUNK_CHARACTERS
from trimtab.models.data.loading import load_preferences
from trimtab.models.data.problems import PreferenceDataError
from trimtab.models.data.readers import Source
from trimtab.models.data.records import PreferencePair, Votes

# modules without type stubs
datasets = importlib.import_module("datasets")
pyarrow = importlib.import_module("pyarrow")

ROWS: list[dict[str, Any]] = [
    {"prompt": f"Q{n}", "chosen": 'A, "so"\nand\r\nso é🙂', "rejected": f"B\u2028{n}\\"}
    for n in range(700)
]
LINES = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS).encode()


def as_csv(rows: list[dict[str, Any]], delimiter: str = ",") -> bytes:
    stream = io.StringIO()
    writer = csv.DictWriter(stream, list(rows[0]), delimiter=delimiter)
    writer.writeheader()
    writer.writerows(rows)
    return stream.getvalue().encode()


def as_arrow(rows: list[dict[str, Any]], new: Callable[..., Any]) -> bytes:
    table, sink = pyarrow.Table.from_pylist(rows), pyarrow.BufferOutputStream()
    with new(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


# Lines of rows: None where each is a row behind the one before.
KINDS: list[tuple[str, bytes, list[int] | None]] = [
    ("a.jsonl.bz2", bz2.compress(LINES), None),
    ("a.jsonl.xz", lzma.compress(LINES), None),
    ("a.ndjson.zst", pyarrow.compress(LINES, codec="zstd", asbytes=True), None),
    ("a.json", json.dumps(ROWS).encode(), None),
    ("lines.csv", LINES, None),
    ("list.tsv", json.dumps(ROWS).encode(), None),
    ("utf8.json", b"\xef\xbb\xbf" + json.dumps(ROWS, ensure_ascii=False).encode(), None),
    ("pretty.json", json.dumps(ROWS, indent=2).encode(), [5 * n + 2 for n in range(700)]),
    ("data.json", json.dumps({"data": ROWS, "version": 1}).encode(), None),
    ("indented.json", json.dumps({"data": ROWS}, indent=1).encode(),
     [5 * n + 3 for n in range(700)]),
    ("objects.json", b"\n".join(json.dumps(row, indent=1).encode() for row in ROWS),
     [5 * n + 1 for n in range(700)]),
    ("a.csv", as_csv(ROWS), [3 * n + 2 for n in range(700)]),
    ("a.csv.gz", gzip.compress(as_csv(ROWS)), [3 * n + 2 for n in range(700)]),
    ("BOM.CSV", b"\xef\xbb\xbf" + as_csv(ROWS), [3 * n + 2 for n in range(700)]),
    ("a.tsv", as_csv(ROWS, "\t"), [3 * n + 2 for n in range(700)]),
    ("excel.csv", b"\xef\xbb\xbf" + as_csv(ROWS, ";"), [3 * n + 2 for n in range(700)]),
    ("tabs.csv", as_csv(ROWS, "\t"), [3 * n + 2 for n in range(700)]),
    ("commas.tsv.gz", gzip.compress(as_csv(ROWS)), [3 * n + 2 for n in range(700)]),
    ("named.csv", b"sep=;\r\n" + as_csv(ROWS, ";"), [3 * n + 3 for n in range(700)]),
    ("blanks.csv", as_csv(ROWS).replace(b"prompt,chosen,rejected", b"prompt , chosen,rejected "),
     [3 * n + 2 for n in range(700)]),
    ("unicode.txt.csv", as_csv(ROWS, "\t").decode().encode("utf-16"),
     [3 * n + 2 for n in range(700)]),
    ("utf16.jsonl.xz", lzma.compress(LINES.decode().encode("utf-16")), None),
    ("big.jsonl", b"\xfe\xff" + LINES.decode().encode("utf-16-be"), None),
    ("unmarked.json", json.dumps(ROWS).encode("utf-16-le"), None),
    ("utf32.jsonl", LINES.decode().encode("utf-32"), None),
    ("stream.arrow", as_arrow(ROWS, pyarrow.ipc.new_stream), None),
    ("file.arrow", as_arrow(ROWS, pyarrow.ipc.new_file), None),
]  # fmt: skip


@pytest.mark.parametrize(("name", "content", "lines"), KINDS, ids=[kind[0] for kind in KINDS])
def test_every_kind_of_file_holds_the_same_rows(
    tmp_path: Path, name: str, content: bytes, lines: list[int] | None
) -> None:
    (tmp_path / name).write_bytes(content)
    pairs, _, _ = load_preferences([Source(str(tmp_path / name))])
    found = [{"prompt": p.prompt, "chosen": p.chosen, "rejected": p.rejected} for p in pairs]
    assert found == ROWS
    places = [f"{name}:{line}" for line in lines or range(1, 701)]
    assert [pair.source for pair in pairs] == places


@pytest.mark.parametrize("size", [1, 7, 100])
def test_a_list_is_read_in_chunks_of_any_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr("trimtab.models.data.json_text.CHUNK_CHARACTERS", size)
    path = tmp_path / "a.json"
    path.write_text(json.dumps([*ROWS[:30], 12345, "x"], ensure_ascii=False), encoding="utf-8")
    assert [row.value for row in read_file(path, "")] == [*ROWS[:30], 12345, "x"]


@pytest.mark.slow
def test_a_long_list_is_never_held_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    row = {"prompt": "Q", "chosen": "A" * 1000, "rejected": "B"}
    with path.open("w") as stream:
        stream.write("[" + ",\n".join([json.dumps(row)] * 20_000) + "]")
    tracemalloc.start()
    assert sum(1 for _ in read_file(path, "")) == 20_000
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # the text read so far, its rest, a chunk as bytes and as text
    assert peak < 5 * CHUNK_CHARACTERS < path.stat().st_size


def load(path: Path) -> tuple[list[PreferencePair], list[tuple[int, str, str | None]], list[str]]:
    pairs, bad, report = load_preferences([Source(str(path))], on_bad_rows="quarantine")
    total = report.total
    assert total.read == total.used + total.quarantined == len(pairs) + len(bad)
    told = [(row.line, row.reason, row.problems[0].field) for row in bad]
    return pairs, told, [row.row for row in bad]


def test_every_bad_row_of_a_list_is_reported(tmp_path: Path) -> None:
    good = '{"prompt": "Q", "chosen": "A", "rejected": "B"}'
    rows = [
        good,
        '{"prompt": "Q", "chosen": NaN, "rejected": ["}", "]"]}',
        '{"prompt" "Q"}',
        '{"prompt": "Q", "chosen": "not closed, "rejected": "B"}',
        "7",
        '{"prompt": "Q", "chosen": "A", "rejected": 5}',
        '{"prompt": "caf\udce9", "chosen": "A", "rejected": "B"}',
        good,
    ]
    path = tmp_path / "a.json"
    path.write_text("[\n" + ",\n".join(rows) + "\n]", encoding="utf-8", errors="surrogateescape")
    pairs, told, raw = load(path)
    assert [pair.source for pair in pairs] == ["a.json:2", "a.json:9"]
    assert told == [
        (3, "missing_field", "chosen"),
        (4, "not_json", None),
        (5, "not_json", None),
        (6, "not_an_object", None),
        (7, "wrong_type", "rejected"),
        (8, "invalid_utf8", None),
    ]
    assert raw[:2] == rows[1:3]


def test_every_bad_row_of_a_table_is_reported(tmp_path: Path) -> None:
    table = (
        b"id,prompt,chosen,rejected,rating,tie,votes_chosen,votes_rejected\r\n"
        b'a,"Q\r\n\r\n""1""",A,B,3,false,4,1\r\n'
        b"b,Q,A\r\n"
        b'c,Q,"A"x,B,,,,\r\n'
        b"\r\n"
        b"d,caf\xe9,A,B,,,,\r\n"
        b"e,Q,,B,,,,\r\n"
        b"f,Q,A,B,five,,,\r\n"
        b"g,Q,A,B,9,maybe,,\r\n"
        b"h,R,A,B,,,,\r\n"
    )
    path = tmp_path / "a.csv"
    path.write_bytes(table)
    pairs, told, raw = load(path)
    assert pairs == [
        PreferencePair(
            "a", 'Q\r\n\r\n"1"', "A", "B", rating=3, votes=Votes(4, 1), source="a.csv:2"
        ),
        PreferencePair("h", "R", "A", "B", source="a.csv:12"),
    ]
    assert told == [
        (5, "not_csv", None),
        (6, "not_csv", None),
        (8, "invalid_utf8", None),
        (9, "missing_field", "chosen"),
        (10, "wrong_type", "rating"),
        (11, "out_of_range", "rating"),
    ]
    assert raw[:2] == ["b,Q,A", 'c,Q,"A"x,B,,,,']


def test_a_cell_may_hold_messages_as_json_but_not_as_python_writes_them(tmp_path: Path) -> None:
    user, yes, no = (
        {"role": role, "content": text}
        for role, text in (("user", "Q"), ("assistant", "yes"), ("assistant", "no"))
    )
    rows = [
        {"chosen": json.dumps([user, yes]), "rejected": json.dumps([user, no])},
        {"chosen": str([user, yes]), "rejected": str([user, no])},
    ]
    (tmp_path / "a.csv").write_bytes(as_csv(rows))
    pairs, told, _ = load(tmp_path / "a.csv")
    assert [(p.prompt, p.chosen) for p in pairs] == [("\n\nHuman: Q\n\nAssistant:", " yes")]
    assert told == [(3, "wrong_type", "chosen")]
    # an answer that is JSON is an answer
    rows = [{"prompt": "A list?", "chosen": '["a", "b"]', "rejected": '[{"a": 1}]'}]
    (tmp_path / "b.csv").write_bytes(as_csv(rows))
    pairs, told, _ = load(tmp_path / "b.csv")
    assert [(p.chosen, p.rejected) for p in pairs] == [('["a", "b"]', '[{"a": 1}]')]
    (tmp_path / "c.csv").write_bytes(as_csv([rows[0] | {"chosen": str([yes])}, rows[0]]))
    _, told, _ = load(tmp_path / "c.csv")
    assert told == [(2, "wrong_type", "chosen")]


@pytest.mark.parametrize(
    ("name", "table", "rows"),
    [
        ("text.csv", "text\na; b; c\nd; e; f\n", [{"text": "a; b; c"}, {"text": "d; e; f"}]),
        ("a.csv", "a;x,b;y\n1;2,3;4\n", [{"a;x": "1;2", "b;y": "3;4"}]),
        ("decimals.csv", "a;b;c\n1,5;2,5;3,5\n", [{"a": "1,5", "b": "2,5", "c": "3,5"}]),
        ("words.csv", "a, in words;b\nx;y\n1;2, 3, 4\n",
         [{"a, in words": "x", "b": "y"}, {"a, in words": "1", "b": "2, 3, 4"}]),
        ("bars.csv", "a|b\n1, 2|3, 4\n", [{"a": "1, 2", "b": "3, 4"}]),
    ],
)  # fmt: skip
def test_what_separates_cells_is_told_by_the_first_rows(
    tmp_path: Path, name: str, table: str, rows: list[dict[str, str]]
) -> None:
    (tmp_path / name).write_text(table)
    assert [row.value for row in read_file(tmp_path / name, "")] == rows


BROKEN = [
    ("book.csv", b"PK\x03\x04" + bytes(40), "a zip archive, as workbooks of Excel are"),
    ("twice.jsonl.gz", gzip.compress(gzip.compress(LINES)), "a file that is packed twice"),
    ("table.jsonl", b"PAR1" + bytes(40), "Parquet in a file ending in .parquet"),
    ("open.json", b'[\n{"a": 1},\n{"a": 2}', "not closed"),
    ("cut.json", b'[\n{"a": 1},\n{"a": ', "within a value"),
    ("comma.json", b'[\n{"a": 1}\n{"a": 2}]', "where a comma"),
    ("behind.json", b'[{"a": 1}] x', "behind the end"),
    ("quote.csv", b'a,b\n1,"x\n2,y\n', "line 2 or later is not closed"),
    ("header.csv", b"a,a\n1,2\n", "header.* write one above the rows"),
    ("cut.jsonl", LINES.decode().encode("utf-16")[:-1], "UnicodeDecodeError"),
    ("cut.arrow", as_arrow(ROWS, pyarrow.ipc.new_file)[:-9], "Arrow"),
    ("text.arrow", b"hello", "Arrow"),
    ("cut.jsonl.xz", lzma.compress(LINES)[:-99], "EOFError"),
    ("cut.jsonl.zst", pyarrow.compress(LINES, codec="zstd", asbytes=True)[:-9], "Truncated"),
    ("cut.jsonl.bz2", bz2.compress(LINES)[:-99], "EOFError"),
]


@pytest.mark.parametrize(("name", "content", "told"), BROKEN, ids=[case[0] for case in BROKEN])
def test_a_file_that_breaks_off_is_never_quarantined(
    tmp_path: Path, name: str, content: bytes, told: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(PreferenceDataError, match=told) as caught:
        load_preferences([Source(str(tmp_path / name))], on_bad_rows="quarantine")
    assert "unreadable_source" in caught.value.by_reason


@pytest.mark.parametrize("is_dict", [False, True])
def test_a_saved_data_set_is_a_folder_of_data(tmp_path: Path, is_dict: bool) -> None:
    data = datasets.Dataset.from_list(ROWS)
    if is_dict:
        data = datasets.DatasetDict({"train": data, "test": data.select(range(3))})
    data.save_to_disk(str(tmp_path / "saved"), num_shards={"train": 2, "test": 1} if is_dict else 2)
    pairs, _, report = load_preferences([Source(str(tmp_path / "saved"))])
    rows = [*ROWS[:3], *ROWS] if is_dict else ROWS  # the folder "test" comes before "train"
    assert [pair.prompt for pair in pairs] == [row["prompt"] for row in rows]
    assert {Path(file).name for file in report.ignored_files} >= {"dataset_info.json", "state.json"}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", ["json", "csv"])
def test_damaged_files_are_rows_or_an_error(tmp_path: Path, kind: str, seed: int) -> None:
    """Whatever bytes a file holds, its rows add up, or it is said to be unreadable."""
    rng = random.Random(seed)
    whole = (
        json.dumps(ROWS[:20], indent=seed % 2 or None).encode()
        if kind == "json"
        else as_csv(ROWS[:20])
    )
    outcomes = set()
    for _ in range(60):
        data = bytearray(whole)
        for _ in range(rng.randint(1, 3)):
            at = rng.randrange(len(data))
            data[at : at + rng.randint(0, 3)] = rng.randbytes(rng.randint(0, 2))
        path = tmp_path / f"a.{kind}"
        path.write_bytes(bytes(data))
        try:
            pairs, bad, report = load_preferences([Source(str(path))], on_bad_rows="quarantine")
        except PreferenceDataError as error:
            outcomes.add(error.bad_rows[-1].reason)
        else:
            assert report.total.read == len(pairs) + len(bad)
            outcomes.add("read")
    assert "read" in outcomes and len(outcomes) > 1


def test_empty_cells_behind_the_last_column_are_none(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("prompt;chosen;rejected\nQ;a;b;;\nR;c;d\nS;e;f;;g\nT;h;i;\n")
    pairs, (bad,), _ = load_preferences([Source(str(path))], on_bad_rows="quarantine")
    assert [pair.prompt for pair in pairs] == ["Q", "R", "T"]
    assert (bad.line, bad.reason) == (4, "not_csv")
