"""Which answer is the better one: used wherever a row says it, and never guessed.

In every case "fine" is to come out better than "poor", whatever its place.
"""

import csv
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from trimtab.models.data.loading import Look, load_preferences, look_through
from trimtab.models.data.problems import PreferenceDataError
from trimtab.models.data.readers import Source
from trimtab.models.data.records import PreferencePair

WriteRows = Callable[..., str]
Row = dict[str, Any]

NAN = float("nan")
LIST: Row = {"prompt": "Q", "responses": ["poor", "fine"]}
TWO: Row = {"prompt": "Q", "response_a": "fine", "response_b": "poor"}
LABELLED: Row = {"prompt": "Q", "chosen": "poor", "rejected": "fine"}
USER = {"role": "user", "content": "Q"}
FINE, POOR = ({"role": "assistant", "content": text} for text in ("fine", "poor"))


def look(path: str, **form: Any) -> Look:
    return look_through([Source(path, **form)], on_ties="drop")


def texts(pairs: Sequence[PreferencePair]) -> list[tuple[str, str, str]]:
    return [(pair.prompt, pair.chosen.strip(), pair.rejected.strip()) for pair in pairs]


def refusal(path: str, **form: Any) -> str:
    """The one error of a whole file, which stops a quarantining run too."""
    with pytest.raises(PreferenceDataError) as caught:
        load_preferences([Source(path, **form)], on_bad_rows="quarantine", on_ties="drop")
    assert caught.value.by_reason == {"ambiguous_columns": 1}
    (bad,) = caught.value.bad_rows
    assert bad.line == 0
    return bad.describe()


@pytest.mark.parametrize(
    "row",
    [
        LIST | {"scores": [1.5, 9]},
        LIST | {"rewards": [-2, 0.5]},
        LIST | {"rating": [2, 5]},
        LIST | {"gpt4_ratings": ["2", "10"]},
        LIST | {"rank": [2, 1]},
        LIST | {"ranks": [2, 1]},
        LIST | {"rankings": ["2", "1"]},
        LIST | {"scores": [1, 9], "ranks": [2, 1], "source": "s", "lengths": [9, 1]},
        LIST | {"scores": None, "rewards": [1, 9]},
        {"question": "Q", "answers": ["poor", "fine"], "scores": [1, 9]},
        {"instruction": "Q", "generations": ["poor", "fine"], "ratings": [1, 9]},
        {"instruction": "Q", "output": ["poor", "fine"], "scores": [1, 9]},
        {"prompt": "Q", "completions": ["poor", "fine"], "rewards": [1, 9]},
        {"prompt": "Q", "answers": [{"text": "poor", "score": 1}, {"text": "fine", "score": "9"}]},
        {
            "prompt": "Q",
            "responses": [{"text": t, "rank": r} for t, r in (("poor", 2), ("fine", 1))],
        },
        {"prompt": "Q", "responses": [[POOR], [FINE]], "scores": [1, 9]},
        {"prompt": "Q", "responses": [POOR, FINE], "scores": [1, 9]},
    ],
    ids=lambda row: ",".join(row),
)
def test_answers_are_ordered_by_their_scores(write_rows: WriteRows, row: Row) -> None:
    pairs, _, _ = load_preferences([Source(write_rows([row]))])
    assert [pair[1:] for pair in texts(pairs)] == [("fine", "poor")]


def test_equal_scores_make_no_pair(write_rows: WriteRows) -> None:
    rows = [
        LIST | {"scores": [3, 3]},
        {"prompt": "Q", "responses": ["poor", "fine", "bad"], "scores": [1, 9, 1]},
    ]
    found = look(write_rows(rows))
    assert texts(found.pairs) == [("Q", "fine", "poor"), ("Q", "fine", "bad")]
    assert found.report.total.ties_dropped == 1 and not found.bad_rows


