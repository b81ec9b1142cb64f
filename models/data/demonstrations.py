"""Demonstrations in the shapes of TRL's SFTTrainer, as the whole texts that it would learn.

- completion: `prompt` and `completion`, both texts or both message lists; the latter is learned.
- messages: `messages`, one dialogue; all of it is learned, the user's turns too.
- text: `text`; all of it is learned.

As there, a text ends in the end token, and a message list as the tokenizer's chat template ends it;
without a template it is HH-RLHF text (`trimtab.models.data.messages`). A row may have a `category`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

from trimtab.models.data.files import RawRow, SourceError
from trimtab.models.data.messages import (
    Message,
    Render,
    check_messages,
    render_hh,
    render_hh_whole,
    roles_of,
    template_problem,
    text_problem,
)
from trimtab.models.data.problems import (
    BadRow,
    PreferenceDataError,
    Problem,
    advice_on,
    length_problem,
    shorten,
)
from trimtab.models.data.readers import Source, read_source

SHAPES: Final = (("prompt", "completion"), ("messages",), ("text",))
FIELDS: Final = tuple(name for shape in SHAPES for name in shape)
ALLOWED_SHAPES: Final = "prompt + completion, messages, or text"


class DemonstrationError(PreferenceDataError):
    """All that is wrong with demonstrations, in one message."""

    subject = "demonstrations"


@dataclass(frozen=True)
class Demonstration:
    """text: prompt and all that is learned after it. opening: the text up to the first answer."""

    prompt: str
    text: str
    opening: str
    category: str | None = None

    def to_json(self) -> dict[str, Any]:
        """A row of demonstrations.jsonl."""
        return {"prompt": self.prompt, "text": self.text, "category": self.category}


@dataclass(frozen=True)
class Shaping:
    """How rows become texts, and how long these may be.

    end: the end token's text. render, render_whole: chat templates for messages up to an answer and
    for a whole dialogue; both None: HH-RLHF text.
    """

    end: str
    render: Render | None = None
    render_whole: Render | None = None
    max_characters: int | None = None
    count_tokens: Callable[[str], int] | None = None
    max_tokens: int | None = None

    def texts(self, messages: list[Message], answered: list[Message]) -> tuple[str, str]:
        """The text of `messages` up to an answer, and of the dialogue that goes on `answered`.

        Raises ValueError where the chat template refuses them.
        """
        if self.render is None or self.render_whole is None:
            return render_hh(messages), render_hh_whole([*messages, *answered]) + self.end
        return self.render(messages), self.render_whole([*messages, *answered])


def load_demonstrations(
    sources: Sequence[Source],
    shaping: Shaping,
    on_bad_rows: str = "fail",
    max_rows: int | None = None,
) -> tuple[list[Demonstration], list[BadRow]]:
    """Read demonstrations from all sources, or the first rows of each; bad rows as in
    `load_preferences`.

    Raises DemonstrationError as that does PreferenceDataError.
    """
    found: list[Demonstration] = []
    bad_rows: list[BadRow] = []
    for source in sources:
        num_rows = 0
        try:
            for raw in islice(read_source(source, []), max_rows):
                if raw.is_blank:
                    continue
                num_rows += 1
                demonstration, problems = _parse(raw, shaping, source.category)
                if demonstration is None or problems:
                    bad_rows.append(raw.refused(problems))
                else:
                    found.append(demonstration)
            if num_rows == 0:
                problem = Problem("empty_source", None, "0 rows", "at least one row")
                raise SourceError(source.label, 0, problem)
        except SourceError as error:
            bad_rows.append(error.refused())
    advice = advice_on(bad_rows, on_bad_rows)
    if advice is None and not found:
        advice = "give other sources: no usable row left"
    if advice is not None:
        raise DemonstrationError(bad_rows, advice)
    return found, bad_rows


@dataclass
class _Row:
    """A row while it is parsed."""

    values: dict[str, Any]
    shaping: Shaping
    problems: list[Problem] = field(default_factory=list)


def _parse(
    raw: RawRow, shaping: Shaping, category: str | None
) -> tuple[Demonstration | None, list[Problem]]:
    """A row's demonstration, or None; and everything that is wrong."""
    if raw.problem is not None:
        return None, [raw.problem]
    if not isinstance(raw.value, dict):
        found = f"{type(raw.value).__name__} {shorten(raw.value)}"
        return None, [Problem("not_an_object", None, found, "an object with fields")]
    row = _Row(raw.value, shaping)
    given = {name for name in FIELDS if raw.value.get(name) is not None}
    shapes = [shape for shape in SHAPES if given & set(shape)]
    own = raw.value.get("category")
    if own is not None and (problem := text_problem("category", own)) is not None:
        row.problems.append(problem)
    if len(shapes) != 1:
        found = f"fields {shorten(list(raw.value))}"
        row.problems.append(Problem("unknown_format", None, found, ALLOWED_SHAPES))
        return None, row.problems
    parsed = {"prompt": _completion, "messages": _dialogue, "text": _text}[shapes[0][0]](row)
    if parsed is None:
        return None, row.problems
    limits = shaping.max_characters, shaping.max_tokens, shaping.count_tokens
    problem = length_problem(shapes[0][-1], parsed[1], *limits)
    if problem is not None:
        row.problems.append(problem)
    return Demonstration(*parsed, category=own or category), row.problems


