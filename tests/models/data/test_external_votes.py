"""Votes that the user has already: what is read, and every mistake at once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from trimtab.models.data.external_votes import VotedPairs, VotesError, read_votes
from trimtab.models.data.readers import Source

PAIRS = [
    {"id": "a", "source": "pairs.jsonl:1"},
    {"id": "b", "source": "pairs.jsonl:2"},
    {"id": "7", "source": "pairs.jsonl:3,5"},  # of two rows of unpaired data
    {"id": "r#1-2", "source": "pairs.jsonl:9"},
    {"id": "r#1-3", "source": "pairs.jsonl:9"},
]


def _file(folder: Path, *rows: Any, name: str = "votes.jsonl") -> Source:
    path = folder / name
    lines = (row if isinstance(row, str) else json.dumps(row) for row in rows)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return Source(str(path), name=name)


def test_a_pair_is_named_by_id_or_line_and_voted_on_by_scores_or_a_vote(tmp_path: Path) -> None:
    source = _file(
        tmp_path,
        {"id": "a", "chosen_score": 1.5, "rejected_score": -2},
        {"line": 2, "vote": -0.25, "who": "columns that are not known are not read"},
        {"id": 7, "vote": 1},
        {"id": "r#1-3", "vote": 0},
    )
    expected = {"a": (1.5, -2.0), "b": (-0.25, 0.0), "7": (1.0, 0.0), "r#1-3": (0.0, 0.0)}
    assert read_votes(source, VotedPairs(PAIRS)) == expected
    either = _file(tmp_path, {"line": 5, "vote": 2}, {"line": "pairs.jsonl:1", "vote": 3})
    assert read_votes(either, VotedPairs(PAIRS)) == {"7": (2.0, 0.0), "a": (3.0, 0.0)}


def test_tables_are_read_as_json_lines_are(tmp_path: Path) -> None:
    table = _file(tmp_path, "id,vote,note", "a,1e-3,", "7,-2,x", name="votes.csv")
    assert read_votes(table, VotedPairs(PAIRS)) == {"a": (0.001, 0.0), "7": (-2.0, 0.0)}
    pq.write_table(pa.table({"line": [1, 2], "vote": [0.5, -1.0]}), tmp_path / "v.parquet")
    columns = Source(str(tmp_path / "v.parquet"), name="v.parquet")
    assert read_votes(columns, VotedPairs(PAIRS)) == {"a": (0.5, 0.0), "b": (-1.0, 0.0)}


MISTAKES = [
    ({"id": "z", "vote": 1}, "unknown_id in field 'id': found 'z', allowed: an id of this run"),
    ({"line": 4, "vote": 1}, "unknown_id in field 'line': found 4, allowed: a line that a pair"),
    ({"line": 9, "vote": 1}, "found 9, of which there are 2 pairs, allowed: the id of one of them"),
    ({"vote": 1}, "missing_field in field 'id': found nothing, allowed: a pair's id, or its line"),
    ({"id": ["a"], "vote": 1}, "wrong_type in field 'id': found ['a'], allowed: a text"),
    ({"line": 1.5, "vote": 1}, "wrong_type in field 'line': found 1.5"),
    ({"id": "a", "vote": "x"}, "wrong_type in field 'vote': found 'x', allowed: a number"),
    ({"id": "a", "vote": True}, "wrong_type in field 'vote': found True, allowed: a number"),
    ({"id": "a", "vote": 1e31}, "out_of_range in field 'vote': found 1e+31, allowed: a finite"),
    ({"id": "a"}, "missing_field: found none of them, allowed: chosen_score and rejected_score"),
    ({"id": "a", "chosen_score": 1}, "found chosen_score, allowed: chosen_score and rejected_"),
    ({"id": "a", "chosen_score": 1, "rejected_score": 2, "vote": 1}, "missing_field: found cho"),
    ("[1]", "not_an_object: found [1], allowed: an object with id or line"),
    ('{"id": "a", "vote": -Infinity}', "out_of_range in field 'vote': found -inf"),
]


@pytest.mark.parametrize(("row", "said"), MISTAKES)
def test_a_mistake_has_line_field_found_and_allowed(row: Any, said: str, tmp_path: Path) -> None:
    source = _file(tmp_path, {"id": "b", "vote": 1}, row)
    with pytest.raises(VotesError) as error:
        read_votes(source, VotedPairs(PAIRS))
    (bad,) = error.value.bad_rows
    assert bad.describe().startswith("votes.jsonl:2: ")
    assert said in bad.describe()


def test_all_mistakes_are_said_at_once_in_the_order_of_the_lines(tmp_path: Path) -> None:
    rows = [row for row, _ in MISTAKES]
    with pytest.raises(VotesError, match=f"votes: {len(rows)} refused") as error:
        read_votes(_file(tmp_path, *rows), VotedPairs(PAIRS))
    assert [bad.line for bad in error.value.bad_rows] == list(range(1, len(rows) + 1))
    pq.write_table(pa.table({"id": ["a"], "vote": [float("inf")]}), tmp_path / "v.parquet")
    with pytest.raises(VotesError, match="found inf, allowed: a finite number"):
        read_votes(Source(str(tmp_path / "v.parquet")), VotedPairs(PAIRS))


def test_a_pair_is_voted_on_once_whatever_it_is_named_by(tmp_path: Path) -> None:
    source = _file(tmp_path, {"id": "a", "vote": 1}, {"line": 1, "vote": 1})
    with pytest.raises(VotesError, match=r"allowed: a pair other than that of votes.jsonl:1"):
        read_votes(source, VotedPairs(PAIRS))


def test_numbers_of_lines_are_of_one_file_of_pairs(tmp_path: Path) -> None:
    pairs = [*PAIRS, {"id": "c", "source": "more.jsonl:1"}]
    with pytest.raises(VotesError, match='a text "file:line", as the pairs are of 2 files'):
        read_votes(_file(tmp_path, {"line": 1, "vote": 1}), VotedPairs(pairs))
    by_file = _file(tmp_path, {"line": "more.jsonl:1", "vote": 1})
    assert read_votes(by_file, VotedPairs(pairs)) == {"c": (1.0, 0.0)}


def test_votes_on_what_was_set_aside_are_left_out(tmp_path: Path) -> None:
    """A file may speak of all rows; pairs of more unknown rows than were set aside are mistakes."""
    rows = [{"id": "a", "vote": 1}, {"id": "tie", "vote": 1}, {"line": 4, "vote": 1}]
    votes = read_votes(_file(tmp_path, *rows), VotedPairs(PAIRS, num_set_aside=2))
    assert votes == {"a": (1.0, 0.0)}
    with pytest.raises(VotesError, match="votes: 2 refused"):
        read_votes(_file(tmp_path, *rows), VotedPairs(PAIRS, num_set_aside=1))
    with pytest.raises(VotesError, match="2 votes, none of them on a pair of this run"):
        read_votes(_file(tmp_path, *rows[1:]), VotedPairs(PAIRS, num_set_aside=2))


def test_a_ranking_that_was_set_aside_is_one_row(tmp_path: Path) -> None:
    """Of four answers there are six pairs."""
    pairs = ({"id": f"q#{i}-{j}", "vote": 1} for i in range(4) for j in range(i))
    given = _file(tmp_path, {"id": "a", "vote": 1}, *pairs)
    assert read_votes(given, VotedPairs(PAIRS, num_set_aside=1)) == {"a": (1.0, 0.0)}


@pytest.mark.parametrize("text", ["id,vote\na,\nb,1\n", "id,vote\na,nan\nb,1\n"])
def test_an_empty_score_is_an_abstention(tmp_path: Path, text: str) -> None:
    path = tmp_path / "votes.csv"
    path.write_text(text)
    assert read_votes(Source(str(path)), VotedPairs(PAIRS)) == {"b": (1.0, 0.0)}


def test_one_score_of_two_is_a_mistake(tmp_path: Path) -> None:
    row = {"id": "a", "chosen_score": 1.0, "rejected_score": None}
    with pytest.raises(VotesError, match="wrong_type in field 'rejected_score': found nothing"):
        read_votes(_file(tmp_path, row), VotedPairs(PAIRS))


def test_before_pairs_are_read_the_form_is_checked(tmp_path: Path) -> None:
    assert len(read_votes(_file(tmp_path, {"id": "z", "vote": 1}, {"line": 99, "vote": 1}))) == 2
    with pytest.raises(VotesError, match=r"duplicate_id in field 'id'"):
        read_votes(_file(tmp_path, {"id": "z", "vote": 1}, {"id": "z", "vote": 2}))
    with pytest.raises(VotesError, match="empty_source"):
        read_votes(_file(tmp_path, ""))
