"""From one row in Trimtab's own columns to a prompt and its answers, best first.

Rows in other columns are brought into these first (`trimtab.models.data.presets`). The format is
told row by row from the fields and their types:
- hh: `chosen`, `rejected` are whole dialogues in HH-RLHF text [Bai et al. 2022].
- implicit: `chosen`, `rejected` are texts without HH's marks that start with the same prompt.
- explicit: `prompt`, `chosen`, `rejected` are texts, taken as they are.
- messages: `chosen`, `rejected` are message lists, whole or (with `prompt`, a list or a text)
  only the answer. Two dialogues that part before the last turn share what comes before.
- kwise: `prompt` (text or messages) and `responses`, 2 to 9 of them, best first.
Optional everywhere: `id`, `category` and `group` (empty: none), `tie`, and who labelled the row
(ANNOTATORS; other values than text and whole numbers are left alone). For pairs: `rating` 1 to 4,
and `votes_chosen`, `votes_rejected`, `votes_equal`, or one `votes` object as records write it; and
`opinions`, a list of {annotator, prefers: chosen | rejected | equal}, which are the votes where no
others are given.
Nothing here raises for a bad row: all problems are returned with the parsed row.
"""

from dataclasses import dataclass, field
from itertools import combinations
from typing import Any, Final

from trimtab.models.data.columns import ASKING, is_message, words
from trimtab.models.data.messages import (
    ASSISTANT_MARK,
    MARKS,
    Message,
    Render,
    check_messages,
    render_hh,
    roles_of,
    say_the_same,
    split_common_messages,
    split_common_text,
    split_plain_text,
    template_problem,
    text_problem,
)
from trimtab.models.data.problems import Problem, shorten, typed
from trimtab.models.data.records import Opinion, Votes

MIN_RATING, MAX_RATING = 1, 4
VOTE_FIELDS: Final = ("votes_chosen", "votes_rejected", "votes_equal")
MIN_RANKED, MAX_RANKED = 2, 9
PREFERS: Final = ("chosen", "rejected", "equal")
ANNOTATORS: Final = ("annotator", "annotator_id", "worker_id")
PAIR_FIELDS: Final = ("rating", "votes", "opinions", *VOTE_FIELDS)
ALLOWED_FORMATS: Final = "chosen + rejected, prompt + chosen + rejected, or prompt + responses"


@dataclass(slots=True)
class ParsedRow:
    """A row's content. answers is empty, and values are None, where problems says why.

    pairs: which answer is better than which, by their positions; None: each than all behind it.
    messages: where it came as messages, those of the prompt, then those of each answer.
    lines, rows: of the rows it was made of, where these are several: their places in the file, and
    among all rows of the source, first the row of the better answer. is_waiting: it is half of a
    pair whose other half has not been read. ignored: the row's columns that mean nothing here.
    """

    format: str = "unknown"
    id: str | None = None
    category: str | None = None
    group: str | None = None
    rating: int | None = None
    votes: Votes | None = None
    opinions: tuple[Opinion, ...] | None = None
    is_tie: bool = False
    prompt: str = ""
    answers: tuple[str, ...] = ()
    answer_fields: tuple[str, ...] = ()
    messages: tuple[list[Message], ...] = ()
    is_ranking: bool = False
    pairs: tuple[tuple[int, int], ...] | None = None
    lines: tuple[int, ...] = ()
    rows: tuple[int, ...] = ()
    is_waiting: bool = False
    ignored: tuple[str, ...] = ()
    is_against_scores: bool | None = None
    problems: list[Problem] = field(default_factory=list)

    def refuse(self, reason: str, column: str | None, value: str, allowed: str) -> None:
        """Add a problem."""
        self.problems.append(Problem(reason, column, value, allowed))

    @property
    def better_worse(self) -> list[tuple[int, int]]:
        """The pairs by the positions of their answers; none where there are problems."""
        if self.pairs is not None:
            return list(self.pairs) if self.answers else []
        if len(self.answers) == 2:
            return [(0, 1)]
        return list(combinations(range(len(self.answers)), 2))