def _text(row: _Row) -> tuple[str, str, str] | None:
    text = row.values["text"]
    problem = text_problem("text", text)
    if problem is not None:
        row.problems.append(problem)
        return None
    return "", _ended(text, row.shaping.end), text


def _completion(row: _Row) -> tuple[str, str, str] | None:
    sides = [row.values.get(name) for name in ("prompt", "completion")]
    if any(isinstance(side, list) for side in sides):
        return _message_completion(row, *sides)
    problems = [text_problem(*side) for side in zip(("prompt", "completion"), sides, strict=True)]
    row.problems += [problem for problem in problems if problem is not None]
    if any(problems):
        return None
    prompt, completion = map(str, sides)
    return prompt, prompt + _ended(completion, row.shaping.end), prompt


def _message_completion(row: _Row, prompt: Any, completion: Any) -> tuple[str, str, str] | None:
    asked = check_messages("prompt", prompt, row.problems)
    answer = check_messages("completion", completion, row.problems)
    for name, messages, at, role in (
        ("prompt", asked, -1, "user"),
        ("completion", answer, 0, "assistant"),
        ("completion", answer, -1, "assistant"),
    ):
        if messages is not None and messages[at]["role"] != role:
            place = f"a {'first' if at == 0 else 'last'} turn of the {role}"
            row.problems.append(Problem("bad_turns", name, roles_of(messages), place))
    if asked is None or answer is None or row.problems:
        return None
    rendered = _rendered(row, "completion", asked, answer)
    return None if rendered is None else (*rendered, rendered[0])


def _dialogue(row: _Row) -> tuple[str, str, str] | None:
    messages = check_messages("messages", row.values["messages"], row.problems)
    if messages is None:
        return None
    first = next((at for at, each in enumerate(messages) if each["role"] == "assistant"), None)
    if not first:
        allowed = "a turn of the assistant, and one of another before it"
        row.problems.append(Problem("bad_turns", "messages", roles_of(messages), allowed))
        return None
    rendered = _rendered(row, "messages", messages[:first], messages[first:])
    return None if rendered is None else ("", rendered[1], rendered[0])


def _rendered(
    row: _Row, name: str, asked: list[Message], answered: list[Message]
) -> tuple[str, str] | None:
    try:
        return row.shaping.texts(asked, answered)
    except ValueError as error:
        row.problems.append(template_problem(name, error))
        return None


def _ended(text: str, end: str) -> str:
    """The text with the end token behind it, once."""
    return text if text.endswith(end) else text + end
