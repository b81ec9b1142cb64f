"""One row for every way to be bad, and that it is refused for just that."""

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trimtab.models.data.loading import load_preferences
from trimtab.models.data.problems import (
    REASONS,
    SOURCE_REASONS,
    PreferenceDataError,
    write_quarantine,
)
from trimtab.models.data.readers import Source

WriteRows = Callable[..., str]

GOOD: dict[str, Any] = {"prompt": "Q", "chosen": "A", "rejected": "B"}
HH = "\n\nHuman: Q\n\nAssistant:"
USER = {"role": "user", "content": "Q"}
YES = {"role": "assistant", "content": "yes"}
NO = {"role": "assistant", "content": "no"}
EMPTY = {"role": "assistant"}
HUMAN = {"role": "human", "content": "Q"}
RANKING: dict[str, Any] = {"prompt": "Q", "responses": ["A", "B"]}
LONG = "x" * 60

BAD_ROWS: list[tuple[str, str | None, dict[str, Any] | bytes]] = [
    ("not_json", None, b'{"prompt": "Q", "chosen": '),
    ("not_json", None, b"prompt,chosen,rejected"),
    ("missing_field", "chosen", b'{"prompt": "Q", "chosen": NaN, "rejected": "B"}'),
    ("no_common_prompt", None, b'{"prompt": NaN, "chosen": "A b", "rejected": "A c"}'),
    ("not_json", None, b'{"prompt": "Q", "chosen": "A", "chosen": "C", "rejected": "B"}'),
    ("not_json", None, b"[" * 100_000),
    ("not_json", None, b'{"rating": ' + b"1" * 5000 + b"}"),
    ("not_an_object", None, b'["Q", "A", "B"]'),
    ("not_an_object", None, b"null"),
    ("invalid_utf8", None, b'{"prompt": "Q\xff", "chosen": "A", "rejected": "B"}'),
    ("invalid_utf8", "chosen", b'{"prompt": "Q", "chosen": "A\\ud800", "rejected": "B"}'),
    ("unknown_format", None, {}),
    ("unknown_format", None, {"prompt": "Q", "response": "A"}),
    ("unknown_format", None, GOOD | {"responses": ["A", "B"]}),
    ("missing_field", "rejected", {"prompt": "Q", "chosen": "A"}),
    ("missing_field", "chosen", {"chosen": None, "rejected": "B"}),
    ("missing_field", "rejected", {"chosen": [USER, YES]}),
    ("missing_field", "prompt", {"responses": ["A", "B"]}),
    ("missing_field", "votes_chosen", GOOD | {"votes_rejected": 1}),
    ("missing_field", "votes.rejected", GOOD | {"votes": {"chosen": 1}}),
    ("missing_field", "chosen[1].content", {"chosen": [USER, EMPTY], "rejected": [USER]}),
    ("empty_field", "prompt", GOOD | {"prompt": ""}),
    ("empty_field", "chosen", GOOD | {"chosen": " \n\t"}),
    ("empty_field", "id", GOOD | {"id": ""}),
    ("empty_field", "rejected", {"chosen": HH + " yes", "rejected": HH + " "}),
    ("empty_field", "prompt", {"prompt": [], "chosen": [YES], "rejected": [NO]}),
    ("empty_field", "responses[1]", {"prompt": "Q", "responses": ["A", "", "C"]}),
    ("wrong_type", "prompt", GOOD | {"prompt": 3}),
    ("wrong_type", "chosen", GOOD | {"chosen": {"text": "A"}}),
    ("wrong_type", "chosen", {"chosen": "yes", "rejected": [USER, NO]}),
    ("wrong_type", "id", GOOD | {"id": 1.5}),
    ("wrong_type", "id", GOOD | {"id": True}),
    ("wrong_type", "category", GOOD | {"category": ["qa"]}),
    ("wrong_type", "rating", GOOD | {"rating": "3"}),
    ("wrong_type", "rating", GOOD | {"rating": True}),
    ("wrong_type", "tie", GOOD | {"tie": "no"}),
    ("wrong_type", "votes", GOOD | {"votes": 5}),
    ("wrong_type", "votes_chosen", GOOD | {"votes_chosen": 1.5, "votes_rejected": 0}),
    ("wrong_type", "responses", {"prompt": "Q", "responses": "A"}),
    ("wrong_type", "rejected[1]", {"chosen": [USER, YES], "rejected": [USER, "no"]}),
    ("wrong_type", "opinions", GOOD | {"opinions": []}),
    ("wrong_type", "opinions", GOOD | {"opinions": [{"annotator": "a", "prefers": "A"}]}),
    ("misplaced_field", "opinions", RANKING | {"opinions": [{"annotator": 1, "prefers": "equal"}]}),
    ("out_of_range", "rating", GOOD | {"rating": 0}),
    ("out_of_range", "rating", GOOD | {"rating": 5}),
    ("out_of_range", "votes_chosen", GOOD | {"votes_chosen": -1, "votes_rejected": 2}),
    ("out_of_range", "votes_chosen", GOOD | {"votes_chosen": 0, "votes_rejected": 0}),
    ("out_of_range", "responses", {"prompt": "Q", "responses": ["A"]}),
    ("out_of_range", "responses", {"prompt": "Q", "responses": []}),
    ("out_of_range", "responses", {"prompt": "Q", "responses": list("abcdefghij")}),
    ("out_of_range", "chosen[0].role", {"chosen": [HUMAN, YES], "rejected": [USER, NO]}),
    ("misplaced_field", "rating", RANKING | {"rating": 2}),
    ("misplaced_field", "votes_chosen", RANKING | {"votes_chosen": 1, "votes_rejected": 1}),
    ("no_common_prompt", None, {"chosen": "yes", "rejected": "no"}),
    ("no_common_prompt", None, {"chosen": HH + " yes", "rejected": HH.replace("Q", "R") + " no"}),
    ("no_common_prompt", None, {"chosen": "\n\nAssistant: yes", "rejected": "\n\nAssistant: no"}),
    ("no_common_prompt", None, {"chosen": [USER, YES], "rejected": [USER | {"content": "R"}, NO]}),
    ("no_common_prompt", "prompt", {"prompt": "R", "chosen": [USER, YES], "rejected": [USER, NO]}),
    ("bad_turns", "prompt", {"prompt": [USER, YES], "chosen": [YES], "rejected": [NO]}),
    ("bad_turns", "chosen", {"prompt": [USER], "chosen": [USER], "rejected": [NO]}),
    ("bad_turns", "rejected", {"chosen": [USER, YES], "rejected": [USER, NO, USER]}),
    ("identical_responses", "rejected", GOOD | {"rejected": " A\n"}),
    ("identical_responses", "rejected", {"chosen": HH + " yes", "rejected": HH + " yes"}),
    ("identical_responses", "rejected", {"chosen": [USER, YES], "rejected": [USER, YES]}),
    ("identical_responses", "responses[2]", {"prompt": "Q", "responses": ["A", "B", "A"]}),
    ("too_long", "chosen", GOOD | {"chosen": LONG}),
    ("too_long", "responses[1]", {"prompt": "Q", "responses": ["A", LONG]}),
    ("ambiguous_label", "best", RANKING | {"best": 1}),
    ("tie", "tie", GOOD | {"tie": True}),
]  # fmt: skip


