"""Message lists and dialogues in text: validation, the common prompt, rendering.

A message is {"role": "system" | "user" | "assistant" | "tool", "content": str}. Content in parts
of type text is joined; an assistant's `tool_calls` become text behind its content. One that came
with more than that has it all under GIVEN, which no text is made of. Without a chat
template messages are rendered as Anthropic's HH-RLHF data is written: "\\n\\nHuman: ..." and
"\\n\\nAssistant: ...", the prompt ending in "\\n\\nAssistant:" and the answer starting with the
space that follows.
"""

import importlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from trimtab.models.data.problems import Problem, shorten, typed

Message = dict[str, Any]
Render = Callable[[list[Message]], str]
"""From messages that end with the user's to the prompt's text, up to where the answer starts."""

GIVEN: Final = "given"
KEYS: Final = ("role", "content")
ASSISTANT_MARK: Final = "\n\nAssistant:"
HUMAN_MARK: Final = "\n\nHuman:"
MARKS: Final = (HUMAN_MARK, ASSISTANT_MARK)
HH_NAMES: Final = {"system": "System", "user": "Human", "assistant": "Assistant", "tool": "Tool"}
# what ShareGPT calls those who speak
_SPEAKERS: Final = {
    "human": "user", "gpt": "assistant", "observation": "tool", "function_call": "assistant",
}  # fmt: skip
_ROLES: Final = {name: role for role, name in HH_NAMES.items()}
_TURN: Final = re.compile(rf"(?:\A\s*|\n\n)({'|'.join(_ROLES)}):")


def chat_renderer(tokenizer: Any, *, is_whole: bool = False) -> Render | None:
    """Return a Render by the tokenizer's chat template, or None where it has none.

    is_whole: of dialogues as they end, with nothing for an answer to start from.
    The Render raises ValueError where the template refuses the messages (for example roles
    that do not alternate).
    """
    if getattr(tokenizer, "chat_template", None) is None:
        return None
    template_error: type[Exception] = importlib.import_module("jinja2").TemplateError

    def render(messages: list[Message]) -> str:
        try:
            text = tokenizer.apply_chat_template(
                [_read(message) for message in messages],
                tokenize=False,
                add_generation_prompt=not is_whole,
            )
        except template_error as error:
            raise ValueError(f"the chat template refuses the messages: {error}") from error
        return str(text)

    return render


def render_hh(messages: Sequence[Message]) -> str:
    """Return messages as HH-RLHF text that ends in the mark of the assistant's turn."""
    return render_hh_whole(messages) + ASSISTANT_MARK


def render_hh_whole(messages: Sequence[Message]) -> str:
    """Return messages as HH-RLHF text that ends with the last of them."""
    return "".join(f"\n\n{HH_NAMES[m['role']]}: {m['content']}" for m in messages)


def dialogue_of(prompt: str, answer: str) -> list[Message]:
    """The messages of a prompt with its answer: of HH-RLHF text its turns, those in the answer too.

    Any other prompt is one message of the user's.
    """
    before, *parts = _TURN.split(prompt + answer)
    if not prompt.endswith(ASSISTANT_MARK) or before.strip():
        return [
            {"role": "user", "content": prompt},
            {"role": "assistant", "content": answer.strip()},
        ]
    return [
        {"role": _ROLES[name], "content": text.strip()}
        for name, text in zip(parts[::2], parts[1::2], strict=True)
    ]


def messages_of(row: Mapping[str, Any], response: str) -> list[Message]:
    """The dialogue of a row's prompt and a response: the row's messages where it has them, else the
    turns of its HH-RLHF text; the response is one message, whatever marks of turns it holds."""
    before = row.get("messages") or dialogue_of(row["prompt"], "x")[:-1]
    return [*before, {"role": "assistant", "content": response.strip()}]