@pytest.mark.parametrize(
    ("columns", "named"),
    [
        ({"preference": 1}, "preference 1"),
        ({"preference": "B"}, "preference 'B'"),
        ({"winner": "response 2"}, "winner 'response 2'"),
        ({"best": "fine"}, "best 'fine'"),
        ({"chosen_index": 1}, "chosen_index 1"),
        ({"labels": [0, 1]}, "labels [0, 1]"),
        ({"margin": -0.5}, "margin -0.5"),
        ({"pairs": [[1, 0]]}, "pairs [[1, 0]]"),
        ({"helpfulness": [1, 9]}, "helpfulness [1, 9]"),
        ({"toxicity_scores": [0.1, 0.9]}, "toxicity_scores [0.1, 0.9]"),
        ({"scores": [1, 9], "ranks": [1, 2]}, "scores [1, 9], ranks [1, 2]"),
        ({"scores": [1, 9], "best": 0}, "best 0"),
        ({"gold": 1}, "gold 1"),
        ({"accepted": [False, True]}, "accepted [False, True]"),
        ({"reviews": [{"n": 1}, {"n": "9"}]}, "reviews [{'n': 1}, {'n': '9'}]"),
        ({"reviews": [[1, 2], [9, 8]]}, "reviews [[1, 2], [9, 8]]"),
        ({"aspects": {"honest": [1, 9]}}, "aspects {'honest': [1, 9]}"),
        ({"by": {"m": 1, "n": 9}}, "by {'m': 1, 'n': 9}"),
        (
            {"responses": ["mid", "poor", "fine"], "ranking": [2, 0, 1]},  # the third is the best
            "ranking [2, 0, 1]",
        ),
    ],
)
def test_what_could_order_answers_is_refused(
    write_rows: WriteRows, columns: Row, named: str
) -> None:
    told = refusal(write_rows([LIST | columns] * 3))
    assert f"found {named}," in told and "preferences.format=best-first" in told


def test_what_orders_nothing_is_ignored(write_rows: WriteRows) -> None:
    row = LIST | {"label": "safety", "models": ["m", "n"], "num_tokens": [9, 1], "score": 0.5}
    row |= {"quality": "high", "usage": [{"tokens": 9, "by": "m"}, {"tokens": 1, "by": "n"}]}
    pairs, _, report = load_preferences([Source(write_rows([row]))])
    assert texts(pairs) == [("Q", "poor", "fine")]
    assert report.ignored_fields == {
        "label": 1,
        "models": 1,
        "num_tokens": 1,
        "score": 1,
        "quality": 1,
        "usage": 1,
    }


def test_a_setting_says_what_orders(write_rows: WriteRows) -> None:
    row = LIST | {"toxicity_scores": [9, 1], "helpfulness": [1, 9], "best": 0}
    path = write_rows([row])
    for form in (
        {"columns": {"ranks": "toxicity_scores"}},
        {"columns": {"scores": "helpfulness"}},
        {"columns": {"responses": "responses", "scores": "helpfulness"}},
    ):
        pairs, _, _ = load_preferences([Source(path, **form)])
        assert texts(pairs) == [("Q", "fine", "poor")]
    found = look(write_rows([row, LIST]), columns={"scores": "helpfulness"})
    assert [bad.reason for bad in found.bad_rows] == ["ambiguous_label"]
    pairs, _, _ = load_preferences([Source(write_rows([row]), format="best-first")])
    assert texts(pairs) == [("Q", "poor", "fine")]


@pytest.mark.parametrize(
    ("scores", "reason", "place"),
    [
        ([3], "wrong_type", "scores"),
        ([1, 2, 3], "wrong_type", "scores"),
        ("1;9", "wrong_type", "scores"),
        ({"a": 1, "b": 9}, "wrong_type", "scores"),
        (0.5, "wrong_type", "scores"),
        (None, "missing_field", "scores"),
        ([1, None], "missing_field", "scores[1]"),
        ([NAN, 1], "wrong_type", "scores[0]"),
        (["good", 1], "wrong_type", "scores[0]"),
    ],
)
def test_scores_that_do_not_order_are_bad_rows(
    write_rows: WriteRows, scores: Any, reason: str, place: str
) -> None:
    rows = [LIST | {"scores": [1, 9]}, LIST | {"scores": scores}]
    pairs, (bad,), _ = load_preferences([Source(write_rows(rows))], on_bad_rows="quarantine")
    assert (bad.line, bad.reason, bad.problems[0].field) == (2, reason, place)
    assert len(pairs) == 1