def test_every_reason_has_a_row() -> None:
    # among the formats, the reviews, the tables
    elsewhere = {"not_renderable", "unknown_id", "duplicate_id", "not_csv"}
    tested = {reason for reason, _, _ in BAD_ROWS} | elsewhere
    assert tested | SOURCE_REASONS == set(REASONS)


@pytest.mark.parametrize(("reason", "field", "row"), BAD_ROWS)
def test_a_bad_row_is_refused_for_its_reason(
    write_rows: WriteRows, reason: str, field: str | None, row: dict[str, Any] | bytes
) -> None:
    path = write_rows([GOOD, row, GOOD | {"prompt": "R"}])
    pairs, bad_rows, report = load_preferences(
        [Source(path)], on_bad_rows="quarantine", max_characters=50
    )
    assert [pair.source for pair in pairs] == ["rows.jsonl:1", "rows.jsonl:3"]
    (bad,) = bad_rows
    assert (bad.file, bad.line, bad.reason) == (path, 2, reason)
    assert bad.problems[0].field == field
    assert bad.problems[0].found and bad.problems[0].allowed
    assert report.bad_rows_by_reason == {reason: 1}
    assert (report.total.read, report.total.used, report.total.quarantined) == (3, 2, 1)
    with pytest.raises(PreferenceDataError, match=f"rows.jsonl:2: {reason}"):
        load_preferences([Source(path)], max_characters=50)


