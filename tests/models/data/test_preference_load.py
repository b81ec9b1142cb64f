"""Loading: options, ids, ties, limits, and a report whose counts add up."""

import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trimtab.models.data.loading import PreferenceOptionError, TokenLimit, load_preferences
from trimtab.models.data.problems import PreferenceDataError
from trimtab.models.data.readers import Source
from trimtab.models.data.row_account import RowCounts

WriteRows = Callable[..., str]
GOOD: dict[str, Any] = {"prompt": "Q", "chosen": "A", "rejected": "B"}


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"on_bad_rows": "ignore"}, "on_bad_rows: found 'ignore', allowed: .'fail', 'quarantine'"),
        ({"on_ties": "keep"}, "on_ties: found 'keep'"),
        ({"max_characters": 0}, "max_characters: found 0"),
        ({"max_tokens": TokenLimit(0, len)}, "max_tokens: found 0"),
    ],
)
def test_wrong_options_are_named(
    write_rows: WriteRows, options: dict[str, Any], named: str
) -> None:
    with pytest.raises(PreferenceOptionError, match=named):
        load_preferences([Source(write_rows([GOOD]))], **options)


def test_no_source_or_one_given_twice_is_an_error(write_rows: WriteRows) -> None:
    with pytest.raises(PreferenceOptionError, match="found none"):
        load_preferences([])
    source = Source(write_rows([GOOD]))
    with pytest.raises(PreferenceOptionError, match="more than once"):
        load_preferences([source, source])


def test_the_report_counts_what_was_read(write_rows: WriteRows) -> None:
    rows: list[dict[str, Any] | bytes] = [
        GOOD | {"chosen": "long", "category": "code", "rating": 4},
        b"",
        b"{",
        GOOD | {"tie": True},
        GOOD | {"rejected": "longer", "votes_chosen": 1, "votes_rejected": 4, "note": "?"},
        GOOD | {"chosen": "longer", "rejected": "A"},
        GOOD | {"chosen": "longer", "rejected": "A", "prompt": "q "},
    ]
    ranking = {"prompt": "R", "responses": ["a", "bb", "cc\n\nHuman: no"], "rating": None}
    sources = [
        Source(write_rows(rows), category="chat"),
        Source(write_rows([ranking, ranking], "ranked.jsonl"), name="ranked"),
    ]
    pairs, bad_rows, report = load_preferences(sources, on_bad_rows="quarantine", on_ties="drop")
    assert (len(pairs), len(bad_rows)) == (4 + 2 * 3, 1)
    first, second = report.by_source.values()
    assert first == RowCounts(read=6, used=4, quarantined=1, ties_dropped=1)
    assert second == RowCounts(read=2, used=2)
    assert list(report.by_source)[1] == "ranked" and pairs[-1].source == "ranked:2"
    assert report.total.read == 8 and report.num_pairs == 10
    assert report.rows_by_format == {"explicit": 4, "kwise": 2}
    assert report.bad_rows_by_reason == {"not_json": 1}
    assert Counter(pair.category for pair in pairs) == {None: 6, "chat": 3, "code": 1}
    assert report.pairs_by_rating == {4: 1}
    assert report.ignored_fields == {"note": 1}
    assert (report.num_pairs_with_votes, report.num_against_votes) == (1, 1)
    # "A" over "longer" and "longer" over "A"; the second ranking repeats the first's 3 pairs
    assert (report.num_contradicting_pairs, report.num_repeated_pairs) == (1, 3)
    # long/B, A/longer, longer/A twice, and of each ranking a/bb, a/cc.., bb/cc..: 3 of 10
    assert report.share_chosen_longer == pytest.approx(0.3)


def test_made_ids_depend_on_texts_only_and_repeats_are_numbered(write_rows: WriteRows) -> None:
    other = GOOD | {"prompt": "R"}
    first, _, _ = load_preferences([Source(write_rows([GOOD, other, GOOD], "a.jsonl"))])
    second, _, _ = load_preferences([Source(write_rows([other, GOOD], "b.jsonl"))])
    assert first[2].id == first[0].id + "-2"
    assert [pair.id for pair in second] == [first[1].id, first[0].id]
    assert len({pair.id for pair in first}) == 3