def test_a_file_has_one_order(write_rows: WriteRows) -> None:
    """Rows without scores beside rows with: which comes first decides no label."""
    scored = LIST | {"scores": [1, 9]}
    assert "rows with scores, and before them rows without" in refusal(write_rows([LIST, scored]))
    pairs, (bad,), _ = load_preferences(
        [Source(write_rows([scored, LIST]))], on_bad_rows="quarantine"
    )
    assert (texts(pairs), bad.reason) == ([("Q", "fine", "poor")], "ambiguous_label")


FORMS: dict[str, Row] = {
    "a, b": TWO,
    "A, B": {"prompt": "Q", "response_A": "fine", "response_B": "poor"},
    "1, 2": {"prompt": "Q", "output_1": "fine", "output_2": "poor"},
    "0, 1": {"prompt": "Q", "answer0": "fine", "answer1": "poor"},
    "sides": {"prompt": "Q", "left_text": "fine", "right_text": "poor"},
    "model": {"question": "Q", "response_model": "m", "response_A": "fine", "response_B": "poor"},
}


def labelled(base: Row, column: str, values: Sequence[Any]) -> list[Row]:
    return [base | {"prompt": f"Q{index}", column: value} for index, value in enumerate(values)]


@pytest.mark.parametrize(
    ("form", "column", "values", "expected"),
    [
        ("a, b", "winner", [1, 2], "<>"),
        ("a, b", "winner", ["1", 2.0, "1", "tie"], "<><="),
        ("a, b", "preference", ["a", "B", " A ", "model_b", "Response A", "assistant_b"], "<><><>"),
        ("a, b", "preferred", ["response_a", "response_b", "fine", "poor"], "<><>"),
        ("a, b", "choice", ["left", "right", "first", "SECOND", "one", "two"], "<><><>"),
        ("a, b", "label", ["A>B", "B>A", "A=B", "A>>B", "[[B>>A]]", "A < B", "A ~ B"], "<>=<>>="),
        (
            "a, b",
            "winner",
            ["tie", "Tie (both bad)", "neither", "both", "equal", "a tie", "a"],
            "======<",
        ),
        (
            "a, b",
            "verdict",
            ["A is better", "[[B]]", "Assistant A wins", "B is much better"],
            "<><>",
        ),
        ("a, b", "comparison", [{"selected": "left"}, {"selected": "right"}], "<>"),
        ("A, B", "label", ["A>B", "B>A"], "<>"),
        ("model", "label", ["A>B", "B>A"], "<>"),
        ("1, 2", "label", [1, 2, 2], "<>>"),
        ("1, 2", "label", [1, 1], "<<"),
        ("1, 2", "better_output", ["output_1", "Output 2", "first", "2"], "<><>"),
        ("0, 1", "better_answer_id", [0, 1, "0", "answer1"], "<><>"),
        ("sides", "preferred_text", ["left", "right_text", "tie"], "<>="),
    ],
)
def test_winners_are_told_as_people_write_them(
    write_rows: WriteRows, form: str, column: str, values: list[Any], expected: str
) -> None:
    rows = labelled(FORMS[form], column, values)
    found = look(write_rows(rows))
    assert not found.bad_rows, found.bad_rows[0].describe()
    assert found.report.rows_by_format == {"labelled": len(rows) - expected.count("=")}
    better = {pair.prompt: "<" if pair.chosen == "fine" else ">" for pair in found.pairs}
    assert "".join(better.get(f"Q{index}", "=") for index in range(len(rows))) == expected
    assert found.report.total.ties_dropped == expected.count("=")


