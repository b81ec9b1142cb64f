"""Demonstrations in TRL's shapes: their texts by hand, and a row for every way to be bad."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from trimtab.models.data.demonstrations import DemonstrationError, Shaping, load_demonstrations
from trimtab.models.data.messages import Message
from trimtab.models.data.readers import Source

WriteRows = Callable[..., str]

USER = {"role": "user", "content": "Q"}
YES = {"role": "assistant", "content": "yes"}
HH = "\n\nHuman: Q\n\nAssistant:"
GOOD: dict[str, Any] = {"prompt": "Q", "completion": "A"}
LONG = "x" * 60


def _render(messages: list[Message]) -> str:
    if messages[0]["role"] == "system":
        raise ValueError("no system here")
    return "".join(f"<{message['role']}>{message['content']}" for message in messages)


TEMPLATE = Shaping(
    end="</s>",
    render=lambda messages: f"{_render(messages)}<assistant>",
    render_whole=lambda messages: f"{_render(messages)}\n",
    max_characters=50,
)
PLAIN = Shaping(end="</s>")


@pytest.mark.parametrize(
    ("row", "prompt", "text", "by_template"),
    [
        (GOOD, "Q", "QA</s>", None),
        (GOOD | {"completion": " A</s>"}, "Q", "Q A</s>", None),
        ({"text": "some text"}, "", "some text</s>", None),
        ({"text": "some text</s>", "prompt": None}, "", "some text</s>", None),
        (
            {"prompt": [USER], "completion": [YES]},
            HH,
            f"{HH} yes</s>",
            ("<user>Q<assistant>", "<user>Q<assistant>yes\n"),
        ),
        (
            {"messages": [USER, YES, USER, YES]},
            "",
            f"{HH} yes{HH} yes</s>",
            ("", "<user>Q<assistant>yes<user>Q<assistant>yes\n"),
        ),
    ],
)
def test_texts_by_hand(
    write_rows: WriteRows,
    row: dict[str, Any],
    prompt: str,
    text: str,
    by_template: tuple[str, str] | None,
) -> None:
    """A text ends in the end token once, a message list as its template ends it."""
    source = Source(write_rows([row, b"", row | {"category": "own"}]), category="given")
    (found, own), bad_rows = load_demonstrations([source], PLAIN)
    assert (found.prompt, found.text, bad_rows) == (prompt, text, [])
    assert (found.category, own.category) == ("given", "own")
    (found, _), _ = load_demonstrations([source], TEMPLATE)
    assert (found.prompt, found.text) == (by_template or (prompt, text))


def test_what_was_asked_is_the_start_up_to_the_first_answer(write_rows: WriteRows) -> None:
    rows = [GOOD, {"messages": [USER, YES, USER, YES]}, {"text": "some text"}]
    found, _ = load_demonstrations([Source(write_rows(rows))], PLAIN)
    assert [each.opening for each in found] == ["Q", HH, "some text"]


BAD_ROWS: list[tuple[str, str | None, dict[str, Any] | bytes]] = [
    ("not_json", None, b'{"text": '),
    ("not_an_object", None, b'["Q", "A"]'),
    ("invalid_utf8", "text", b'{"text": "A\\ud800"}'),
    ("unknown_format", None, {}),
    ("unknown_format", None, {"chosen": "A", "rejected": "B"}),
    ("unknown_format", None, GOOD | {"text": "A"}),
    ("unknown_format", None, {"messages": [USER, YES], "text": "A"}),
    ("missing_field", "completion", {"prompt": "Q"}),
    ("missing_field", "prompt", {"completion": "A"}),
    ("missing_field", "messages[1].content", {"messages": [USER, {"role": "assistant"}]}),
    ("empty_field", "completion", GOOD | {"completion": " \n"}),
    ("empty_field", "messages", {"messages": []}),
    ("wrong_type", "text", {"text": 3}),
    ("wrong_type", "completion", {"prompt": [USER], "completion": "yes"}),
    ("wrong_type", "prompt", {"prompt": "Q", "completion": [YES]}),
    ("wrong_type", "messages", {"messages": "Q"}),
    ("wrong_type", "category", GOOD | {"category": 1}),
    ("out_of_range", "messages[0].role", {"messages": [USER | {"role": "human"}, YES]}),
    ("bad_turns", "messages", {"messages": [USER]}),
    ("bad_turns", "messages", {"messages": [YES, USER]}),
    ("bad_turns", "prompt", {"prompt": [USER, YES], "completion": [YES]}),
    ("bad_turns", "completion", {"prompt": [USER], "completion": [USER, YES]}),
    ("bad_turns", "completion", {"prompt": [USER], "completion": [YES, USER]}),
    ("not_renderable", "messages", {"messages": [USER | {"role": "system"}, YES]}),
    ("not_renderable", "completion", {"prompt": [USER | {"role": "system"}, USER],
                                      "completion": [YES]}),
    ("too_long", "completion", GOOD | {"completion": LONG}),
    ("too_long", "text", {"text": LONG}),
]  # fmt: skip


@pytest.mark.parametrize(("reason", "field", "row"), BAD_ROWS)
def test_a_bad_row_is_refused_for_its_reason(
    write_rows: WriteRows, reason: str, field: str | None, row: dict[str, Any] | bytes
) -> None:
    path = write_rows([GOOD, row, GOOD])
    found, (bad,) = load_demonstrations([Source(path)], TEMPLATE, "quarantine")
    assert len(found) == 2
    assert (bad.file, bad.line, bad.reason) == (path, 2, reason)
    assert bad.problems[0].field == field
    assert bad.problems[0].found and bad.problems[0].allowed
    with pytest.raises(DemonstrationError, match=f"demonstrations: 1 .*\n.*rows.jsonl:2: {reason}"):
        load_demonstrations([Source(path)], TEMPLATE)


def test_tokens_are_counted_to_the_end(write_rows: WriteRows) -> None:
    limits = {"count_tokens": len, "max_tokens": 6}
    source = Source(write_rows([{"text": "ab"}, {"text": "abc"}]))
    shaping = Shaping(end="</s>", **limits)  # type: ignore[arg-type]
    found, (bad,) = load_demonstrations([source], shaping, "quarantine")
    assert [each.text for each in found] == ["ab</s>"]
    assert (bad.line, bad.problems[0].found) == (2, "7 tokens")


def test_sources_without_a_usable_row_are_refused_in_either_mode(write_rows: WriteRows) -> None:
    path = write_rows([{"prompt": "Q"}])
    with pytest.raises(DemonstrationError, match="no usable row left"):
        load_demonstrations([Source(path)], PLAIN, "quarantine")
    empty = write_rows([], "empty.jsonl")
    for source, reason in ((empty, "empty_source"), ("./no.jsonl", "missing_source")):
        with pytest.raises(DemonstrationError, match=f"{reason}.*\n.*correct the sources"):
            load_demonstrations([Source(source), Source(write_rows([GOOD]))], PLAIN, "quarantine")
