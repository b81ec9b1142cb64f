"""Files that unpack to far more than they are: refused with their line, within bounded memory."""

import bz2
import gzip
import importlib
import json
import lzma
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trimtab.models.data.loading import load_preferences
from trimtab.models.data.readers import Source
from trimtab.models.data.unpacking import FREE_BYTES, MAX_BATCH_BYTES, MAX_ROW_BYTES

# modules without type stubs
pyarrow = importlib.import_module("pyarrow")
parquet = importlib.import_module("pyarrow.parquet")

MIB = 1 << 20
TEXT = b"a" * MIB
START = b'{"chosen": "c", "rejected": "r", "prompt": "'
ROW = '{"chosen": "c%d", "rejected": "r", "prompt": "%s"}\n'
READ = r"""
import re, sys
from trimtab.models.data.loading import load_preferences
from trimtab.models.data.problems import PreferenceDataError
from trimtab.models.data.readers import Source
try:
    load_preferences([Source(sys.argv[1])], on_bad_rows="quarantine")
except PreferenceDataError as error:
    print(error)
print(re.search(r"VmHWM:[ \t]*([0-9]+) kB", open("/proc/self/status").read())[1])
"""


def zstd(data: bytes) -> bytes:
    packed: bytes = pyarrow.compress(data, codec="zstd", asbytes=True)
    return packed


def packed(pack: Callable[[bytes], bytes], start: bytes, repeated: bytes, times: int) -> bytes:
    """`start` and then `times` the same: all formats read what was packed one behind another."""
    return pack(start) + pack(repeated) * times


def numbers(path: Path) -> None:
    """One row with a list of 50 million nulls."""
    nulls = pyarrow.nulls(50_000_000, pyarrow.int64())
    lists = pyarrow.ListArray.from_arrays([0, len(nulls)], nulls)
    parquet.write_table(pyarrow.table({"chosen": lists}), path)


def pages(path: Path) -> None:
    """One row with a text of 300 MiB, in a page of zstd."""
    text = pyarrow.array(["a" * (300 * MIB)])
    parquet.write_table(
        pyarrow.table({"chosen": text}),
        path,
        compression="zstd",
        use_dictionary=False,
        write_statistics=False,
    )


def shared(path: Path) -> None:
    """512 rows that share one text of 8 MiB, as the column's dictionary holds it once."""
    texts = pyarrow.DictionaryArray.from_arrays([0] * 512, ["a" * (8 * MIB)])
    parquet.write_table(pyarrow.table({"chosen": texts, "rejected": ["r"] * 512}), path)


def texts(path: Path) -> None:
    """40 rows with a text of 8 MiB each."""
    rows = (gzip.compress((ROW % (n, "a" * 8 * MIB)).encode()) for n in range(40))
    path.write_bytes(b"".join(rows))


def body(path: Path) -> None:
    """One row with a text of 300 MiB, in a compressed body of Arrow."""
    batch = pyarrow.record_batch({"chosen": ["a" * (300 * MIB)]})
    options = pyarrow.ipc.IpcWriteOptions(compression="zstd")
    with pyarrow.ipc.new_file(str(path), batch.schema, options=options) as writer:
        writer.write_batch(batch)


# Name, content or what writes it, the line of the refusal, and what it says.
TOO_LONG, TOO_MUCH, BATCH = "a row of more than 16 MiB", "unpack to more than", "on that unpack to"
BOMBS: list[tuple[str, bytes | Callable[[Path], None], int, str]] = [
    ("line.jsonl.gz", packed(gzip.compress, START, TEXT, 2048), 1, TOO_LONG),
    ("line.jsonl.bz2", packed(bz2.compress, START, TEXT, 2048), 1, TOO_LONG),
    ("line.jsonl.xz", packed(lzma.compress, b"\n" + START, TEXT, 2048), 2, TOO_LONG),
    ("line.jsonl.zst", packed(zstd, START, TEXT, 2048), 1, TOO_LONG),
    ("utf16.jsonl.gz",
     packed(gzip.compress, START.decode().encode("utf-16"), b"a\0" * MIB, 1024), 1, TOO_LONG),
    ("list.json.gz", packed(gzip.compress, b"[\n" + START, TEXT, 2048), 2, TOO_LONG),
    ("cell.csv.gz", packed(gzip.compress, b"chosen,rejected\nc,", TEXT, 2048), 2, TOO_LONG),
    ("lines.csv.xz",
     packed(lzma.compress, b'chosen,rejected\nc,"', b"aa\n" * MIB, 512), 2, TOO_LONG),
    ("header.csv.gz", packed(gzip.compress, b"chosen", b"," * MIB, 15), 1, "15,728,641 columns"),
    ("blank.jsonl.gz", packed(gzip.compress, b"", b" " * MIB + b"\n", 2048), 256, TOO_MUCH),
    ("rows.jsonl.gz", texts, 32, TOO_MUCH),
    ("shared.parquet", shared, 1, BATCH),
    ("pages.parquet", pages, 1, BATCH),
    ("numbers.parquet", numbers, 1, BATCH),
    ("body.arrow", body, 1, BATCH),
]  # fmt: skip