def test_all_problems_of_a_row_are_given(write_rows: WriteRows) -> None:
    row = {"prompt": "", "chosen": 1, "rejected": "B", "rating": 9, "votes_chosen": "x"}
    with pytest.raises(PreferenceDataError) as caught:
        load_preferences([Source(write_rows([row]))])
    (bad,) = caught.value.bad_rows
    assert {(p.reason, p.field) for p in bad.problems} == {
        ("out_of_range", "rating"),
        ("missing_field", "votes_rejected"),
        ("wrong_type", "votes_chosen"),
        ("empty_field", "prompt"),
        ("wrong_type", "chosen"),
    }


def test_all_rows_are_reported_at_once_in_one_message(write_rows: WriteRows) -> None:
    rows = [GOOD | {"rating": n, "prompt": f"Q{n}"} for n in range(-20, 10)] + [b"{"]
    with pytest.raises(PreferenceDataError) as caught:
        load_preferences([Source(write_rows(rows))])
    error = caught.value
    # of -20 to 9 only 1, 2, 3 and 4 are ratings
    assert error.by_reason == {"out_of_range": 26, "not_json": 1}
    assert len(error.bad_rows) == 27
    lines = str(error).splitlines()
    assert lines[0] == "preference data: 27 refused (out_of_range 26, not_json 1)"
    assert lines[1].endswith(
        "rows.jsonl:1: out_of_range in field 'rating': found -20, "
        "allowed: a whole number from 1 to 4"
    )
    assert lines[21] == "  ... and 7 more"
    assert "on_bad_rows" in lines[22] and len(lines) == 23
    copy = pickle.loads(pickle.dumps(error))
    assert str(copy) == str(error) and copy.bad_rows == error.bad_rows


def test_the_quarantine_file_keeps_row_and_reason(write_rows: WriteRows, tmp_path: Path) -> None:
    broken = b'{"prompt": "caf\xe9"}'
    half = '{"prompt": "Q", "chosen": "é\\ud800", "rejected": ""}'
    path = write_rows([GOOD, broken, half.encode()])
    _, bad_rows, _ = load_preferences([Source(path)], on_bad_rows="quarantine")
    quarantine = tmp_path / "quarantine.jsonl"
    assert write_quarantine(quarantine, bad_rows) == 2
    with quarantine.open(encoding="utf-8") as stream:
        first, second = [json.loads(line) for line in stream]
    assert first == {
        "file": path,
        "line": 2,
        "reason": "invalid_utf8",
        "field": None,
        "found": repr(broken) + " at byte 15",
        "allowed": "UTF-8 text: save the file as UTF-8, or leave the row out",
        "also": [],
        "row": repr(broken),
    }
    assert second["row"] == half
    assert (second["reason"], second["field"]) == ("invalid_utf8", "chosen")
    assert [(p["reason"], p["field"]) for p in second["also"]] == [("empty_field", "rejected")]
