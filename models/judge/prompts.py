"""The messages that a judge is sent, made of a rubric and the texts to judge.

The texts are not trusted: a line may look like a marker of the rubric, a verdict, or a control
token of a chat template. Every line of them is quoted with `| `, and markers are never quoted, so
no text can leave its block. Control tokens get a space inside.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from trimtab.models.judge.chat import Message
from trimtab.models.judge.rubrics import RubricText, load_questions

QUOTE = "| "
CUT = "[cut here]"
Kind = Literal["compare", "score"]
# What a verdict says: which response is better, or a rating.
OPTIONS: dict[Kind, tuple[str, ...]] = {
    "compare": ("A", "B"),
    "score": tuple(str(rating) for rating in range(1, 11)),
}
_MARKER = re.compile(r"\[(dialogue|draft|response|response A|response B)\]")
# <|im_end|> and its like, <s>, </s>, <start_of_turn>, [INST], <<SYS>>: a space after the bracket.
_CONTROL = re.compile(
    r"<(?=[|｜]|/?s>|/?(?:bos|eos|pad|unk)>|(?:start|end)_of_turn>|</?SYS>>)|\[(?=/?INST\])"
)


@dataclass(frozen=True)
class PromptTemplate:
    """How a judge is asked. `blocks` are the texts to judge, by name and in order."""

    kind: Kind
    rubric: RubricText
    num_examples: int = 0
    max_characters: int = 6000

    def first_question(
        self, blocks: Mapping[str, str], with_thoughts: bool, principle: str | None = None
    ) -> tuple[Message, ...]:
        """The messages up to the first question, which asks for thoughts or for the answer.

        A principle stands right before the question, so that requests with different principles
        have the longest common prefix.
        """
        questions = load_questions()
        first = "thoughts" if with_thoughts else "answer"
        messages: list[Message] = []
        for example in self.rubric.examples[: self.num_examples]:
            shown = {
                "dialogue": example.dialogue,
                "response A": example.first,
                "response B": example.second,
            }
            messages.append(self._ask(shown, first))
            if with_thoughts:
                messages += self.follow_up(example.thoughts, "answer")
            messages.append(Message("assistant", example.verdict))
        messages.append(self._ask(blocks, first, principle))
        introduction = f"{self.rubric.criteria}\n\n{questions[self.kind]}\n\n{messages[0].content}"
        return (Message("user", introduction), *messages[1:])

    def follow_up(self, reply: str, part: Literal["answer", "repair"]) -> tuple[Message, ...]:
        """The judge's reply, and the question for its answer, or for the required form."""
        question = load_questions()[f"{self.kind} {part}"]
        return assistant_message(reply), Message("user", question)

    def _ask(self, blocks: Mapping[str, str], part: str, principle: str | None = None) -> Message:
        question = load_questions()[f"{self.kind} {part}"]
        shown = [quote_blocks(blocks, self.max_characters), *principle_part(principle), question]
        return Message("user", "\n\n".join(shown))


def principle_part(principle: str | None) -> list[str]:
    """The text that states the deciding principle, as one part of a message; [] without one."""
    return [] if principle is None else [f"{load_questions()['principle']}\n{principle}"]


def quote_blocks(blocks: Mapping[str, str], max_characters: int) -> str:
    """Each text quoted below its name. A dialogue that is too long keeps its end."""
    return "\n\n".join(
        f"[{name}]\n{quote(text, max_characters, from_end=name == 'dialogue')}"
        for name, text in blocks.items()
    )


def assistant_message(text: str) -> Message:
    """A message of the judge itself; some endpoints refuse a message without text."""
    return Message("assistant", text.strip() or "(nothing)")


def quote(text: str, max_characters: int, *, from_end: bool = False) -> str:
    """A text as quoted lines. One that is too long keeps its beginning or, `from_end`, its end."""
    text = text.strip()
    is_cut = len(text) > max_characters
    if is_cut:
        text = text[-max_characters:] if from_end else text[:max_characters]
    lines = [QUOTE + _CONTROL.sub(r"\g<0> ", line) for line in text.splitlines() or [""]]
    if is_cut:
        lines.insert(0 if from_end else len(lines), CUT)
    return "\n".join(lines)


def read_blocks(messages: tuple[Message, ...]) -> dict[str, str]:
    """The texts in the last message that has any: the inverse of `quote_blocks`."""
    for message in reversed(messages):
        blocks: dict[str, list[str]] = {}
        for line in message.content.split("\n"):
            marker = _MARKER.fullmatch(line)
            if marker:
                blocks[marker.group(1)] = []
            elif line.startswith(QUOTE) and blocks:
                blocks[next(reversed(blocks))].append(line.removeprefix(QUOTE))
        if blocks:
            return {name: "\n".join(lines) for name, lines in blocks.items()}
    return {}
