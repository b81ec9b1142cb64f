"""Columns of people's files: what their names say, how cells of text are read, and a row on its way
into Trimtab's columns."""

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any, Final

from trimtab.models.data.problems import Problem, typed

Row = dict[str, Any]
MAX_VALUES: Final = 1000
"""Of a list in a column that is read: turns, answers, opinions."""


@dataclass(slots=True)
class Mapped:
    """A row in Trimtab's columns.

    names: what the row itself calls these columns, for messages. pairs: of `responses`, which is
    better than which. problems: what the preset could not read. columns: what the row calls the
    preset's columns, where it calls them otherwise. reads: columns that were read beside the
    preset's. code: the number by which the better answer was named. is_told: whether it did.
    """

    values: Row
    names: dict[str, str] = field(default_factory=dict)
    pairs: tuple[tuple[int, int], ...] | None = None
    problems: list[Problem] = field(default_factory=list)
    columns: Mapping[str, str] = field(default_factory=dict)
    reads: set[str] = field(default_factory=set)
    code: float | None = None
    is_told: bool = False

    def refuse(self, reason: str, column: str, value: Any, allowed: str) -> None:
        """Add a problem; a value is shown with its type."""
        if value is None:
            self.problems.append(Problem("missing_field", column, "nothing", allowed))
        else:
            self.problems.append(Problem(reason, column, typed(value), allowed))


def number_of(value: Any) -> Any:
    """A number from text that holds one (as in CSV), else the value as it is."""
    for kind in (int, float) if isinstance(value, str) else ():
        try:
            return kind(value)
        except ValueError:
            continue
    return value


def list_of(value: Any) -> Any:
    """A list or an object from text that is JSON of one, else the value as it is.

    A list of more than MAX_VALUES stays text, too.
    """
    if not isinstance(value, str) or not value.lstrip().startswith(("[", "{")):
        return value
    try:
        values = json.loads(value)
    except (ValueError, RecursionError):
        return value
    return values if len(values) <= MAX_VALUES else value


def list_of_messages(value: Any) -> Any:
    """Messages from their JSON text, else the value as it is: an answer may be JSON itself."""
    values = list_of(value)
    messages = values if isinstance(values, list) else [values]
    return values if messages and all(map(is_message, messages)) else value


def is_message(value: Any) -> bool:
    """Whether this is an object with the keys of a message, as OpenAI or as ShareGPT has them."""
    return isinstance(value, dict) and ("role" in value or {"from", "value"} <= value.keys())


_WORD: Final = re.compile(r"[^\W\d_a-z]+(?![a-z])|[^\W\d_a-z]?[^\W\d_A-Z]+|\d+")
_LONGEST_NAME: Final = 100
HIGHER: Final = frozenset(
    {"score", "scores", "rating", "ratings", "reward", "rewards", "grade", "grades", "points",
     "quality", "utility", "likes", "upvotes", "votes"}
)  # fmt: skip
"""Words of columns whose larger values are of better answers."""
RANKINGS: Final = frozenset({"ranking", "rankings"})
"""Words of columns of ranks, or of the answers' numbers in their order."""
LOWER: Final = RANKINGS | {"rank", "ranks"}
"""Words of columns whose smaller values are of better answers."""
CHOICES: Final = frozenset(
    {"winner", "winning", "label", "labels", "preference", "preferences", "preferred", "choice",
     "better", "best", "verdict", "comparison", "selected", "selection", "decision", "vote"}
)  # fmt: skip
"""Words of columns that say which answer is the better one."""
_UNCLEAR: Final = frozenset(
    {"gold", "golden", "correct", "ideal", "worst", "worse", "chosen", "rejected", "order",
     "ordering", "pairs", "pair", "margin", "margins", "loss", "losses", "cost", "costs", "error",
     "errors", "penalty", "penalties", "toxicity", "harm", "harmfulness", "severity", "risk",
     "perplexity", "distance", "elo", "wins"}
)  # fmt: skip
ASKING: Final = frozenset(
    {"prompt", "question", "instruction", "query", "input", "context", "history", "post", "task",
     "conversation", "conversations", "dialogue", "messages"}
)  # fmt: skip
"""Words of columns that may hold the prompt."""
_COUNTS: Final = frozenset(
    {"length", "lengths", "len", "token", "tokens", "characters", "words", "num", "count", "counts",
     "id", "ids", "idx", "seed", "seeds", "temperature", "temperatures", "time", "latency", "year"}
)  # fmt: skip
_DIFFERENCES: Final = frozenset({"difference", "diff", "delta", "gap"})


