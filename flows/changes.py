"""Changes to a recipe: its configuration once more, with every field optional and none preset.

A flow takes a recipe's name and changes to it. The UI makes a form of both, the REST API validates
them, the command line writes them as `path.to.field=value`; what is left out stays as it was.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from operator import or_
from types import GenericAlias, UnionType
from typing import Annotated, Any, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model, model_validator

from flows.config import ConfigError, RunConfig, load_config
from flows.explain import explain


class _Changes(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _null_is_not_given(cls, values: Any) -> Any:
        """Prefect's API lets null stand for any number or text that is not required."""
        if not isinstance(values, dict):
            return values
        return {k: v for k, v in values.items() if v is not None or not cls._is_never_null(k)}

    @classmethod
    def _is_never_null(cls, name: str) -> bool:
        field = cls.model_fields.get(name)
        kinds = get_args(field.annotation) if field else ()
        return field is not None and (type(None) not in kinds or bool in kinds)


def changes_to(model: type[BaseModel], only: Sequence[str] = ()) -> Any:
    """A model with the fields of `model`, or `only` some by path, all of them optional.

    Null means the same as not giving a field, except where null is one of its values; nothing else
    is a default. Sections are such models again.
    """
    fields: dict[str, Any] = {}
    for name, field in model.model_fields.items():
        inside = [path.removeprefix(f"{name}.") for path in only if path.startswith(f"{name}.")]
        if only and name not in only and not inside:
            continue
        kind: Any = _changes_in(field.annotation, inside)
        for constraint in field.metadata:
            kind = Annotated[kind, constraint]
        given = Field(default_factory=_not_given, description=field.description)
        if kind is bool:  # the UI's form has no third state, and would send false
            kind, given = bool | None, Field(None, description=field.description)
        fields[name] = (kind, given)
    return create_model(model.__name__, __base__=_Changes, __doc__=model.__doc__, **fields)


def _changes_in(kind: Any, only: Sequence[str]) -> Any:
    """A field's type, with changes in place of a section, be it optional, or one of several."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return changes_to(kind, only)
    if get_origin(kind) is tuple:
        return GenericAlias(tuple, tuple(_changes_in(each, only) for each in get_args(kind)))
    if isinstance(kind, UnionType):
        return reduce(or_, (_changes_in(each, only) for each in get_args(kind)))
    return kind


def _not_given() -> None:
    return None


class RunChanges(changes_to(RunConfig)):  # type: ignore[misc]
    """What a run does otherwise than its recipe."""


OF_A_ROUND = ("ppo", "rounds.meta_rm", "rounds.promote")


class RoundChanges(changes_to(RunConfig, OF_A_ROUND)):  # type: ignore[misc]
    """What a further round does otherwise than its champion's run; the rest stays comparable."""


def changed(
    config: RunConfig,
    changes: BaseModel | Mapping[str, Any] | None,
    kind: type[BaseModel] = RunChanges,
) -> RunConfig:
    """The configuration with changes of a kind; ConfigError names all mistakes at once."""
    if changes is None:
        return config
    if not isinstance(changes, BaseModel):
        try:
            changes = kind.model_validate(changes)
        except ValidationError as error:
            raise ConfigError(explain(error, kind)) from None
    given = _without_empty(changes.model_dump(mode="json", exclude_unset=True))
    return load_config(_merged(config.model_dump(mode="json"), given))


def _without_empty(given: Mapping[str, Any]) -> dict[str, Any]:
    """Without sections in which nothing is given: the form sends those that nobody touched.

    In place of a section that is null, such as `zero`, it would be one of defaults.
    """
    inside = {name: _cleared(value) for name, value in given.items()}
    return {name: value for name, value in inside.items() if value != {}}


def _cleared(value: Any) -> Any:
    if isinstance(value, list):
        return [_cleared(each) for each in value]
    return _without_empty(value) if isinstance(value, dict) else value


def _merged(values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(values)
    for name, new in changes.items():
        old = result.get(name)
        if isinstance(old, dict) and isinstance(new, dict):
            result[name] = _merged(old, new)
        else:
            result[name] = new
    return result


def parsed(overrides: Sequence[str]) -> dict[str, Any]:
    """`path.to.field=value` edits as nested values: JSON, or plain text where that fails."""
    changes: dict[str, Any] = {}
    for override in overrides:
        path, separator, text = override.partition("=")
        if not separator:
            raise ConfigError(f"{override!r} is not of the form field=value")
        first, *rest = path.split(".")
        value = _value(text)
        for name in reversed(rest):
            value = {name: value}
        changes = _merged(changes, {first: value})
    return changes


def overrides(changes: BaseModel | Mapping[str, Any] | None) -> list[str]:
    """The command line's way to write changes: what `parsed` reads."""
    if changes is None:
        return []
    if isinstance(changes, BaseModel):
        changes = changes.model_dump(mode="json", exclude_unset=True)
    return [f"{path}={_text(value)}" for path, value in _leaves(_without_empty(changes))]


def _leaves(values: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value


def _text(value: Any) -> str:
    """Text as it is, unless it would be read as something else."""
    if isinstance(value, str) and _value(value) == value:
        return value
    return json.dumps(value, ensure_ascii=False)


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