def parse_row(
    row: Any, render: Render | None, pairs: tuple[tuple[int, int], ...] | None = None
) -> ParsedRow:
    """Parse one row. render: for message lists (None: HH-RLHF text).

    pairs: of `responses` that are no ranking, which is better than which.
    """
    parsed = ParsedRow(pairs=pairs)
    if not isinstance(row, dict):
        parsed.refuse("not_an_object", None, typed(row), "an object with fields")
        return parsed
    parse_metadata(row, parsed)
    is_ranking = row.get("responses") is not None
    is_pair = row.get("chosen") is not None or row.get("rejected") is not None
    if is_ranking == is_pair:
        both = "chosen or rejected beside responses"
        shown = both if is_pair else f"fields {shorten(list(row))}"
        parsed.refuse("unknown_format", None, shown, ALLOWED_FORMATS)
    elif is_ranking:
        _parse_ranking(row, parsed, render)
    else:
        _parse_pair(row, parsed, render)
    _check_answers(parsed)
    return parsed


def _parse_pair(row: dict[str, Any], parsed: ParsedRow, render: Render | None) -> None:
    prompt, chosen, rejected = row.get("prompt"), row.get("chosen"), row.get("rejected")
    parsed.answer_fields = ("chosen", "rejected")
    if any(isinstance(value, list | dict) for value in (prompt, chosen, rejected)):
        parsed.format = "messages"
        _parse_message_pair(prompt, chosen, rejected, parsed, render)
        return
    parsed.format = "hh" if prompt is None else "explicit"
    problems = [text_problem("chosen", chosen), text_problem("rejected", rejected)]
    if prompt is not None:
        problems.append(text_problem("prompt", prompt))
    parsed.problems += filter(None, problems)
    if not any(problems):
        _parse_text_pair(prompt, str(chosen), str(rejected), parsed, row)


def _parse_text_pair(
    prompt: str | None, chosen: str, rejected: str, parsed: ParsedRow, row: dict[str, Any]
) -> None:
    if prompt is not None:
        # some copies of HH-RLHF keep whole dialogues beside the prompt: not to be read twice
        is_repeated = chosen.startswith(prompt) and rejected.startswith(prompt)
        if is_repeated and prompt.endswith(ASSISTANT_MARK):
            chosen, rejected = chosen[len(prompt) :], rejected[len(prompt) :]
        parsed.prompt, parsed.answers = prompt, (chosen, rejected)
        return
    split = split_common_text(chosen, rejected)
    has_marks = split is None and any(mark in text for mark in MARKS for text in (chosen, rejected))
    has_prompt = any(ASKING & set(words(name)) for name in row)  # in a column that is not read
    if split is None and not has_marks and not has_prompt:
        parsed.format, split = "implicit", split_plain_text(chosen, rejected)
    if split is None:
        texts = f"chosen {shorten(chosen[:50])}, rejected {shorten(rejected[:50])}"
        allowed = (
            "a prompt in a column of its own, or texts that start with one and the same, up to "
            f"a common {ASSISTANT_MARK!r} where they have turns"
        )
        parsed.refuse("no_common_prompt", None, texts, allowed)
        return
    parsed.prompt, *answers = split
    parsed.answers = tuple(answers)


def _parse_message_pair(
    prompt: Any, chosen: Any, rejected: Any, parsed: ParsedRow, render: Render | None
) -> None:
    start = None if prompt is None else _prompt_messages(prompt, parsed)
    first = _answer_messages("chosen", chosen, prompt is None, parsed)
    second = _answer_messages("rejected", rejected, prompt is None, parsed)
    if first is None or second is None or (prompt is not None and start is None):
        return
    if start is None or (isinstance(prompt, str) and min(len(first), len(second)) > 1):
        start, first, second = split_common_messages(first, second)
        if prompt is not None and prompt.strip() not in {m["content"].strip() for m in start}:
            allowed = "a turn of the dialogue that chosen and rejected share"
            parsed.refuse("no_common_prompt", "prompt", shorten(prompt), allowed)
            return
    _finish_messages(start, [first, second], parsed, render)