@pytest.mark.parametrize(
    ("form", "values", "named"),
    [
        ("a, b", [0, 1], "found 0, of response_a and response_b"),
        ("a, b", [1, 2, 0], "found 0, of response_a and response_b"),  # a tie, or the first?
        ("a, b", ["model_0", "model_1"], "found 'model_0'"),
        ("1, 2", [0, 1, 2], "found 0, of output_1 and output_2"),
        ("a, b", [1, 1], "found 1 in every row"),
        ("a, b", ["tie", 2], "found 2 in every row"),
    ],
)
def test_numbers_that_do_not_tell_are_refused(
    write_rows: WriteRows, form: str, values: list[Any], named: str
) -> None:
    told = refusal(write_rows(labelled(FORMS[form], "winner", values)))
    assert named in told and "'winner'" in told
    assert "response_0, response_1 and better_response_id (0: the first" in told


@pytest.mark.parametrize(
    ("form", "values", "named"),
    [
        ("a, b", [1, 2, 5, 7], "may be of a scale: [1, 2, 5, 7]"),
        ("a, b", ["1", "2", "1.5"], "may be of a scale: [1, 1.5, 2]"),
        ("1, 2", [1, -1], "may be of a scale: [-1, 1]"),
        ("1, 2", ["1", "-1"], "may be of a scale: [-1, 1]"),
        ("0, 1", [0, 1, 2], "may be of a scale: [0, 1, 2]"),
    ],
)
def test_numbers_of_a_scale_are_refused(
    write_rows: WriteRows, form: str, values: list[Any], named: str
) -> None:
    path = write_rows(labelled(FORMS[form], "winner", values))
    with pytest.raises(PreferenceDataError, match="ambiguous_columns in field 'winner'") as caught:
        load_preferences([Source(path)], on_bad_rows="quarantine")
    assert named in str(caught.value)


@pytest.mark.parametrize("labels", [(0, 1, 2), ("0", "1", "-1"), (1, 0, 0.5)])
def test_labels_of_unpaired_answers_that_may_be_of_a_scale_are_refused(
    write_rows: WriteRows, labels: Sequence[Any]
) -> None:
    rows = [
        {"prompt": "Q", "completion": f"text {number}", "label": label}
        for number, label in enumerate(labels)
    ]
    with pytest.raises(PreferenceDataError, match="in field 'label': found numbers") as caught:
        load_preferences([Source(write_rows(rows))], on_bad_rows="quarantine")
    assert "allowed: true and false, or 1 and 0" in str(caught.value)
    assert len(look(write_rows([*rows[:2], rows[2] | {"label": None}])).pairs) == 1


@pytest.mark.parametrize(
    "value",
    [True, 3, -1, "-1", 0.5, "c", "not a", "A and B", "A>C", [], {}, "?", "A is bad", "b is worst"],
)
def test_a_winner_that_is_none_is_a_bad_row(write_rows: WriteRows, value: Any) -> None:
    rows = labelled(TWO, "winner", ["a", value, "b"])
    (bad,) = look(write_rows(rows)).bad_rows
    assert (bad.line, bad.reason, bad.problems[0].field) == (2, "out_of_range", "winner")
    assert "response_a | response_b" in bad.problems[0].allowed


def test_named_columns_are_winners_too(write_rows: WriteRows) -> None:
    """The values may be the columns' own names, whatever the script."""
    for first, second in (("text_a", "text_b"), ("left one", "right one"), ("甲", "乙")):
        base = {"prompt": "Q", first: "fine", second: "poor"}
        columns = {"response_a": first, "response_b": second, "winner": "said"}
        found = look(write_rows(labelled(base, "said", [first, second])), columns=columns)
        assert [pair.chosen for pair in found.pairs] == ["fine", "poor"]
    base = {"prompt": "Q", "甲": "fine", "乙": "poor"}
    found = look(write_rows(labelled(base, "said", ["丙", "乙"])), columns=columns)
    assert [pair.chosen for pair in found.pairs] == ["poor"] and len(found.bad_rows) == 1


