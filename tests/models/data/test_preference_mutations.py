"""Random damage: whatever a row holds, the only outcome is a pair or a reported bad row."""

import importlib
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trimtab.models.data.loading import TokenLimit, load_preferences
from trimtab.models.data.problems import PreferenceDataError, write_quarantine
from trimtab.models.data.readers import Source
from trimtab.models.training.data import write_rows as write_json_lines

WriteRows = Callable[..., str]
NUM_ROWS = 400
USER = {"role": "user", "content": "What is 1+1?"}
TEMPLATES: list[dict[str, Any]] = [
    {
        "chosen": "\n\nHuman: Hi\n\nAssistant: Yes?\n\nHuman: Go\n\nAssistant: where",
        "rejected": "\n\nHuman: Hi\n\nAssistant: Yes?\n\nHuman: Go\n\nAssistant: no",
    },
    {
        "id": "",
        "prompt": "Q",
        "chosen": "A",
        "rejected": "B",
        "category": "c",
        "rating": 2,
        "votes_chosen": 3,
        "votes_rejected": 1,
        "votes_equal": 1,
        "tie": False,
    },
    {
        "chosen": [USER, {"role": "assistant", "content": "2"}],
        "rejected": [USER, {"role": "assistant", "content": "3"}],
    },
    {"prompt": [USER], "chosen": [{"role": "assistant", "content": "2"}], "rejected": "3"},
    {"prompt": "Q", "responses": ["a", "b", "c", "d"], "group": "g"},
    {"id": 0, "prompt": "Q", "chosen": "A", "rejected": "B", "votes": {"chosen": 1, "rejected": 0}},
]
VALUES: list[Any] = [
    None, True, False, 0, -1, 3, 10**30, 1.5, 1e999, "", " ", "A", "\x00", "\ud800", "é🙂\u2028",
    "\n\nAssistant:", "\n\nHuman: Q\n\nAssistant: A", [], {}, [[]], [None], ["A", "B"], [USER],
    {"role": "user"}, {"chosen": 1}, {"chosen": -1, "rejected": "x"}, "x" * 3000,
]  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """All places below a JSON value, as paths of keys."""
    keys = value.keys() if isinstance(value, dict) else range(len(value))
    below = [(*path, key) for key in keys]
    for key in keys:
        if isinstance(value[key], dict | list):
            below += places(value[key], (*path, key))
    return below


def mutate_value(rng: random.Random, row: dict[str, Any]) -> None:
    """Replace, remove, rename or copy one thing somewhere in the row."""
    found = places(row)
    if not found:
        return
    *above, key = rng.choice(found)
    parent: Any = row
    for step in above:
        parent = parent[step]
    action = rng.randrange(4)
    if action == 0:
        del parent[key]
    elif action == 1 and isinstance(parent, dict):
        parent[rng.choice(["prompt", "responses", "chosen", "tie", "ID", "role"])] = parent.pop(key)
    elif action == 2 and isinstance(parent, list):
        parent.insert(key, rng.choice(parent))
    else:
        parent[key] = json.loads(json.dumps(rng.choice(VALUES)))


def mutate_bytes(rng: random.Random, line: bytes) -> bytes:
    """Overwrite, drop or insert bytes; never a line's end, so that rows stay counted."""
    data = bytearray(line)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(data)) if data else 0
        action = rng.randrange(3)
        if action == 0 and data:
            data[at] = rng.randrange(256)
        elif action == 1:
            del data[at : at + rng.randint(1, 30)]
        else:
            data[at:at] = rng.randbytes(rng.randint(1, 3))
    return bytes(data).replace(b"\n", b"?") or b"?"


def mutated_rows(seed: int) -> list[bytes]:
    rng = random.Random(seed)
    lines = []
    for number in range(NUM_ROWS):
        row = json.loads(json.dumps(rng.choice(TEMPLATES)))
        if "id" in row:
            row["id"] = type(row["id"])(number)
        for _ in range(rng.randint(0, 3)):
            mutate_value(rng, row)
        line = json.dumps(row, ensure_ascii=rng.random() < 0.5).encode("utf-8", "surrogatepass")
        lines.append(mutate_bytes(rng, line) if rng.random() < 0.3 else line)
    return lines


@pytest.mark.parametrize("seed", range(5))
def test_damaged_json_lines_are_pairs_or_reported(write_rows: WriteRows, seed: int) -> None:
    lines = mutated_rows(seed)
    path = write_rows(lines)
    options: dict[str, Any] = {"max_characters": 2000, "on_ties": "drop"}
    if seed % 2:
        options |= {"max_tokens": TokenLimit(1500, lambda text: len(text.encode()))}
    pairs, bad_rows, report = load_preferences([Source(path)], on_bad_rows="quarantine", **options)
    total = report.total
    num_blank = sum(not line.strip() for line in lines)
    assert total.read == NUM_ROWS - num_blank
    assert total.read == total.used + total.quarantined + total.ties_dropped
    assert total.quarantined == len(bad_rows) == report.bad_rows_by_reason.total()
    assert report.num_pairs == len(pairs) == len({pair.id for pair in pairs})
    # the damage was neither harmless nor total, so that both ways are tried
    assert min(total.used, total.quarantined) > NUM_ROWS // 8
    for pair in pairs:
        assert pair.prompt.strip() and pair.chosen.strip() and pair.rejected.strip()
        assert pair.chosen.strip() != pair.rejected.strip()
    # whatever came out can be written, and the quarantined rows are the lines that were read
    assert write_quarantine(path + ".bad.jsonl", bad_rows) == len(bad_rows)
    write_json_lines(Path(path + ".pairs.jsonl"), (pair.to_json() for pair in pairs))
    with pytest.raises(PreferenceDataError) as caught:
        load_preferences([Source(path)], **options)
    assert caught.value.bad_rows == bad_rows


def test_damaged_parquet_rows_are_pairs_or_reported(write_rows: WriteRows) -> None:
    """Columns have one type each in Parquet: the damage is in values and in what is null."""
    rng = random.Random(0)
    texts = [None, "", " ", "A", "B", "C\x00", "\n\nHuman: Q\n\nAssistant: A", "é🙂"]
    rows = [
        {
            "prompt": rng.choice(texts),
            "chosen": rng.choice(texts),
            "rejected": rng.choice(texts),
            "responses": rng.choice([None, None, None, [], ["A"], ["A", None], ["A", "B", "C"]]),
            "rating": rng.choice([None, None, 1, 4, 5]),
            "category": rng.choice([None, "c", ""]),
        }
        for _ in range(NUM_ROWS)
    ]
    path = write_rows([], "rows.parquet")
    pyarrow = importlib.import_module("pyarrow")  # has no type stubs
    parquet = importlib.import_module("pyarrow.parquet")
    parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    pairs, bad_rows, report = load_preferences([Source(path)], on_bad_rows="quarantine")
    assert report.total.read == NUM_ROWS == report.total.used + len(bad_rows)
    assert pairs and bad_rows
