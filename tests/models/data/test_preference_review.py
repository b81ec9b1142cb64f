"""Reviews: verdicts by pair id, and all that is wrong with a file at once."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trimtab.models.data.external_votes import ReviewError, read_review
from trimtab.models.data.problems import PreferenceDataError
from trimtab.models.data.readers import Source

WriteRows = Callable[..., str]
KNOWN = {"a", "b", "c", "d", "é\u2028"}


def test_verdicts_by_id(write_rows: WriteRows) -> None:
    rows = [
        {"id": "a", "verdict": "keep", "note": None},
        b"",
        {"id": "b", "verdict": "flip", "note": "the other is </script> polite"},
        {"id": "c", "verdict": "drop"},
        {"id": "d", "verdict": "unsure", "note": ""},
        {"id": "é\u2028", "verdict": "flip"},
    ]
    expected = {"a": "keep", "b": "flip", "c": "drop", "d": "unsure", "é\u2028": "flip"}
    path = write_rows(rows, "review.jsonl")
    assert read_review(Source(path), KNOWN) == expected
    Path(f"{path}.gz").write_bytes(gzip.compress(Path(path).read_bytes()))
    assert read_review(Source(f"{path}.gz"), KNOWN) == expected


BAD_LINES: list[tuple[str, str | None, Any]] = [
    ("not_json", None, b'{"id": "a", "verdict": '),
    ("not_json", None, b'{"id": "a", "id": "b", "verdict": "keep"}'),
    ("invalid_utf8", None, b'{"id": "a\xff", "verdict": "keep"}'),
    ("not_an_object", None, b'["a", "keep"]'),
    ("missing_field", "id", {"verdict": "keep"}),
    ("missing_field", "verdict", {"id": "a", "verdict": None}),
    ("wrong_type", "id", {"id": 3, "verdict": "keep"}),
    ("wrong_type", "verdict", {"id": "a", "verdict": True}),
    ("wrong_type", "note", {"id": "a", "verdict": "keep", "note": ["x"]}),
    ("out_of_range", "verdict", {"id": "a", "verdict": "Keep"}),
    ("misplaced_field", "vedict", {"id": "a", "verdict": "keep", "vedict": "flip"}),
    ("unknown_id", "id", {"id": "e", "verdict": "keep"}),
    ("duplicate_id", "id", {"id": "taken", "verdict": "flip"}),
]


@pytest.mark.parametrize(("reason", "field", "row"), BAD_LINES)
def test_a_bad_line_is_named_with_file_line_field_found_and_allowed(
    write_rows: WriteRows, reason: str, field: str | None, row: Any
) -> None:
    path = write_rows([{"id": "taken", "verdict": "keep"}, row], "review.jsonl")
    with pytest.raises(ReviewError) as caught:
        read_review(Source(path, name="mine.jsonl"), KNOWN | {"taken"})
    (bad,) = caught.value.bad_rows
    assert (bad.file, bad.line, bad.reason) == ("mine.jsonl", 2, reason)
    assert bad.problems[0].field == field
    assert bad.problems[0].found and bad.problems[0].allowed
    assert f"mine.jsonl:2: {reason}" in str(caught.value)


def test_unknown_ids_are_counted_and_the_first_is_named(write_rows: WriteRows) -> None:
    rows = [{"id": f"x{n}", "verdict": "flip"} for n in range(30)] + [{"id": "a", "verdict": "no"}]
    with pytest.raises(ReviewError) as caught:
        read_review(Source(write_rows(rows), name="review.jsonl"), KNOWN)
    lines = str(caught.value).splitlines()
    assert lines[0] == "review: 31 refused (unknown_id 30, out_of_range 1)"
    assert lines[1] == (
        "  review.jsonl:1: unknown_id in field 'id': found 'x0', allowed: an id of this run's pairs"
    )
    assert lines[-2] == "  ... and 11 more"
    assert isinstance(caught.value, PreferenceDataError)


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("review.jsonl", b"\n \n", "empty_source"),
        ("review.csv", b"id,verdict", "empty_source"),
        ("review.txt", b"id,verdict", "unreadable_source"),
        (
            "review.jsonl.gz",
            gzip.compress(b'{"id": "a", "verdict": "keep"}\n', mtime=0)[:-9],
            "unreadable",
        ),
    ],
)
def test_a_file_that_holds_no_review(
    tmp_path: Path, name: str, content: bytes, reason: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ReviewError, match=reason):
        read_review(Source(str(tmp_path / name), name=name), KNOWN)


def test_a_folder_of_several_reviewers(write_rows: WriteRows, tmp_path: Path) -> None:
    write_rows([{"id": "a", "verdict": "keep"}], "both/first.jsonl")
    write_rows([{"id": "b", "verdict": "drop"}], "both/second.jsonl")
    folder = Source(str(tmp_path / "both"), name="both")
    assert read_review(folder, KNOWN) == {"a": "keep", "b": "drop"}
    write_rows([{"id": "a", "verdict": "drop"}], "both/second.jsonl")
    with pytest.raises(ReviewError, match="second.jsonl:1: duplicate_id.*both/first.jsonl:1"):
        read_review(folder, KNOWN)


def test_what_json_dumps_writes_of_a_verdict_is_read(write_rows: WriteRows) -> None:
    row = json.dumps({"id": "a", "verdict": "keep", "note": "\ud800 half a character"})
    assert read_review(Source(write_rows([row.encode()])), KNOWN) == {"a": "keep"}