@pytest.mark.parametrize(
    "row",
    [
        {"goal": "Name one.", "left reply": "The sea", "right reply": "The sun", "vote": "B"},
        {"goal": "Name one.", "preferred_text": "The sea", "rejected_text": "The sun"},
        {"my question": "Name one.", "chosen": "The sea", "rejected": "The sun"},
    ],
)
def test_answers_are_not_split_where_something_else_may_be_the_prompt(
    write_rows: WriteRows, row: Row
) -> None:
    assert not look(write_rows([row])).pairs


def test_models_and_numbered_columns_may_name_the_winner(write_rows: WriteRows) -> None:
    base = TWO | {"model_a": "m-7b", "model_b": "n-13b"}
    found = look(write_rows(labelled(base, "winner", ["n-13b", "m-7b"])))
    assert [pair.chosen for pair in found.pairs] == ["poor", "fine"]
    rows = labelled({"prompt": "Q", "x1": "fine", "x2": "poor"}, "said", [1, 1])
    columns = {"response_a": "x1", "response_b": "x2", "winner": "said"}
    found = look(write_rows(rows), columns=columns)
    assert [pair.chosen for pair in found.pairs] == ["fine", "fine"] and not found.bad_rows


@pytest.mark.parametrize(
    ("columns", "winner"),
    [
        ({"model_a": "m", "model_b": "m"}, "m"),
        ({"model_a": "b", "model_b": "a"}, "a"),
        ({"model_a": "2", "model_b": "1"}, "2"),
        ({"response_a": "B", "response_b": "A"}, "B"),
        ({"response_a": "neither"}, "neither"),
    ],
)
def test_a_winner_that_may_be_either_is_none(
    write_rows: WriteRows, columns: Row, winner: str
) -> None:
    rows = labelled(TWO | columns, "winner", [winner])
    (bad,) = look(write_rows(rows)).bad_rows
    assert (bad.reason, bad.problems[0].field) == ("out_of_range", "winner")
    assert "no name of both" in bad.problems[0].allowed


def test_columns_that_name_another_winner_are_refused(write_rows: WriteRows) -> None:
    rows = labelled(TWO | {"winner": "a"}, "preference", ["A", "first", None, "much", 2])
    assert len(look(write_rows(rows)).pairs) == 5
    for row in ({"preference": "b"}, {"preference": "tie"}, {"winner": "tie", "preference": "a"}):
        path = write_rows([*rows, TWO | {"winner": "a"} | row])
        assert "in field 'preference'" in refusal(path)
        found = look(path, columns={"winner": "preference"})
        assert [pair.prompt for pair in found.pairs][:2] == ["Q0", "Q1"]
    voted = TWO | {"rater1": "a", "rater2": "a", "winner": "response_b"}
    assert "where other columns prefer response_a" in refusal(write_rows([voted]))
    assert [p.chosen for p in look(write_rows([voted]), format="labelled").pairs] == ["poor"]
    assert [p.chosen for p in look(write_rows([voted]), format="voted").pairs] == ["fine"]


@pytest.mark.parametrize(
    ("form", "chosen", "rejected"),
    [
        ("a, b", "a", "b"),
        ("A, B", "response_A", "response_B"),
        ("1, 2", "1", "2"),
        ("sides", "Left", "Right"),
    ],
)
def test_chosen_may_be_the_name_of_an_answer(
    write_rows: WriteRows, form: str, chosen: str, rejected: str
) -> None:
    base = {"id": "7", **FORMS[form], "chosen": chosen, "rejected": rejected}
    found = look(write_rows([base, base | {"chosen": rejected, "rejected": chosen}]))
    assert texts(found.pairs) == [("Q", "fine", "poor"), ("Q", "poor", "fine")]
    assert not found.report.ignored_fields and found.report.rows_by_format == {"named": 2}
    whole = base | {"chosen": "fine", "rejected": "poor"}
    assert texts(look(write_rows([whole])).pairs) == [("Q", "fine", "poor")]
    models = {**TWO, "model_a": "m", "model_b": "n", "chosen": "n", "rejected": "m"}
    assert texts(look(write_rows([models])).pairs) == [("Q", "poor", "fine")]


