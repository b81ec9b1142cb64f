"""Settings by their dotted path: in plain values, in the models that declare them, and in words
where one is wrong."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails, PydanticCustomError

from trimtab.models.config.base import MAY_BE_SECRET

# The type of a mistake whose message is already what `explain` says.
EXPLAINED = "explained"
# Pydantic's words for types, and those of JSON.
WORDS = {
    "valid tuple": "valid list",
    "^Tuple": "List",
    r"a valid dictionary( or (instance|object) .*)?$": "an object with fields",
}
MAX_CHARACTERS = 100
MAX_HINTS = 3


def leaves(values: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Values by path; an empty section counts as a value."""
    for name, value in values.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value


def value_at(values: Mapping[str, Any], path: str) -> tuple[str, Any]:
    """The value at a path with that path, or the nearest above it that is no section with its own.

    The value is `...` where there is none.
    """
    value: Any = values
    names = path.split(".")
    for number, name in enumerate(names, start=1):
        value = value.get(name, ...)
        if not isinstance(value, Mapping):
            return ".".join(names[:number]), value
    return path, value


def nested(path: str, value: Any) -> dict[str, Any]:
    """A value in the sections of its path."""
    name, is_deeper, rest = path.partition(".")
    return {name: nested(rest, value) if is_deeper else value}


def merge_changes(*changes: Mapping[str, Any]) -> dict[str, Any]:
    """Several changes as one; later ones win."""
    result: dict[str, Any] = {}
    for values in changes:
        for name, new in values.items():
            old = result.get(name)
            if isinstance(old, dict) and isinstance(new, dict):
                new = merge_changes(old, new)
            result[name] = new
    return result


def fields_of(
    model: type[BaseModel], above: str = "", *, of_lists: bool = True
) -> Iterator[tuple[str, FieldInfo]]:
    """Every field of a configuration and of all sections in it, by path.

    of_lists: also those of sections in a list, such as `judges`.
    """
    for name, field in model.model_fields.items():
        yield f"{above}{name}", field
        if of_lists or section_of(field) is not None:
            for section in sections_in(field.annotation):
                yield from fields_of(section, f"{above}{name}.", of_lists=of_lists)


def sections_in(kind: Any) -> list[type[BaseModel]]:
    """The models in a field's type: itself, one of several, or items."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return [kind]
    return [section for inner in get_args(kind) for section in sections_in(inner)]


def section_of(field: FieldInfo) -> type[BaseModel] | None:
    """The section that a field is, alone or beside null; None for a field that holds several."""
    kinds = get_args(field.annotation) or (field.annotation,)
    is_one = kinds[1:] in ((), (type(None),))
    sections = sections_in(kinds[0]) if is_one and not get_args(kinds[0]) else []
    return sections[0] if sections else None


def explain(error: ValidationError, model: type[BaseModel]) -> str:
    """One line a mistake: field, what was found, what is allowed, the nearest name."""
    problems = error.errors()
    refused_items = {problem["loc"][:-1] for problem in problems if problem["loc"]}
    return "\n".join(
        _line(problem, model)
        for problem in problems
        # Too short only because its items were refused.
        if problem["type"] != "too_short" or problem["loc"] not in refused_items
    )


def explained(error: ValidationError, model: type[BaseModel]) -> PydanticCustomError:
    """All mistakes as one, for a validator to raise."""
    return PydanticCustomError(EXPLAINED, "{text}", {"text": explain(error, model)})


def _line(problem: ErrorDetails, model: type[BaseModel]) -> str:
    path, kind, value = ".".join(map(str, problem["loc"])), problem["type"], problem["input"]
    message = problem["msg"].removeprefix("Value error, ")
    for theirs, ours in WORDS.items():
        message = re.sub(theirs, ours, message)
    if kind == EXPLAINED:
        return message
    if kind == "extra_forbidden":
        return _unknown(problem["loc"], model)
    if value is None and ("number" in message or "integer" in message):
        message += " (infinity and NaN reach a run as null)"
    # The message of a mistake in several fields already says what was found.
    says_value = kind == "value_error" and (isinstance(value, Mapping) or "found" in message)
    if kind != MAY_BE_SECRET and not says_value:
        message += f"; found {short(value)}"
    if kind == "literal_error":
        allowed = re.findall("'([^']*)'", problem["ctx"]["expected"])
        near = difflib.get_close_matches(str(value), allowed, n=1)
        message += "".join(f"; did you mean {name!r}?" for name in near)
    return f"{path}: {message}" if path else message


def short(value: object) -> str:
    """A value as one line, cut in the middle."""
    text = "null" if value is None else repr(value)
    if len(text) <= MAX_CHARACTERS:
        return text
    return f"{text[: MAX_CHARACTERS // 2]} ... {text[-MAX_CHARACTERS // 4 :]}"


def _unknown(place: tuple[int | str, ...], model: type[BaseModel]) -> str:
    path = ".".join(map(str, place))
    name = path.rpartition(".")[2]
    section = ".".join(part for part in place[:-1] if isinstance(part, str))
    fields = [(field, *field.rpartition(".")) for field, _ in fields_of(model)]
    known = [last for _, above, _, last in fields if above == section]
    near = difflib.get_close_matches(name, known, n=1)
    near = near or [field for field, _, _, last in fields if last == name]
    if near:
        names = " or ".join(map(repr, near[:MAX_HINTS]))
        return f"{path}: unknown field {name!r}; did you mean {names}?"
    return f"{path}: unknown field {name!r}. Allowed: {', '.join(known) or 'none'}"
