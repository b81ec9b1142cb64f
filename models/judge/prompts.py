"""From a rubric and what is to be judged to the messages a judge is sent.

What is judged is not trusted: it may hold lines that look like the rubric's markers, a verdict, or
the control tokens of a chat template. Every line of it is quoted with `| `, and markers are lines
that are not, so no text can leave its block; control tokens get a space inside.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from models.judge.chat import Message
from models.judge.rubrics import RubricText, load_questions

QUOTE = "| "
CUT = "[cut here]"
Kind = Literal["compare", "score"]
# What a verdict says: which response is better, or a rating.
LABELS: dict[Kind, tuple[str, ...]] = {
    "compare": ("A", "B"),
    "score": tuple(str(rating) for rating in range(1, 11)),
}
_MARKER = re.compile(r"\[(dialogue|draft|response|response A|response B)\]")
# <|im_end|> and its like, <s>, </s>, <start_of_turn>, [INST], <<SYS>>: a space behind the bracket.
_CONTROL = re.compile(
    r"<(?=[|｜]|/?s>|/?(?:bos|eos|pad|unk)>|(?:start|end)_of_turn>|</?SYS>>)|\[(?=/?INST\])"
)


@dataclass(frozen=True)
class Interview:
    """How a judge is asked about one thing; `blocks` is what is judged, by name and in order."""

    kind: Kind
    rubric: RubricText
    num_examples: int = 0
    max_characters: int = 6000

    def opening(
        self, blocks: Mapping[str, str], with_thoughts: bool, principle: str | None = None
    ) -> tuple[Message, ...]:
        """Everything up to the first question, which is for thoughts or for the answer.

        A principle stands right before it, behind all that other requests begin with as well.
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
                messages += self.after_thoughts(example.thoughts)
            messages.append(Message("assistant", example.verdict))
        messages.append(self._ask(blocks, first, principle))
        introduction = f"{self.rubric.criteria}\n\n{questions[self.kind]}\n\n{messages[0].content}"
        return (Message("user", introduction), *messages[1:])

    def after_thoughts(self, thoughts: str) -> tuple[Message, ...]:
        """What follows a judge's thoughts: the question for its answer."""
        return (
            said(thoughts),
            Message("user", load_questions()[f"{self.kind} answer"]),
        )

    def after_nonsense(self, answer: str) -> tuple[Message, ...]:
        """What follows an answer that was not understood: the form it must have."""
        return (
            said(answer),
            Message("user", load_questions()[f"{self.kind} repair"]),
        )

    def _ask(self, blocks: Mapping[str, str], part: str, principle: str | None = None) -> Message:
        question = load_questions()[f"{self.kind} {part}"]
        shown = [quote_blocks(blocks, self.max_characters), *under(principle), question]
        return Message("user", "\n\n".join(shown))


def under(principle: str | None) -> list[str]:
    """What says that a principle decides; nothing without one."""
    return [] if principle is None else [f"{load_questions()['principle']}\n{principle}"]


def quote_blocks(blocks: Mapping[str, str], max_characters: int) -> str:
    """Each text quoted below its name; too long a dialogue keeps its end."""
    return "\n\n".join(
        f"[{name}]\n{quote(text, max_characters, from_end=name == 'dialogue')}"
        for name, text in blocks.items()
    )


def said(text: str) -> Message:
    """What the judge said; some endpoints refuse a message without text."""
    return Message("assistant", text.strip() or "(nothing)")


def quote(text: str, max_characters: int, *, from_end: bool = False) -> str:
    """A text as quoted lines; too long a one keeps its beginning or, `from_end`, its end."""
    text = text.strip()
    is_cut = len(text) > max_characters
    if is_cut:
        text = text[-max_characters:] if from_end else text[:max_characters]
    lines = [QUOTE + _CONTROL.sub(r"\g<0> ", line) for line in text.splitlines() or [""]]
    if is_cut:
        lines.insert(0 if from_end else len(lines), CUT)
    return "\n".join(lines)


def read_blocks(messages: tuple[Message, ...]) -> dict[str, str]:
    """What is judged in the last message that shows anything: the inverse of quoting."""
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
