"""Settings by their dotted path: in plain values, and in the models that declare them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo


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
