"""A file of no known form: what is said of it is what makes it readable, or what it lacks."""

import csv
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from trimtab.models.data.loading import load_preferences
from trimtab.models.data.problems import PreferenceDataError, columns_in_words
from trimtab.models.data.readers import Source

WriteRows = Callable[..., str]
Rows = list[dict[str, Any]]
ASKED = [f"Name animal {n}." for n in range(8)]
TEXTS = [(asked, f"Animal {n} is the otter.", f"No {n}.") for n, asked in enumerate(ASKED)]


def rows(*names: str, **others: Any) -> Rows:
    """Rows with a prompt, a good and a bad answer under these names."""
    return [dict(zip(names, texts, strict=False)) | others for texts in TEXTS]


def problem_of(path: str, **form: Any) -> str:
    with pytest.raises(PreferenceDataError) as caught:
        load_preferences([Source(path, **form)], on_bad_rows="quarantine")
    assert caught.value.by_reason == {"unknown_columns": 1}
    return caught.value.bad_rows[0].describe()


def proposed(told: str) -> dict[str, str]:
    found = re.search(r"name the columns: '?preferences.columns=(\{.*\})'?$", told)
    assert found, told
    columns: dict[str, str] = json.loads(found[1])
    return columns


NATIVE = ("prompt", "chosen", "rejected")
PROPOSED: list[tuple[Rows, dict[str, str], dict[str, str]]] = [
    # Rows, columns that were given, and what is to be named instead.
    (rows("prompt", "choosen", "rejcted"), {}, {"chosen": "choosen", "rejected": "rejcted"}),
    (rows("prompt", "choosen", "rejcted"), {"chosen": "choosen"},
     {"chosen": "choosen", "rejected": "rejcted"}),
    (rows("prompt", "chosen", "rejcted"), {}, {"rejected": "rejcted"}),
    (rows("prompt", "choosen", "rejected"), {}, {"chosen": "choosen"}),
    (rows("prompt", "choosen", "rejected"), {"chosen": "chosn"}, {"chosen": "choosen"}),
    (rows("Promt", " Choosen", "Rejcted "), {},
     {"prompt": "Promt", "chosen": " Choosen", "rejected": "Rejcted "}),
    (rows("question", "better", "worse", score=.5), {},
     dict(zip(NATIVE, ("question", "better", "worse"), strict=True))),
    (rows("query", "good_answer", "bad_answer", good_score=9, bad_score=1), {},
     dict(zip(NATIVE, ("query", "good_answer", "bad_answer"), strict=True))),
    (rows("goal", "goodText", "badText"), {},
     dict(zip(NATIVE, ("goal", "goodText", "badText"), strict=True))),
    (rows("Promt", "Respnse A", "Respnse B", Winer="a"), {},
     {"prompt": "Promt", "response_a": "Respnse A", "response_b": "Respnse B",
      "winner": "Winer"}),
    (rows("goal", "left view", "right view", vote="B"), {},
     {"prompt": "goal", "response_a": "left view", "response_b": "right view", "winner": "vote"}),
    (rows("history", "human_ref_a", "human_ref_b", labels=1), {},
     {"human_ref_A": "human_ref_a", "human_ref_B": "human_ref_b"}),
]  # fmt: skip


@pytest.mark.parametrize(("given", "columns", "wanted"), PROPOSED)
def test_the_columns_that_are_proposed_make_the_file_readable(
    write_rows: WriteRows, given: Rows, columns: dict[str, str], wanted: dict[str, str]
) -> None:
    path = write_rows(given)
    assert proposed(problem_of(path, columns=columns)) == wanted
    pairs, bad, report = load_preferences([Source(path, columns=wanted)], on_ties="drop")
    assert len(pairs) + report.total.ties_dropped == len(given) and not bad


def test_unpaired_data_are_told_by_their_label(write_rows: WriteRows) -> None:
    given = [
        {"question": asked, "answer": text, "label": text == good}
        for asked, good, bad in TEXTS
        for text in (good, bad)
    ]
    path = write_rows(given)
    wanted = {"prompt": "question", "completion": "answer"}
    assert proposed(problem_of(path)) == wanted
    assert len(load_preferences([Source(path, columns=wanted)])[0]) == len(TEXTS)


