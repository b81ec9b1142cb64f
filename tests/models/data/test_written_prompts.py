"""The prompts of our own: they can be used as they are, and mistakes in them are named."""

from __future__ import annotations

import pytest

from tests.models.judge.tiny import tiny_tokenizer
from trimtab.models.data.messages import chat_renderer, render_hh
from trimtab.models.data.prompts import normalise_prompt
from trimtab.models.data.written_prompts import (
    SETS,
    WrittenPromptsError,
    load_written,
    parse_written,
    written_like,
)

ASKED = [{"role": "user", "content": "Why?"}]


def test_there_are_sixty_of_each_and_none_twice() -> None:
    found = [load_written(name) for name in SETS]
    assert [len(prompts) for prompts in found] == [60, 60]
    assert len({normalise_prompt(prompt) for prompts in found for prompt in prompts}) == 120


def test_comments_and_empty_lines_are_none() -> None:
    assert parse_written("# about\n\n How? \n#\nWhy?\n", "own.txt") == ("How?", "Why?")


def test_all_mistakes_are_named_at_once() -> None:
    text = f"How?\n{'a' * 301}\nhow?\nWh\x07y?\n"
    with pytest.raises(WrittenPromptsError) as error:
        parse_written(text, "own.txt")
    assert str(error.value).splitlines() == [
        "own.txt:2: found 301 characters; allowed: 300",
        "own.txt:3: found the prompt of line 1 again",
        "own.txt:4: found 'Wh\\x07y?'; allowed: printable text",
    ]
    with pytest.raises(WrittenPromptsError, match="own.txt: found no prompt"):
        parse_written("# nothing\n", "own.txt")


def test_a_request_is_written_as_most_prompts_are() -> None:
    template = chat_renderer(tiny_tokenizer())
    assert template is not None
    dialogue = "\n\nHuman: How?\n\nAssistant: So.\n\nHuman: And?\n\nAssistant:"
    asked = "\n\nHuman: Why?\n\nAssistant:"
    # Prompts of HH-RLHF text stay so beside a model with a template.
    assert written_like([dialogue, dialogue, "plain"], template)(ASKED) == asked
    rendered = template(ASKED)
    assert written_like([rendered, rendered, dialogue], template)(ASKED) == rendered != asked
    assert written_like(["plain", "plain", dialogue], template)(ASKED) == "Why?"
    assert written_like([dialogue], None) is render_hh
