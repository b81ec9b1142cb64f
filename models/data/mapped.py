"""A row on its way into Trimtab's columns: what was read of it, and how cells of text are read."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from trimtab.models.data.problems import Problem, shorten

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

    def refuse(self, reason: str, column: str, found: Any, allowed: str) -> None:
        """Add a problem; a value is shown with its type."""
        if found is None:
            reason, shown = "missing_field", "nothing"
        else:
            shown = f"{type(found).__name__} {shorten(found)}"
        self.problems.append(Problem(reason, column, shown, allowed))


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
        found = json.loads(value)
    except (ValueError, RecursionError):
        return value
    return found if len(found) <= MAX_VALUES else value


def list_of_messages(value: Any) -> Any:
    """Messages from their JSON text, else the value as it is: an answer may be JSON itself."""
    found = list_of(value)
    messages = found if isinstance(found, list) else [found]
    return found if messages and all(map(is_message, messages)) else value


def is_message(value: Any) -> bool:
    """Whether this is an object with the keys of a message, as OpenAI or as ShareGPT has them."""
    return isinstance(value, dict) and ("role" in value or {"from", "value"} <= value.keys())