def split_dialogue(
    prompt: str, chosen: str, rejected: str
) -> tuple[list[Message], list[Message], list[Message]]:
    """The messages of a pair's texts: of HH-RLHF text its turns, else one of the user's and the
    answers as they are.

    So, too, where the turns could not be read again: an empty one, or an answer that does not end
    with the assistant's.
    """
    before = dialogue_of(prompt, "x")[:-1]
    count = len(before)
    first, second = dialogue_of(prompt, chosen), dialogue_of(prompt, rejected)
    is_readable = prompt.endswith(ASSISTANT_MARK) and all(
        turns[:count] == before
        and [turns[place]["role"] for place in (count - 1, -1)] == ["user", "assistant"]
        and all(turn["content"] for turn in turns)
        for turns in (first, second)
    )
    if is_readable:
        return before, first[count:], second[count:]
    first, second = [[{"role": "assistant", "content": text}] for text in (chosen, rejected)]
    return [{"role": "user", "content": prompt}], first, second


def text_problem(field: str, value: Any) -> Problem | None:
    """Return what is wrong with a text field: absent, not text, only white space, not UTF-8."""
    if value is None:
        return Problem("missing_field", field, "nothing", "non-empty text")
    if not isinstance(value, str):
        return Problem("wrong_type", field, typed(value), "text (str)")
    if not value.strip():
        return Problem("empty_field", field, shorten(value), "non-empty text")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        # JSON can spell half of a surrogate pair; no tokenizer and no file can take it
        place = f"{value[error.start]!r} at character {error.start}"
        return Problem("invalid_utf8", field, place, "text that UTF-8 can hold")
    return None


def check_messages(field: str, value: Any, problems: list[Problem]) -> list[Message] | None:
    """Return the messages as text, or None with the problems added.

    Messages may be written as ShareGPT does, with `from` and `value`; one alone need be no list.
    """
    value = [value] if isinstance(value, dict) else value
    if not isinstance(value, list) or not value:
        reason = "empty_field" if isinstance(value, list) else "wrong_type"
        problems.append(Problem(reason, field, shorten(value), "a list of messages"))
        return None
    before = len(problems)
    messages: list[Message] = []
    for index, message in enumerate(value):
        if (plain := _plain(message)) is not None:
            messages.append(plain)
        else:
            messages += _message(f"{field}[{index}]", message, problems)
    return messages if len(problems) == before else None


def roles_of(messages: Sequence[Message]) -> str:
    """Whose turns these are, for messages to people."""
    return f"turns {shorten([message['role'] for message in messages])}"


def template_problem(field: str, error: ValueError) -> Problem:
    """What is wrong where a chat template refuses messages."""
    allowed = "messages that the tokenizer's chat template takes"
    return Problem("not_renderable", field, str(error)[:200], allowed)


def _plain(message: Any) -> Message | None:
    """A message of nothing but text that is right, which nearly all are."""
    if type(message) is not dict or len(message) > 2:
        return None
    role, content = message.get("role"), message.get("content")
    if type(role) is not str or role not in HH_NAMES or type(content) is not str:
        return None
    return {"role": role, "content": content} if text_problem("", content) is None else None


def _message(place: str, message: Any, problems: list[Problem]) -> list[Message]:
    """A message with its parts and calls as text; empty where it is none; problems are added."""
    if not isinstance(message, dict):
        allowed = "an object with role and content"
        problems.append(Problem("wrong_type", place, shorten(message), allowed))
        return []
    names = ("from", "value") if "role" not in message and "from" in message else KEYS
    role, content = (message.get(name) for name in names)
    if names != KEYS and isinstance(role, str):
        role = _SPEAKERS.get(role, role)
    problem = None
    if isinstance(content, list):
        content, problem = _joined(f"{place}.{names[1]}", content)
    rest = {k: value for k, value in message.items() if value is not None and k not in names}
    original = {"role": role, "content": content or "", **rest}
    if calls := message.get("tool_calls"):
        texts = [] if content in (None, "") else [str(content)]
        content = "\n".join([*texts, *_calls(calls)])
    problem = problem or text_problem(f"{place}.{names[1]}", content)
    if problem is not None:
        problems.append(problem)
    if not isinstance(role, str) or role not in HH_NAMES:
        allowed = " | ".join(HH_NAMES)
        problems.append(Problem("out_of_range", f"{place}.{names[0]}", shorten(role), allowed))
    plain = {"role": str(role), "content": str(content)}
    return [plain if original == plain else {**plain, GIVEN: original}]