def words(name: object) -> tuple[str, ...]:
    """ "responseA_score2" as ("response", "a", "score", "2")."""
    text = str(name)
    return _words(text) if len(text) <= _LONGEST_NAME else _words.__wrapped__(text)


@lru_cache(4096)  # every row asks for the same columns
def _words(text: str) -> tuple[str, ...]:
    return tuple(word.lower() for word in _WORD.findall(text))


def direction(name: str) -> int | None:
    """1: larger values are of better answers; -1: smaller ones; 0: it could order them; None."""
    parts = set(words(name))
    if parts & _UNCLEAR:
        return 0
    if parts & LOWER:
        return -1
    if parts & HIGHER:
        return 1
    return 0 if parts & CHOICES else None


def is_count(name: str) -> bool:
    """Whether numbers of this column are measures of answers that say nothing of their worth."""
    return bool(_COUNTS & set(words(name)))


def is_number(value: Any) -> bool:
    """Whether this is a number that can be compared: no truth value and not NaN."""
    return isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value)


Compare = Callable[[Row], float | None]
"""By how much a row's own numbers prefer its better answer; None where they do not say."""


def own_scores(columns: tuple[str, ...], better: str, worse: str) -> list[Compare]:
    """What in a row's other columns compares its answers, which stand in `better` and `worse`.

    Scores of either answer, told by the word in which the answers' columns differ ("chosen_score",
    "rejected_score"); beside `chosen` and `rejected` scores of both in one column, a margin, and
    what says which of them is better.
    """
    names = {words(name): name for name in map(str, columns)}
    is_labelled = (better, worse) == ("chosen", "rejected")
    ours, theirs = words(better), words(worse)
    sides = [pair for pair in zip(ours, theirs, strict=False) if pair[0] != pair[1]]
    compares: list[Compare] = []
    for parts, name in names.items():
        sign = _sign(parts, {ours, theirs})
        if len(ours) == len(theirs) and len(sides) == 1 and sides[0][0] in parts and sign:
            other = names.get(tuple(sides[0][1] if part == sides[0][0] else part for part in parts))
            if other is not None:
                compares.append(partial(_compare_two, name, other, sign))
        elif is_labelled and _is_margin(set(parts)):
            compares.append(partial(_compare_margin, name))
        elif is_labelled and CHOICES & set(parts):
            compares.append(partial(_compare_choice, name))
        elif is_labelled and sign and not {"chosen", "rejected"} & set(parts):
            compares.append(partial(_compare_in_one, name, sign))
    return compares


def _is_margin(parts: set[str]) -> bool:
    return "margin" in parts or bool(_DIFFERENCES & parts and (HIGHER | CHOICES) & parts)


def _sign(parts: Sequence[str], answers: set[tuple[str, ...]]) -> int:
    """1 or -1 where a column holds scores or ranks of answers, 0 where not, or where votes."""
    if tuple(parts) in answers or "votes" in parts:
        return 0
    return -1 if LOWER & set(parts) else int(bool(HIGHER & set(parts)))


def _compare_two(first: str, second: str, sign: int, row: Row) -> float | None:
    return _difference(row.get(first), row.get(second), sign)


def _compare_in_one(column: str, sign: int, row: Row) -> float | None:
    values = list_of(row.get(column))
    if isinstance(values, dict):
        values = [values.get("chosen"), values.get("rejected")]
    if not isinstance(values, list) or len(values) != 2:
        return None
    return _difference(values[0], values[1], sign)


def _compare_choice(column: str, row: Row) -> float | None:
    value = row.get(column)
    if isinstance(value, str):
        for name, preference in (("chosen", 1.0), ("rejected", -1.0)):
            if value == row.get(name) or words(value) == (name,):
                return preference
    return None


def _compare_margin(column: str, row: Row) -> float | None:
    return _difference(row.get(column), 0, 1)


def _difference(first: Any, second: Any, sign: int) -> float | None:
    first, second = number_of(first), number_of(second)
    if not is_number(first) or not is_number(second):
        return None
    return float(sign) * ((first > second) - (first < second))


def is_against(row: Row, compares: Iterable[Compare]) -> bool | None:
    """Whether any of a row's own numbers prefers the other answer; None where none says."""
    preferences = [value for compare in compares if (value := compare(row)) is not None]
    return any(value < 0 for value in preferences) if preferences else None