def _parse_ranking(row: dict[str, Any], parsed: ParsedRow, render: Render | None) -> None:
    parsed.format, parsed.is_ranking = "kwise", True
    for name in PAIR_FIELDS:
        if row.get(name) is not None:
            allowed = "nothing: it belongs to one pair, and this row ranks several answers"
            parsed.refuse("misplaced_field", name, shorten(row[name]), allowed)
    prompt, responses = row.get("prompt"), row["responses"]
    allowed = f"a list of {MIN_RANKED} to {MAX_RANKED} answers, best first"
    if not isinstance(responses, list):
        parsed.refuse("wrong_type", "responses", typed(responses), allowed)
        responses = []
    elif parsed.pairs is None and not MIN_RANKED <= len(responses) <= MAX_RANKED:
        parsed.refuse("out_of_range", "responses", f"{len(responses)} answers", allowed)
    parsed.answer_fields = tuple(f"responses[{i}]" for i in range(len(responses)))
    start = _prompt_messages(prompt, parsed)
    answers = [
        _answer_messages(name, response, False, parsed)
        for name, response in zip(parsed.answer_fields, responses, strict=True)
    ]
    sides = [answer for answer in answers if answer is not None]
    if start is None or not sides or len(sides) < len(answers):
        return
    if isinstance(prompt, str) and all(isinstance(response, str) for response in responses):
        parsed.prompt, parsed.answers = prompt, tuple(responses)
    else:
        _finish_messages(start, sides, parsed, render)


def _prompt_messages(prompt: Any, parsed: ParsedRow) -> list[Message] | None:
    if isinstance(prompt, list | dict):
        return check_messages("prompt", prompt, parsed.problems)
    problem = text_problem("prompt", prompt)
    if problem is not None:
        parsed.problems.append(problem)
        return None
    return [{"role": "user", "content": prompt}]


def _answer_messages(
    name: str, value: Any, is_whole: bool, parsed: ParsedRow
) -> list[Message] | None:
    """Return an answer's messages; text is one answer, unless whole dialogues are wanted."""
    if isinstance(value, list) or is_message(value):
        return check_messages(name, value, parsed.problems)
    problem = text_problem(name, value)
    if problem is None and is_whole:
        allowed = "a list of messages, as the other answer has, or a prompt beside it"
        problem = Problem("wrong_type", name, shorten(value), allowed)
    if problem is not None:
        parsed.problems.append(problem)
        return None
    return [{"role": "assistant", "content": value}]


def _finish_messages(
    start: list[Message], sides: list[list[Message]], parsed: ParsedRow, render: Render | None
) -> None:
    """Check the order of turns, then render the prompt and take the answers' contents."""
    # lists beside a prompt may repeat it
    count = len(start)
    sides = [
        side[count:] if len(side) >= count and all(map(say_the_same, side, start)) else side
        for side in sides
    ]
    if not start:
        roles = f"chosen {roles_of(sides[0])}, rejected {roles_of(sides[1])}"
        allowed = "dialogues that share all turns but the last"
        parsed.refuse("no_common_prompt", None, roles, allowed)
        return
    before = len(parsed.problems)
    if start[-1]["role"] not in ("user", "tool"):
        allowed = "a last turn of the user, or of a tool"
        parsed.refuse("bad_turns", "prompt", roles_of(start), allowed)
    for name, side in zip(parsed.answer_fields, sides, strict=True):
        if not side or {side[0]["role"], side[-1]["role"]} != {"assistant"}:
            allowed = "turns after the prompt, the first and the last of the assistant"
            parsed.refuse("bad_turns", name, roles_of(side), allowed)
    if len(parsed.problems) > before:
        return
    try:
        prompt = render_hh(start) if render is None else render(start)
        parsed.answers = tuple(_answer_text(start, side, prompt, render) for side in sides)
        parsed.prompt, parsed.messages = prompt, (start, *sides)
    except ValueError as error:
        parsed.problems.append(template_problem("prompt", error))


def _answer_text(
    start: list[Message], side: list[Message], prompt: str, render: Render | None
) -> str:
    """An answer's text behind the prompt; of several turns all, up to where the last one ends."""
    last = (" " if render is None else "") + side[-1]["content"]
    if len(side) == 1:
        return last
    before = [*start, *side[:-1]]
    text = render_hh(before) if render is None else render(before)
    if not text.startswith(prompt):
        raise ValueError("the chat template changes earlier turns when further ones follow")
    return text[len(prompt) :] + last


def _check_answers(parsed: ParsedRow) -> None:
    """Add what is wrong between the answers: an empty one, or two that say the same."""
    seen: dict[str, str] = {}
    for name, answer in zip(parsed.answer_fields, parsed.answers, strict=False):
        problem = text_problem(name, answer)
        if problem is None and answer.strip() in seen:
            allowed = f"an answer other than {seen[answer.strip()]}"
            problem = Problem("identical_responses", name, shorten(answer), allowed)
        if problem is not None:
            parsed.problems.append(problem)
        seen.setdefault(answer.strip(), name)


