"""A row as parsed, and the optional fields that every format may carry beside its texts."""

from dataclasses import dataclass, field
from typing import Any, Final

from models.preferences.errors import Problem, shorten
from models.preferences.messages import text_problem
from models.records import Votes

MIN_RATING, MAX_RATING = 1, 4
VOTE_FIELDS: Final = ("votes_chosen", "votes_rejected", "votes_equal")


@dataclass(slots=True)
class ParsedRow:
    """A row's content. answers is empty, and values are None, where problems says why."""

    format: str = "unknown"
    id: str | None = None
    category: str | None = None
    group: str | None = None
    rating: int | None = None
    votes: Votes | None = None
    is_tie: bool = False
    prompt: str = ""
    answers: tuple[str, ...] = ()
    answer_fields: tuple[str, ...] = ()
    problems: list[Problem] = field(default_factory=list)


def parse_metadata(row: dict[str, Any], parsed: ParsedRow) -> None:
    """Read id, category, group, rating, votes and tie into `parsed`, problems included."""
    identity = row.get("id")
    parsed.id = _optional_text("id", str(identity) if type(identity) is int else identity, parsed)
    parsed.category = _optional_text("category", row.get("category"), parsed)
    parsed.group = _optional_text("group", row.get("group"), parsed)
    rating = _optional_int("rating", row.get("rating"), MIN_RATING, MAX_RATING, parsed)
    parsed.rating = rating
    parsed.votes = _parse_votes(row, parsed)
    tie = row.get("tie")
    if tie is not None and not isinstance(tie, bool):
        parsed.problems.append(Problem("wrong_type", "tie", shorten(tie), "true, false or null"))
    parsed.is_tie = tie is True


def _optional_text(name: str, value: Any, parsed: ParsedRow) -> str | None:
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
        found = f"{type(value).__name__} {shorten(value)}"
        parsed.problems.append(Problem("wrong_type", name, found, allowed))
    elif value < low or (high is not None and value > high):
        parsed.problems.append(Problem("out_of_range", name, shorten(value), allowed))
    else:
        return value
    return None


def _parse_votes(row: dict[str, Any], parsed: ParsedRow) -> Votes | None:
    """Return the votes from three fields or one object; None where absent or wrong."""
    names, values = VOTE_FIELDS, [row.get(name) for name in VOTE_FIELDS]
    nested = row.get("votes")
    if nested is not None:
        names = ("votes.chosen", "votes.rejected", "votes.equal")
        if not isinstance(nested, dict) or any(value is not None for value in values):
            allowed = f"one object with chosen, rejected, equal, or the fields {VOTE_FIELDS}"
            parsed.problems.append(Problem("wrong_type", "votes", shorten(nested), allowed))
            return None
        values = [nested.get(name) for name in ("chosen", "rejected", "equal")]
    elif all(value is None for value in values):
        return None
    before = len(parsed.problems)
    for name, value in zip(names[:2], values[:2], strict=True):
        if value is None:
            allowed = "a count, as there are other votes"
            parsed.problems.append(Problem("missing_field", name, "nothing", allowed))
    counts = [_optional_int(n, v, 0, None, parsed) or 0 for n, v in zip(names, values, strict=True)]
    if len(parsed.problems) > before:
        return None
    if sum(counts) == 0:
        allowed = "at least one vote, or no vote fields"
        parsed.problems.append(Problem("out_of_range", names[0], "no votes at all", allowed))
        return None
    return Votes(*counts)