def test_answers_without_a_prompt_of_their_own(write_rows: WriteRows) -> None:
    row = {
        "text_a": "The sea is fine",
        "text_b": "The sea is poor",
        "preferred_text": "B is better",
    }
    row |= {"index": 3, "model_a": "Model X", "model_b": "Model Y"}
    assert texts(look(write_rows([row])).pairs) == [("The sea is", "poor", "fine")]


@pytest.mark.parametrize(
    ("columns", "own"),
    [
        ({"score_chosen": 1, "score_rejected": 9}, {"score_chosen": 9, "score_rejected": 1}),
        ({"chosen_avg_rating": 1, "rejected_avg_rating": 9},
         {"chosen_avg_rating": 3, "rejected_avg_rating": 3}),
        ({"chosen-reward": -2, "rejected-reward": -1}, {"chosen-reward": 1, "rejected-reward": 0}),
        ({"chosen_rank": 2, "rejected_rank": 1}, {"chosen_rank": 1, "rejected_rank": 2}),
        ({"scores": [1, 9]}, {"scores": [9, 1]}),
        ({"scores": {"chosen": 1, "rejected": 9}}, {"scores": {"chosen": 9, "rejected": 1}}),
        ({"margin": -0.1}, {"margin": 0}),
        ({"mean preference difference": -0.1}, {"mean preference difference": 2}),
        ({"preference": "rejected"}, {"preference": "Chosen"}),
        ({"best_answer": "fine"}, {"best_answer": "fine"}),
    ],
    ids=lambda columns: ",".join(columns),
)  # fmt: skip
def test_labels_against_their_own_scores_are_counted(
    write_rows: WriteRows, columns: Row, own: Row
) -> None:
    """They are in use, and told on the first screen."""
    swapped = LABELLED | columns
    right = {"prompt": "R", "chosen": "fine", "rejected": "poor"} | own
    pairs, _, report = load_preferences([Source(write_rows([swapped, right, GOOD]))])
    account = report.account(pairs, pairs, None, {})
    assert (len(pairs), account.with_scores, account.against_scores) == (3, 2, 1)
    told = "used pairs with a label against their own scores or margin: 1 of 2 that have some"
    assert told in account.details()
    assert not any("own rows" in warning for warning in account.warnings())
    account = report.account(pairs, pairs[:1], 1, {})
    assert "1 of 1 labels are against the scores of their own rows" in " ".join(account.warnings())


GOOD: Row = {"prompt": "S", "chosen": "fine", "rejected": "poor", "score": 9, "note": "x"}


def test_scores_beside_two_answers_are_compared_too(write_rows: WriteRows) -> None:
    rows = [
        TWO | {"winner": "b", "score_a": 9, "score_b": 1},
        TWO | {"winner": "a", "score_a": "9", "score_b": 1},
        TWO | {"winner": "a", "score_a": None, "score_b": 1},
        LABELLED | {"votes_chosen": 1, "votes_rejected": 4, "length_difference": -3},
    ]
    report = look(write_rows(rows)).report
    assert list(report.is_against_scores.values()) == [True, False]
    assert report.num_against_votes == 1


def test_answers_stay_text_whatever_they_spell(write_rows: WriteRows, tmp_path: Path) -> None:
    said = ["[71, 269]", '{"a": 1}', "42", '[{"name": "f"}]', "true", "null"]
    rows = [
        {
            "conversations": [{"from": "human", "value": "Q"}],
            "chosen": text,
            "rejected": f"no {text}",
        }
        for text in said
    ]
    found = look(write_rows(rows))
    assert [pair.chosen for pair in found.pairs] == [f" {text}" for text in said]
    for asked in ("instruction", "question", "prompt", "query"):
        path = tmp_path / "table.csv"
        with path.open("w", newline="", encoding="utf-8") as stream:
            table = csv.writer(stream)
            table.writerow([asked, "chosen", "rejected"])
            table.writerows([text, text, f"no {text}"] for text in said)
        pairs = look(str(path)).pairs
        assert texts(pairs) == [(text, text, f"no {text}") for text in said]