LACKING = [
    ([{"train": rows(*NATIVE)}], "'train' holds a list of rows with chosen, prompt, rejected"),
    ([{"rows": [{"row": row} for row in rows(*NATIVE)]}], "'rows' holds a list of rows with"),
    ([{"prompt": "Q", "pair": {"chosen": "a", "rejected": "b"}}], "'pair' holds an object with"),
    (rows("text", score=3), "a text and a score ('score') a row are pointwise data"),
    (rows("prompt", "response", reward=.1), "a text and a score ('reward') a row are pointwise"),
    (rows("prompt", "response_a"), "these rows have no label"),
    (rows("instruction", "output"), "these rows have no label"),
    ([{"messages": [{"role": "user", "content": "Q"}]}], "these rows have no label"),
    (rows("prompt", "response_a", "response_b"),
     "two answers ('response_a', 'response_b'), but no column that says which is better"),
    (rows("project", "answer2", "answer1"), "two answers ('answer1', 'answer2'), but no column"),
    (rows("prompt", "chosen"), "no column of this file is 'rejected', the worse answer"),
    (rows("prompt", "worse"), "no column of this file is 'chosen', the better answer"),
    (rows("goal", "left view", "right view", vote="perhaps"), "in 'vote' allowed: "),
]  # fmt: skip


@pytest.mark.parametrize(("given", "told"), LACKING, ids=[case[1] for case in LACKING])
def test_what_a_file_lacks_is_said(write_rows: WriteRows, given: Rows, told: str) -> None:
    assert told in problem_of(write_rows(given))


@pytest.mark.parametrize(
    "given",
    [
        rows("prompt", "response", toxic_label=True),
        rows("prompt", "response", thumbs_down=True),
        rows("prompt", "response_a", "response_b", worse_choice="b"),
        rows("prompt", "response_a", "response_b", better_than_b="a"),
        rows("prompt", "response_0", "response_1", is_response_0_better=1),
        rows("prompt", "not_good_text", "not_bad_text"),
        rows("prompt", "unchosen", "unrejected"),
    ],
    ids=lambda given: ",".join(given[0]),
)
def test_no_columns_are_proposed_that_would_turn_the_labels_round(
    write_rows: WriteRows, given: Rows
) -> None:
    assert "name the columns" not in problem_of(write_rows(given))


def test_names_of_columns_of_a_damaged_file_are_shortened(write_rows: WriteRows) -> None:
    told = problem_of(write_rows([{"a" * 100_000: 1, "b_C" * 100_000: 2, "text": "x"}]))
    assert len(told) < 2000 and "text: str 'x'" in told


@pytest.mark.parametrize(
    "table",
    [
        TEXTS,
        [("1", "2", "3"), ("4", "5", "6")],
        [("a prompt", "yes", "no"), ("b", "c", "d")],
        [("same", "same", "other"), ("b", "c", "d")],
    ],
)
def test_a_table_without_header_is_told_to_need_one(
    tmp_path: Path, table: Sequence[Sequence[str]]
) -> None:
    path = tmp_path / "a.csv"
    with path.open("w", newline="") as stream:
        csv.writer(stream).writerows(table)
    with pytest.raises(PreferenceDataError, match="write one above"):
        load_preferences([Source(str(path))])


def test_columns_are_named_in_the_words_of_the_command() -> None:
    for columns, option in (
        ((("chosen", "good"), ("rejected", "bad")), "--columns chosen=good,rejected=bad"),
        ((("chosen", "Answer A"),), "--columns 'chosen=Answer A'"),
        ((("chosen", "a,b"),), """'preferences.columns={"chosen": "a,b"}'"""),
        ((("chosen", " Chosen"),), """'preferences.columns={"chosen": " Chosen"}'"""),
    ):
        assert columns_in_words(columns, as_option=True) == option
    setting = columns_in_words((("chosen", "gut ß"),), as_option=False)
    assert setting == """'preferences.columns={"chosen": "gut ß"}'"""