def test_rows_of_one_id_are_all_kept_and_numbered(write_rows: WriteRows) -> None:
    """An id may be that of the prompt. A refused row keeps its id, so that others keep theirs."""
    ranking = {"id": "r", "prompt": "Q", "responses": ["a", "b"]}
    paths = [
        write_rows([GOOD | {"id": 7}, GOOD | {"id": "bad", "rating": 9}, ranking], "a.jsonl"),
        write_rows(
            [GOOD | {"id": i} for i in ("7", "7-2", "bad", "r", "r#1-2", "new")] + [ranking],
            "b.jsonl",
        ),
    ]
    pairs, bad_rows, report = load_preferences(list(map(Source, paths)), on_bad_rows="quarantine")
    ids = ["7", "r#1-2", "7-2", "7-2-2", "bad-2", "r-2", "r#1-2-2", "new", "r-3#1-2"]
    assert [pair.id for pair in pairs] == ids
    assert [pair.group for pair in pairs if pair.group] == ["r", "r-3"]
    assert [bad.reason for bad in bad_rows] == ["out_of_range"]
    # of one text: the first, 7-2, 7-2-2, bad-2, r-2, r#1-2-2, new; and the ranking again
    assert report.num_repeated_pairs == 7


def test_ids_of_prompts_cost_no_quadratic_time(write_rows: WriteRows) -> None:
    rows = [GOOD | {"id": "q", "rejected": str(n)} for n in range(20_000)]
    pairs, _, _ = load_preferences([Source(write_rows(rows))])
    assert [pairs[0].id, pairs[-1].id] == ["q", "q-20000"]
    assert len({pair.id for pair in pairs}) == 20_000


def test_ties_are_bad_rows_or_dropped_but_never_hide_other_problems(write_rows: WriteRows) -> None:
    rows = [GOOD, GOOD | {"tie": True}, GOOD | {"tie": True, "chosen": ""}]
    source = Source(write_rows(rows))
    with pytest.raises(PreferenceDataError, match="on_ties to 'drop'") as caught:
        load_preferences([source])
    assert caught.value.by_reason == {"tie": 1, "empty_field": 1}
    with pytest.raises(PreferenceDataError) as caught:
        load_preferences([source], on_ties="drop")
    assert caught.value.by_reason == {"empty_field": 1}
    _, bad_rows, report = load_preferences([source], on_ties="drop", on_bad_rows="quarantine")
    assert (len(bad_rows), report.total.ties_dropped) == (1, 1)


def test_limits_hold_for_prompt_and_answer_together(write_rows: WriteRows) -> None:
    rows = [GOOD | {"prompt": "one two", "chosen": " three", "rejected": " three four"}]
    source = Source(write_rows(rows))

    def count(text: str) -> int:
        return len(text.split())

    load_preferences([source], max_characters=18, max_tokens=TokenLimit(4, count))
    cases: list[dict[str, Any]] = [
        {"max_characters": 17},
        {"max_tokens": TokenLimit(3, count)},
    ]
    for options in cases:
        with pytest.raises(PreferenceDataError, match="too_long in field 'rejected'") as caught:
            load_preferences([source], **options)
        assert len(caught.value.bad_rows[0].problems) == 1


def test_nothing_usable_is_an_error_that_keeps_the_bad_rows(write_rows: WriteRows) -> None:
    source = Source(write_rows([b"{", GOOD | {"tie": True}]))
    with pytest.raises(PreferenceDataError, match="1 ties dropped") as caught:
        load_preferences([source], on_bad_rows="quarantine", on_ties="drop")
    assert [bad.reason for bad in caught.value.bad_rows] == ["not_json"]


def test_no_gpu_stack_is_loaded() -> None:
    code = (
        "import sys, trimtab.models.data, trimtab.models.data.records;"
        "heavy = {'torch', 'transformers', 'datasets', 'pyarrow', 'numpy'} & set(sys.modules);"
        "sys.exit(str(heavy) if heavy else 0)"
    )
    root = Path(__file__).parents[3]
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