def test_an_answer_that_is_a_number_or_an_object_is_a_bad_row(write_rows: WriteRows) -> None:
    rows = [LABELLED | {"chosen": value} for value in (4, 0.5, True, {"text": "fine"})]
    found = look(write_rows(rows))
    assert [(bad.reason, bad.problems[0].field) for bad in found.bad_rows] == [
        ("wrong_type", "chosen")
    ] * 4


HH = "\n\nHuman: Q\n\nAssistant:"


@pytest.mark.parametrize(
    ("row", "prompt"),
    [
        # one message in place of a list
        ({"prompt": "Q", "chosen": FINE, "rejected": POOR}, HH),
        ({"prompt": USER, "chosen": FINE, "rejected": [POOR]}, HH),
        ({"prompt": "Q", "chosen": {"from": "gpt", "value": "fine"}, "rejected": POOR}, HH),
        # ShareGPT's messages, and parts with a value
        (
            {
                side: [{"from": "human", "value": "Q"}, {"from": "gpt", "value": text}]
                for side, text in (("chosen", "fine"), ("rejected", "poor"))
            },
            HH,
        ),
        (
            {
                side: [
                    {"role": role, "content": [{"type": "text", "value": said}]}
                    for role, said in (("user", "Q"), ("assistant", text))
                ]
                for side, text in (("chosen", "fine"), ("rejected", "poor"))
            },
            HH,
        ),
        # other names, earlier turns, a system's text
        ({"prompt": "Q", "chosen_response": "fine", "rejected_response": "poor"}, "Q"),
        ({"query": "Q", "response_chosen": "fine", "response_rejected": "poor"}, "Q"),
        ({"input": "Q", "chosen": "fine", "rejected": "poor"}, "Q"),
        ({"Prompt": "Q", " Chosen": "fine", "Rejected ": "poor"}, "Q"),
        (
            {
                "system": "S",
                "history": [["Hi", "Hello"]],
                "question": "Q",
                "response_chosen": "fine",
                "response_rejected": "poor",
            },
            "\n\nSystem: S\n\nHuman: Hi\n\nAssistant: Hello" + HH,
        ),
    ],
)
def test_pairs_in_other_words(write_rows: WriteRows, row: Row, prompt: str) -> None:
    pairs, _, _ = load_preferences([Source(write_rows([row]))])
    assert texts(pairs) == [(prompt, "fine", "poor")]


@pytest.mark.parametrize("history", ["earlier", [["Hi"]], [["a", "b", "c"]], [3]])
def test_a_history_that_is_none_is_a_bad_row(write_rows: WriteRows, history: Any) -> None:
    row = {"question": "Q", "chosen": "fine", "rejected": "poor", "history": history}
    (bad,) = look(write_rows([row])).bad_rows
    assert (bad.reason, bad.problems[0].field) == ("wrong_type", "history")


def test_columns_named_outright_are_read_whatever_stands_beside(write_rows: WriteRows) -> None:
    row = TWO | {"winner": "b", "response_c": "x", "text_a": "x", "text_b": "y", "label": 0}
    assert texts(look(write_rows([row])).pairs) == [("Q", "poor", "fine")]


def test_nan_is_an_absent_value(write_rows: WriteRows) -> None:
    rows = [
        LABELLED | {"latency": NAN},
        LABELLED | {"prompt": "R", "rating": NAN, "category": NAN, "cost": float("inf")},
    ]
    pairs, _, _ = load_preferences([Source(write_rows(rows))])
    assert [(pair.prompt, pair.rating, pair.category) for pair in pairs] == [
        ("Q", None, None),
        ("R", None, None),
    ]
    path = Path(write_rows([]))
    path.write_text("[" + ",".join(map(json.dumps, rows)) + "]", encoding="utf-8")
    assert len(look(str(path)).pairs) == 2


