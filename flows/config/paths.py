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


def merged_changes(*changes: Mapping[str, Any]) -> dict[str, Any]:
    """Several changes as one; later ones win."""
    result: dict[str, Any] = {}
    for values in changes:
        for name, new in values.items():
            old = result.get(name)
            if isinstance(old, dict) and isinstance(new, dict):
                new = merged_changes(old, new)
            result[name] = new
    return result


def fields_of(model: type[BaseModel], above: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Every field of a configuration and of all sections in it, by path."""
    for name, field in model.model_fields.items():
        yield f"{above}{name}", field
        for section in sections_in(field.annotation):
            yield from fields_of(section, f"{above}{name}.")


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
    places = {problem["loc"] for problem in problems}
    return "\n".join(
        _line(problem, model)
        for problem in problems
        # Too short only because its items were refused.
        if problem["type"] != "too_short"
        or not any(place[:-1] == problem["loc"] for place in places if place)
    )


def explained(error: ValidationError, model: type[BaseModel]) -> PydanticCustomError:
    """All mistakes as one, for a validator to raise."""
    return PydanticCustomError(EXPLAINED, "{text}", {"text": explain(error, model)})


def _line(problem: ErrorDetails, model: type[BaseModel]) -> str:
    path, kind, found = ".".join(map(str, problem["loc"])), problem["type"], problem["input"]
    message = problem["msg"].removeprefix("Value error, ")
    for theirs, ours in WORDS.items():
        message = re.sub(theirs, ours, message)
    if kind == EXPLAINED:
        return message
    if kind == "extra_forbidden":
        return _unknown(path, _fields_at(model, problem["loc"][:-1]), model)
    if found is None and ("number" in message or "integer" in message):
        message += " (infinity and NaN reach a run as null)"
    # What several fields together show says itself what was found.
    is_told = kind == "value_error" and (isinstance(found, Mapping) or "found" in message)
    if kind != MAY_BE_SECRET and not is_told:
        message += f"; found {short(found)}"
    if kind == "literal_error":
        allowed = re.findall("'([^']*)'", problem["ctx"]["expected"])
        near = difflib.get_close_matches(str(found), allowed, n=1)
        message += "".join(f"; did you mean {each!r}?" for each in near)
    return f"{path}: {message}" if path else message


def short(value: object) -> str:
    """What was found as one line, cut in the middle."""
    text = "null" if value is None else repr(value)
    if len(text) <= MAX_CHARACTERS:
        return text
    return f"{text[: MAX_CHARACTERS // 2]} ... {text[-MAX_CHARACTERS // 4 :]}"


def _fields_at(model: Any, path: tuple[int | str, ...]) -> list[str]:
    for part in path:
        if isinstance(part, int):  # one of several
            continue
        field = model.model_fields.get(part)
        sections = [] if field is None else sections_in(field.annotation)
        if not sections:
            return []
        model = sections[0]
    return list(model.model_fields)


def _unknown(path: str, known: list[str], model: type[BaseModel]) -> str:
    name = path.rpartition(".")[2]
    near = difflib.get_close_matches(name, known, n=1)
    near = near or [each for each, _ in fields_of(model) if each.rpartition(".")[2] == name]
    if near:
        names = " or ".join(repr(each) for each in near[:MAX_HINTS])
        return f"{path}: unknown field {name!r}; did you mean {names}?"
    return f"{path}: unknown field {name!r}. Allowed: {', '.join(known) or 'none'}"