def parse_metadata(row: dict[str, Any], parsed: ParsedRow) -> None:
    """Read id, category, group, rating, votes and tie into `parsed`, problems included."""
    identity = row.get("id")
    parsed.id = _optional_text("id", str(identity) if type(identity) is int else identity, parsed)
    parsed.category = _optional_text("category", row.get("category"), parsed)
    parsed.group = _optional_text("group", row.get("group"), parsed)
    parsed.rating = _optional_int("rating", row.get("rating"), MIN_RATING, MAX_RATING, parsed)
    parsed.votes = _parse_votes(row, parsed)
    if row.get("opinions") is not None:
        _parse_opinions(row["opinions"], parsed)
    elif (annotator := next(filter(_is_name, map(row.get, ANNOTATORS)), None)) is not None:
        parsed.opinions = (Opinion(str(annotator), "chosen"),)
    tie = row.get("tie")
    if tie is not None and not isinstance(tie, bool):
        parsed.refuse("wrong_type", "tie", shorten(tie), "true, false or null")
    parsed.is_tie = tie is True


def _is_name(value: Any) -> bool:
    """Whether this says who labelled a row: text, or a whole number."""
    return type(value) is int or (isinstance(value, str) and text_problem("", value) is None)


def _optional_text(name: str, value: Any, parsed: ParsedRow) -> str | None:
    if value == "" and name != "id":
        return None
    problem = None if value is None else text_problem(name, value)
    if problem is None:
        return value
    parsed.problems.append(problem)
    return None


def _optional_int(
    name: str, value: Any, low: int, high: int | None, parsed: ParsedRow
) -> int | None:
    if value is None:
        return None
    allowed = f"a whole number from {low} to {high}" if high else f"a whole number >= {low}"
    if type(value) is not int:
        parsed.refuse("wrong_type", name, typed(value), allowed)
    elif value < low or (high is not None and value > high):
        parsed.refuse("out_of_range", name, shorten(value), allowed)
    else:
        return value
    return None


def _parse_votes(row: dict[str, Any], parsed: ParsedRow) -> Votes | None:
    """Return the votes from three fields or one object; None where absent or wrong."""
    names: tuple[str, ...] = VOTE_FIELDS
    values = [row.get(name) for name in VOTE_FIELDS]
    nested = row.get("votes")
    if nested is not None:
        names = tuple(f"votes.{name}" for name in PREFERS)
        if not isinstance(nested, dict) or any(value is not None for value in values):
            allowed = f"one object with chosen, rejected, equal, or the fields {VOTE_FIELDS}"
            parsed.refuse("wrong_type", "votes", shorten(nested), allowed)
            return None
        values = [nested.get(name) for name in PREFERS]
    elif all(value is None for value in values):
        return None
    before = len(parsed.problems)
    for name, value in zip(names[:2], values[:2], strict=True):
        if value is None:
            parsed.refuse("missing_field", name, "nothing", "a count, as there are other votes")
    counts = [_optional_int(n, v, 0, None, parsed) or 0 for n, v in zip(names, values, strict=True)]
    if len(parsed.problems) > before:
        return None
    if sum(counts) == 0:
        allowed = "at least one vote, or no vote fields"
        parsed.refuse("out_of_range", names[0], "no votes at all", allowed)
        return None
    return Votes(*counts)


def _parse_opinions(value: Any, parsed: ParsedRow) -> None:
    """Read who voted how; the votes follow from it where there are no others."""
    rows = value if isinstance(value, list) else [value]
    opinions = [
        Opinion(str(row["annotator"]), row["prefers"])
        for row in rows
        if isinstance(row, dict)
        and isinstance(row.get("annotator"), str | int)
        and row.get("prefers") in PREFERS
    ]
    if not opinions or len(opinions) < len(rows):
        allowed = f"a list of objects with annotator (text) and prefers ({' | '.join(PREFERS)})"
        parsed.refuse("wrong_type", "opinions", shorten(value), allowed)
        return
    parsed.opinions = tuple(opinions)
    if parsed.votes is None:
        preferences = [opinion.prefers for opinion in opinions]
        parsed.votes = Votes(*map(preferences.count, PREFERS))
