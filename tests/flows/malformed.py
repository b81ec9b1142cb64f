"""Flow parameters that are wrong in one place each, made from the schema a deployment publishes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

WRONG_TYPES = {
    "integer": ["three", 1.5, [1], {"a": 1}, True],
    "number": ["much", [0.5], {"a": 1}, False],
    "string": [3, ["a"], {"a": 1}, True],
    "boolean": ["yes", 1, [True]],
    "array": ["a", 3, {"a": 1}, True],
    "object": ["a", 3, [1], True],
}
BOUNDS = {
    "minimum": lambda bound: bound - 1,
    "exclusiveMinimum": lambda bound: bound,
    "maximum": lambda bound: bound + 1,
    "exclusiveMaximum": lambda bound: bound,
    "minItems": lambda bound: [],
}


def malformed(schema: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Path of the wrong field, and whole parameters that are right but for it."""
    yield "$", {"no_such_parameter": 1}
    for name, field in schema["properties"].items():
        for path, value in _wrong(field, schema.get("definitions", {})):
            yield ".".join([name, *path]), {name: value}


def _wrong(field: dict[str, Any], sections: dict[str, Any]) -> Iterator[tuple[list[str], Any]]:
    choices = [_resolved(choice, sections) for choice in field.get("anyOf", [field])]
    allowed = {choice.get("type") for choice in choices}
    for kind in {choice["type"] for choice in choices if choice.get("type") in WRONG_TYPES}:
        for value in WRONG_TYPES[kind]:
            if not _is_one_of(value, allowed):
                yield [], value
    if field.get("not") == {"type": "null"}:
        yield [], None
    for choice in choices:
        if "enum" in choice:
            yield [], "no such choice"
        if len(choices) == 1:
            for bound, beyond in BOUNDS.items():
                if bound in choice:
                    yield [], beyond(choice[bound])
        if "properties" in choice:
            yield [], {"no_such_field": 1}
            for name, inner in choice["properties"].items():
                for path, value in _wrong(inner, sections):
                    yield [name, *path], {name: value}


def _resolved(choice: dict[str, Any], sections: dict[str, Any]) -> dict[str, Any]:
    if "$ref" in choice:
        return dict(sections[choice["$ref"].rpartition("/")[2]])
    return choice


def _is_one_of(value: Any, kinds: set[Any]) -> bool:
    """As JSON Schema sees it: a boolean is no number, 1.0 is an integer."""
    names = {bool: "boolean", str: "string", list: "array", dict: "object"}
    if type(value) in names:
        return names[type(value)] in kinds
    return "number" in kinds or ("integer" in kinds and float(value).is_integer())
