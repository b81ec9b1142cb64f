"""Demonstrations in the shapes of TRL's SFTTrainer, as the whole texts that it would learn.

- completion: `prompt` and `completion`, both texts or both message lists; the latter is learned.
- messages: `messages`, one dialogue; all of it is learned, the user's turns too.
- text: `text`; all of it is learned.

As there, a text ends in the end token, and a message list as the tokenizer's chat template ends it;
without a template it is HH-RLHF text (`trimtab.models.data.messages`). A row may have a `category`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
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
    typed,
)
from trimtab.models.data.readers import Source, read_source

Row = dict[str, Any]
SHAPES: Final = (("prompt", "completion"), ("messages",), ("text",))
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
    demonstrations: list[Demonstration] = []
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
                    demonstrations.append(demonstration)
            if num_rows == 0:
                raise SourceError(source.label, 0, "empty_source", "0 rows", "at least one row")
        except SourceError as error:
            bad_rows.append(error.refused())
    advice = advice_on(bad_rows, on_bad_rows)
    if advice is None and not demonstrations:
        advice = "give other sources: no usable row left"
    if advice is not None:
        raise DemonstrationError(bad_rows, advice)
    return demonstrations, bad_rows


Texts = tuple[str, str, str]
"""A demonstration's prompt, text and opening. Parsers raise ValueError as `Shaping.texts` does."""


def _parse(
    raw: RawRow, shaping: Shaping, category: str | None
) -> tuple[Demonstration | None, list[Problem]]:
    """A row's demonstration, or None; and everything that is wrong."""
    row = raw.value
    if raw.problem is not None:
        return None, [raw.problem]
    if not isinstance(row, dict):
        return None, [Problem("not_an_object", None, typed(row), "an object with fields")]
    problems: list[Problem] = []
    if row.get("category") is not None:
        problems += filter(None, [text_problem("category", row["category"])])
    shapes = [shape for shape in SHAPES if any(row.get(name) is not None for name in shape)]
    if len(shapes) != 1:
        shown = f"fields {shorten(list(row))}"
        return None, [*problems, Problem("unknown_format", None, shown, ALLOWED_SHAPES)]
    parse = {"prompt": _completion, "messages": _dialogue, "text": _text}[shapes[0][0]]
    last = shapes[0][-1]
    try:
        texts = parse(row, shaping, problems)
    except ValueError as error:
        return None, [*problems, template_problem(last, error)]
    if texts is None:
        return None, problems
    limits = shaping.max_characters, shaping.max_tokens, shaping.count_tokens
    problems += filter(None, [length_problem(last, texts[1], *limits)])
    return Demonstration(*texts, category=row.get("category") or category), problems


def _text(row: Row, shaping: Shaping, problems: list[Problem]) -> Texts | None:
    text = row["text"]
    if problem := text_problem("text", text):
        problems.append(problem)
        return None
    return "", _ended(text, shaping.end), text


def _completion(row: Row, shaping: Shaping, problems: list[Problem]) -> Texts | None:
    prompt, completion = row.get("prompt"), row.get("completion")
    if isinstance(prompt, list) or isinstance(completion, list):
        return _message_completion(prompt, completion, shaping, problems)
    wrong = [text_problem("prompt", prompt), text_problem("completion", completion)]
    problems += filter(None, wrong)
    if any(wrong):
        return None
    return str(prompt), f"{prompt}{_ended(str(completion), shaping.end)}", str(prompt)


def _message_completion(
    prompt: Any, completion: Any, shaping: Shaping, problems: list[Problem]
) -> Texts | None:
    before = check_messages("prompt", prompt, problems)
    answer = check_messages("completion", completion, problems)
    for name, messages, at, role in (
        ("prompt", before, -1, "user"),
        ("completion", answer, 0, "assistant"),
        ("completion", answer, -1, "assistant"),
    ):
        if messages is not None and messages[at]["role"] != role:
            place = f"a {'first' if at == 0 else 'last'} turn of the {role}"
            problems.append(Problem("bad_turns", name, roles_of(messages), place))
    if before is None or answer is None or problems:
        return None
    opening, text = shaping.texts(before, answer)
    return opening, text, opening


def _dialogue(row: Row, shaping: Shaping, problems: list[Problem]) -> Texts | None:
    messages = check_messages("messages", row["messages"], problems)
    if messages is None:
        return None
    roles = [message["role"] for message in messages]
    first = roles.index("assistant") if "assistant" in roles else 0
    if not first:
        allowed = "a turn of the assistant, and one of another before it"
        problems.append(Problem("bad_turns", "messages", roles_of(messages), allowed))
        return None
    opening, text = shaping.texts(messages[:first], messages[first:])
    return "", text, opening


def _ended(text: str, end: str) -> str:
    """The text with the end token behind it, once."""
    return text if text.endswith(end) else text + end