def read_alone(path: Path) -> tuple[str, int]:
    """What reading a file says, and the most memory that it took, in bytes."""
    command = [sys.executable, "-c", READ, str(path)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    said, _, kib = done.stdout.rstrip().rpartition("\n")
    return said, int(kib) << 10


@pytest.fixture(scope="module")
def least(tmp_path_factory: pytest.TempPathFactory) -> int:
    """The memory of reading one row."""
    path = tmp_path_factory.mktemp("one") / "one.parquet"
    parquet.write_table(pyarrow.table({"chosen": ["c"], "rejected": ["r"], "prompt": ["p"]}), path)
    said, memory = read_alone(path)
    assert said == ""
    return memory


@pytest.mark.slow
@pytest.mark.parametrize(("name", "content", "line", "told"), BOMBS, ids=[b[0] for b in BOMBS])
def test_a_file_that_unpacks_to_too_much_is_refused_within_bounded_memory(
    tmp_path: Path,
    least: int,
    name: str,
    content: bytes | Callable[[Path], None],
    line: int,
    told: str,
) -> None:
    path = tmp_path / name
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        content(path)
    said, memory = read_alone(path)
    assert f"{path}:{line}: unreadable_source: found" in said and told in said, said
    assert "allowed: " in said
    # Of a text the rows so far, and a row as bytes, text and values; of columns a batch.
    rows = FREE_BYTES if told == TOO_MUCH else 0
    most = MAX_BATCH_BYTES if told == BATCH else rows + 20 * MAX_ROW_BYTES
    assert memory < least + most, (memory - least) >> 20


# Rows of at most MAX_ROW_BYTES whose values are many: what says so is short.
MANY: list[tuple[str, str, int, str, str, int]] = [
    # Before, repeated, how often, behind, what is said, rows.
    ('{"prompt": "p", "chosen": [', "{},", 5 * MIB, '{}], "rejected": "r"}', "5,242,881 values", 1),
    ('{"prompt": "p", "responses": [', '"a",', 4 * MIB - 9, '"a"]}', "4,194,296 values", 1),
    ('{"input": {"messages": [', "1,", 7 * MIB, '1]}, "preferred_output": [], '
     '"non_preferred_output": []}', "7,340,033 values", 1),
    ('{"prompt": "p", "rejected": "r", "chosen": "[', "{},", 5 * MIB, '{}', "Unterminated", 1),
    ('{"id": "%d", "prompt": "p", "responses": [', '"a",', 999, '"a"]}', "1000 answers", 300),
    ('{"prompt": "p"', ', "%d": 1', 10_001, "}", "10,002 fields", 1),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("start", "each", "times", "end", "told", "num"), MANY)
def test_a_row_of_many_values_is_one_problem_within_bounded_memory(
    tmp_path: Path,
    least: int,
    start: str,
    each: str,
    times: int,
    end: str,
    told: str,
    num: int,
) -> None:
    path = tmp_path / "a.jsonl"
    values = "".join(each % n for n in range(times)) if "%" in each else each * times
    rows = [(start % n if "%" in start else start) + values + end for n in range(num)]
    path.write_text("\n".join(rows))
    said, memory = read_alone(path)
    assert told in said and len(said) < 40_000, said[:1000]
    # A dict or an object of Python's takes 64 bytes, a reference 8: 72 for the 3 bytes of "{},".
    assert memory < least + 32 * MAX_ROW_BYTES, (memory - least) >> 20


def test_a_row_just_below_the_bound_is_read(tmp_path: Path) -> None:
    row: dict[str, Any] = {"prompt": "p", "chosen": "a" * (MAX_ROW_BYTES - 100), "rejected": "r"}
    lines = [json.dumps(row), json.dumps(row | {"prompt": "q"})]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    (tmp_path / "a.json").write_text(f"[{','.join(lines)}]")
    (tmp_path / "a.csv").write_text("".join(f"{','.join(each)}\n" for each in (row, row.values())))
    parquet.write_table(pyarrow.Table.from_pylist([row]), tmp_path / "a.parquet")
    for name in ("a.jsonl", "a.json", "a.csv", "a.parquet"):
        pairs, _, _ = load_preferences([Source(str(tmp_path / name))])
        assert pairs[0].chosen == row["chosen"], name