def _read(message: Message) -> dict[str, str]:
    """What of a message is read: role and content."""
    return {"role": message["role"], "content": message["content"]}


def say_the_same(message: Message, other: Message) -> bool:
    """Whether two messages are read alike."""
    return _read(message) == _read(other)


def _joined(place: str, parts: list[Any]) -> tuple[str, Problem | None]:
    """The text of content in parts, and what is wrong where a part is none of text."""
    texts = [
        part.get("text", part.get("value")) if isinstance(part, dict) else part for part in parts
    ]
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            shown = shorten(parts[index])
            return "", Problem("wrong_type", f"{place}[{index}]", shown, "a part of type text")
    return "\n".join(map(str, texts)), None


def _calls(calls: Any) -> list[str]:
    """An assistant's calls of tools as text, each in the tags that Hermes and Qwen write."""
    texts = []
    for call in calls if isinstance(calls, list) else [calls]:
        function = call.get("function", call) if isinstance(call, dict) else call
        text = json.dumps(function, ensure_ascii=False, default=str)
        texts.append(f"<tool_call>\n{text}\n</tool_call>")
    return texts


def split_common_messages(
    chosen: list[Message], rejected: list[Message]
) -> tuple[list[Message], list[Message], list[Message]]:
    """Split two whole dialogues into (common start, rest of chosen, rest of rejected).

    The common start never takes the last message of either, and ends before an assistant's turn
    where it can: two equal answers stay answers.
    """
    shortest = min(len(chosen), len(rejected)) - 1
    same = next((i for i in range(shortest) if not say_the_same(chosen[i], rejected[i])), shortest)
    while same > 0 and chosen[same - 1]["role"] == "assistant":
        same -= 1
    return chosen[:same], chosen[same:], rejected[same:]


def _common_length(first: str, second: str) -> int:
    """Number of characters two texts have in common at their beginning."""
    for index, (ours, theirs) in enumerate(zip(first, second, strict=False)):
        if ours != theirs:
            return index
    return min(len(first), len(second))


# where an assistant's turn starts in texts that chat templates and instruction sets write
_TURN_MARK: Final = re.compile(
    r"<\|im_start\|>assistant\s*|<\|start_header_id\|>assistant<\|end_header_id\|>\s*"
    r"|<\|assistant\|>\s*|<start_of_turn>model\s*|\[/INST\]|###\s*(?:Response|Assistant)\s*:"
    r"|(?:^|\n)(?:Assistant|ASSISTANT|AI|Bot|Answer|A|TL;DR)\s*:"
)


def split_plain_text(chosen: str, rejected: str) -> tuple[str, str, str] | None:
    """Split two texts without HH's marks behind the prompt that both start with.

    It ends behind the last mark of an assistant's turn that both have, else (as TRL's
    `extract_prompt` ends it) before the white space in front of the first word that differs.
    Returns None where they share no word.
    """
    same = _common_length(chosen, rejected)
    marks = [mark.end() for mark in _TURN_MARK.finditer(chosen) if mark.end() <= same]
    end = marks[-1] if marks else len(re.sub(r"\S*\Z", "", chosen[:same]).rstrip())
    sides = chosen[end:], rejected[end:]
    if not chosen[:end].strip() or not all(side.strip() for side in sides):
        return None
    return chosen[:end], *sides


def split_common_text(chosen: str, rejected: str) -> tuple[str, str, str] | None:
    """Split two whole HH dialogues after the last assistant's mark that they share.

    Returns (prompt with the mark, chosen answer, rejected answer), or None where they share no
    mark with a turn before it.
    """
    same = _common_length(chosen, rejected)
    at = chosen.rfind(ASSISTANT_MARK, 0, same)
    if at < 0 or not chosen[:at].removeprefix(HUMAN_MARK).strip():
        return None
    end = at + len(ASSISTANT_MARK)
    return chosen[:end], chosen[end:], rejected[end:]