@pytest.mark.parametrize(
    ("chosen", "rejected", "expected"),
    [
        ("The lid is open.", "The lid is shut.", ("The lid is", " open.", " shut.")),
        ("Lift there is", "Lift there isn't", ("Lift there", " is", " isn't")),
        ("A b\nfine", "A b\npoor", ("A b", "\nfine", "\npoor")),
        ("Q: why?\nAnswer: I say no", "Q: why?\nAnswer: I say yes",
         ("Q: why?\nAnswer:", " I say no", " I say yes")),
        ("<|user|>\nQ<|assistant|>\nIt is", "<|user|>\nQ<|assistant|>\nIt was",
         ("<|user|>\nQ<|assistant|>\n", "It is", "It was")),
        ("### Input:\nQ\n### Response:\nIt is", "### Input:\nQ\n### Response:\nIt was",
         ("### Input:\nQ\n### Response:", "\nIt is", "\nIt was")),
    ],
)  # fmt: skip
def test_texts_that_start_with_their_prompt(
    write_rows: WriteRows, chosen: str, rejected: str, expected: tuple[str, str, str]
) -> None:
    found = look(write_rows([{"chosen": chosen, "rejected": rejected}]))
    assert [(pair.prompt, pair.chosen, pair.rejected) for pair in found.pairs] == [expected]
    assert found.report.rows_by_format == {"implicit": 1}


def test_answers_without_any_prompt_are_no_pairs_by_chance(write_rows: WriteRows) -> None:
    rows = [{"chosen": f"{n} yes", "rejected": f"{n + 50} no"} for n in range(9)]
    chance = {"chosen": "The dog.", "rejected": "The cat."}
    with pytest.raises(PreferenceDataError, match="no prompt; 9 of 10 rows start differently"):
        load_preferences([Source(write_rows([chance, *rows]))], on_bad_rows="quarantine")


def test_a_column_beside_chosen_and_rejected_may_say_otherwise(write_rows: WriteRows) -> None:
    """Codes that differ are no constant; a constant, or a share, says nothing of the order."""
    for codes, told in (
        ((0, 1), "0 and 1"),
        ((2, 1), "1 and 2"),
        (("No", "yes"), "0 and 1"),
        ((1, "-1"), "-1 and 1"),
        ((True, False), "0 and 1"),
    ):
        given = [LABELLED | {"prompt": f"Q{n}", "label": codes[n % 2]} for n in range(4)]
        path = write_rows(given)
        assert f"in field 'label': found {told} beside chosen" in refusal(path)
        assert len(look(path, format="native").pairs) == 4
    for label in (1, 0.5, "ok"):
        assert not look(write_rows([row | {"label": label} for row in given])).bad_rows


@pytest.mark.parametrize(
    ("form", "choices", "votes"),
    [
        ("a, b", ("A", "B", "a"), (2, 1, 0)),
        ("1, 2", (1, 1, 2, 0), (2, 1, 1)),
        ("0, 1", (0, "0", 1), (2, 1, 0)),
        ("sides", ("left", "tie", "left_text"), (2, 0, 1)),
    ],
)
def test_columns_of_annotators_are_votes(
    write_rows: WriteRows, form: str, choices: Sequence[Any], votes: tuple[int, int, int]
) -> None:
    said = {f"annotator_{number}": choice for number, choice in enumerate(choices, start=1)}
    (pair,), _, report = load_preferences([Source(write_rows([FORMS[form] | said]))])
    assert (pair.chosen, pair.rejected) == ("fine", "poor")
    assert pair.votes is not None and pair.opinions is not None
    assert (pair.votes.chosen, pair.votes.rejected, pair.votes.equal) == votes
    assert [opinion.annotator for opinion in pair.opinions] == list(said)
    assert not report.ignored_fields


def test_a_number_of_an_annotator_that_does_not_tell_is_refused(write_rows: WriteRows) -> None:
    rows = [TWO | {"rater1": number, "prompt": f"Q{number}"} for number in (0, 1, 2)]
    assert "in field 'rater1': found 0, of response_a and response_b" in refusal(write_rows(rows))
