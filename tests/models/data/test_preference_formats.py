"""Every format, to records written out by hand."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jinja2
import pytest

from trimtab.models.data.formats import parse_row
from trimtab.models.data.loading import load_preferences
from trimtab.models.data.messages import Render, chat_renderer, render_hh
from trimtab.models.data.readers import Source
from trimtab.models.data.records import Opinion, PreferencePair, Votes

WriteRows = Callable[..., str]

USER = {"role": "user", "content": "What is 1+1?"}
TWO = {"role": "assistant", "content": "2"}
THREE = {"role": "assistant", "content": "3"}
HH_PROMPT = "\n\nHuman: What is 1+1?\n\nAssistant:"


def load_one(
    write_rows: WriteRows, row: dict[str, Any], render: Render | None = None
) -> PreferencePair:
    pairs, bad_rows, _ = load_preferences([Source(write_rows([row]))], render=render)
    assert not bad_rows
    (pair,) = pairs
    return pair


def texts(pair: PreferencePair) -> tuple[str, str, str]:
    return pair.prompt, pair.chosen, pair.rejected


@pytest.mark.parametrize(
    ("chosen", "rejected", "expected"),
    [
        # one turn
        (f"{HH_PROMPT} 2", f"{HH_PROMPT} 3", (HH_PROMPT, " 2", " 3")),
        # several turns: the last common mark counts, not the first
        (
            f"{HH_PROMPT} 2\n\nHuman: Sure?\n\nAssistant: Yes.",
            f"{HH_PROMPT} 2\n\nHuman: Sure?\n\nAssistant: Yes and no.",
            (f"{HH_PROMPT} 2\n\nHuman: Sure?\n\nAssistant:", " Yes.", " Yes and no."),
        ),
        # a mark inside one answer is not common
        (
            f"{HH_PROMPT} 2\n\nAssistant: or so",
            f"{HH_PROMPT} 2",
            (HH_PROMPT, " 2\n\nAssistant: or so", " 2"),
        ),
        # the texts part in the middle of a mark
        (
            f"{HH_PROMPT} 2\n\nAssist me",
            f"{HH_PROMPT} 2\n\nAssistant: x",
            (HH_PROMPT, " 2\n\nAssist me", " 2\n\nAssistant: x"),
        ),
        # one dialogue goes on after the other has ended
        (
            f"{HH_PROMPT} 2",
            f"{HH_PROMPT} 2\n\nHuman: Sure?\n\nAssistant: No.",
            (HH_PROMPT, " 2", " 2\n\nHuman: Sure?\n\nAssistant: No."),
        ),
    ],
)
def test_native_hh(
    write_rows: WriteRows, chosen: str, rejected: str, expected: tuple[str, str, str]
) -> None:
    pair = load_one(write_rows, {"chosen": chosen, "rejected": rejected})
    assert texts(pair) == expected


def test_explicit_texts_are_taken_as_they_are(write_rows: WriteRows) -> None:
    row: dict[str, Any] = {
        "id": "x",
        "prompt": " Q? ",
        "chosen": "A\n",
        "rejected": " B",
        "category": "qa",
    }
    row |= {"rating": 4, "votes_chosen": 3, "votes_rejected": 2, "tie": False}
    assert load_one(write_rows, row) == PreferencePair(
        "x", " Q? ", "A\n", " B", "qa", 4, Votes(3, 2, 0), None, "rows.jsonl:1"
    )


def test_a_record_that_was_written_is_read_again(write_rows: WriteRows) -> None:
    pair = PreferencePair("x", "Q", "A", "B", None, 1, Votes(0, 2, 3), "g", "rows.jsonl:1")
    assert load_one(write_rows, pair.to_json()) == pair
    said = (Opinion("a", "rejected"), Opinion("b", "equal"), Opinion("c", "chosen"))
    pair = dataclasses.replace(pair, votes=Votes(1, 1, 1), opinions=said)
    assert load_one(write_rows, pair.to_json()) == pair
    # and they are the votes where no others are given
    assert load_one(write_rows, pair.to_json() | {"votes": None}) == pair
    swapped = pair.swapped()
    assert swapped.swapped() == pair
    assert swapped.opinions is not None
    assert [opinion.prefers for opinion in swapped.opinions] == ["chosen", "equal", "rejected"]


def test_whole_dialogues_beside_their_prompt_are_not_read_twice(write_rows: WriteRows) -> None:
    row = {"prompt": HH_PROMPT, "chosen": HH_PROMPT + " 2", "rejected": HH_PROMPT + " 3"}
    assert texts(load_one(write_rows, row)) == (HH_PROMPT, " 2", " 3")
    # but an answer may well start as its prompt does
    row = {"prompt": "I", "chosen": "I am", "rejected": "I was"}
    assert texts(load_one(write_rows, row)) == ("I", "I am", "I was")


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": [USER], "chosen": [TWO], "rejected": [THREE]},
        {"prompt": [USER], "chosen": [USER, TWO], "rejected": [USER, THREE]},
        {"prompt": [USER], "chosen": "2", "rejected": "3"},
        {"prompt": "What is 1+1?", "chosen": [TWO], "rejected": [THREE]},
        {"prompt": "What is 1+1?", "chosen": [USER, TWO], "rejected": [USER, THREE]},
        {"chosen": [USER, TWO], "rejected": [USER, THREE]},
        {"chosen": [USER | {"name": "Al"}, TWO], "rejected": [USER, THREE | {"weight": 1}]},
    ],
)
def test_message_lists_become_hh_text(write_rows: WriteRows, row: dict[str, Any]) -> None:
    assert texts(load_one(write_rows, row)) == (HH_PROMPT, " 2", " 3")


def test_whole_message_lists_of_several_turns(write_rows: WriteRows) -> None:
    start = [{"role": "system", "content": "Be brief."}, USER, TWO, USER]
    row = {"chosen": [*start, TWO], "rejected": [*start, THREE]}
    prompt = "\n\nSystem: Be brief.\n\nHuman: What is 1+1?\n\nAssistant: 2" + HH_PROMPT
    assert texts(load_one(write_rows, row)) == (prompt, " 2", " 3")
    assert render_hh(start) == prompt


class TemplateTokenizer:
    """What `chat_renderer` needs of a tokenizer, with a real template."""

    def __init__(self, chat_template: str | None) -> None:
        self.chat_template = chat_template

    def apply_chat_template(
        self, messages: list[dict[str, str]], *, tokenize: bool, add_generation_prompt: bool
    ) -> str:
        assert not tokenize and self.chat_template is not None
        environment = jinja2.Environment()
        environment.globals["raise_exception"] = _raise
        return environment.from_string(self.chat_template).render(
            messages=messages, add_generation_prompt=add_generation_prompt
        )


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)


CHAT_TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}"
    "{% endif %}<{{ m.role }}>{{ m.content }}</>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def test_message_lists_are_rendered_by_a_chat_template(write_rows: WriteRows) -> None:
    render = chat_renderer(TemplateTokenizer(CHAT_TEMPLATE))
    row = {"chosen": [USER, TWO], "rejected": [USER, THREE]}
    expected = ("<user>What is 1+1?</><assistant>", "2", "3")
    assert texts(load_one(write_rows, row, render)) == expected
    # text that is no message list stays what it is
    plain = {"prompt": "Q", "chosen": "A", "rejected": "B"}
    assert texts(load_one(write_rows, plain, render)) == ("Q", "A", "B")


def test_a_tokenizer_without_a_template_renders_nothing() -> None:
    assert chat_renderer(TemplateTokenizer(None)) is None
    assert chat_renderer(object()) is None


def test_messages_that_the_template_refuses_are_bad_rows(write_rows: WriteRows) -> None:
    system = {"role": "system", "content": "Be brief."}
    rows = [
        {"chosen": [system, USER, TWO], "rejected": [system, USER, THREE]},
        {"chosen": [USER, TWO], "rejected": [USER, THREE]},
    ]
    render = chat_renderer(TemplateTokenizer(CHAT_TEMPLATE))
    pairs, bad_rows, _ = load_preferences(
        [Source(write_rows(rows))], render=render, on_bad_rows="quarantine"
    )
    assert len(pairs) == 1
    (bad,) = bad_rows
    assert (bad.line, bad.reason, bad.problems[0].field) == (1, "not_renderable", "prompt")
    assert "no system" in bad.problems[0].found


@pytest.mark.parametrize("prompt", ["Q", [{"role": "user", "content": "Q"}]])
def test_a_ranking_becomes_all_its_pairs(write_rows: WriteRows, prompt: object) -> None:
    row = {"id": "r", "prompt": prompt, "responses": ["a", "b", "c"], "category": "qa"}
    pairs, _, report = load_preferences([Source(write_rows([row]))])
    space = "" if prompt == "Q" else " "
    found = [(p.id, p.chosen, p.rejected, p.group, p.category) for p in pairs]
    assert found == [
        ("r#1-2", space + "a", space + "b", "r", "qa"),
        ("r#1-3", space + "a", space + "c", "r", "qa"),
        ("r#2-3", space + "b", space + "c", "r", "qa"),
    ]
    assert (report.total.read, report.total.used, report.num_pairs) == (1, 1, 3)


def test_nine_ranked_answers_make_36_pairs(write_rows: WriteRows) -> None:
    row = {"prompt": "Q", "responses": [[{"role": "assistant", "content": c}] for c in "abcdefghi"]}
    pairs, _, _ = load_preferences([Source(write_rows([row]))])
    assert len(pairs) == len({pair.id for pair in pairs}) == 36
    assert len({pair.group for pair in pairs}) == 1
    assert all(pair.chosen < pair.rejected for pair in pairs)


@pytest.mark.parametrize(
    ("columns", "who"),
    [
        ({"annotator": "ann"}, "ann"),
        ({"annotator": None, "annotator_id": 7}, "7"),
        ({"annotator": ["a", "b"], "worker_id": "w"}, "w"),
        ({"worker_id": " "}, None),
        ({"annotator": True}, None),
    ],
)
def test_who_labelled_a_row(columns: dict[str, Any], who: str | None) -> None:
    row = {"prompt": "Q", "chosen": "A", "rejected": "B", **columns}
    parsed = parse_row(row, None)
    assert parsed.problems == [] and parsed.votes is None
    assert parsed.opinions == (None if who is None else (Opinion(who, "chosen"),))
