"""The settings of a configuration in words: `trimtab fields`, and the page of all settings."""

from __future__ import annotations

import difflib
import json
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, TypeAdapter
from pydantic.fields import FieldInfo

from trimtab.flows.config.config import ConfigError, RunConfig
from trimtab.flows.config.paths import MAX_HINTS, fields_of, section_of, value_at

WIDTH = 96
# Types of JSON schemas that have other names in words.
TYPES = {"boolean": "true or false", "string": "text"}


@dataclass(frozen=True)
class Setting:
    """A field that is no section. path: as on the command line."""

    path: str
    field: FieldInfo

    @property
    def description(self) -> str:
        """Its effect, as one line."""
        return " ".join((self.field.description or "").split())

    @property
    def default(self) -> str:
        """The configuration's own value as JSON; `required` where there is none."""
        if self.field.is_required():
            return "required"
        return to_json(self.field.get_default(call_default_factory=True))

    @property
    def allowed(self) -> str:
        """The values it may have, in words."""
        kind: Any = self.field.annotation
        for constraint in self.field.metadata:
            kind = Annotated[kind, constraint]
        return _allowed(TypeAdapter(kind).json_schema())


def settings_of(model: type[BaseModel]) -> list[Setting]:
    """All settings of a configuration and of its sections, in order.

    A field that holds several sections (`judges`) is one setting.
    """
    fields = fields_of(model, of_lists=False)
    return [Setting(path, field) for path, field in fields if section_of(field) is None]


def to_json(value: Any) -> str:
    """A setting's value as it is written on the command line."""
    return json.dumps(value, default=_plain, ensure_ascii=False)


def _plain(value: Any) -> Any:
    return value.model_dump(mode="json") if isinstance(value, BaseModel) else str(value)


def _allowed(schema: Mapping[str, Any]) -> str:
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(map(_allowed, schema["anyOf"])))
    if "enum" in schema:
        *others, last = map(str, schema["enum"])
        return f"{', '.join(others)} or {last}"
    if schema.get("type") == "object" and "properties" in schema:
        return "a section"
    if "const" in schema:
        return str(schema["const"])
    if "$ref" in schema:
        return "sections"
    if schema.get("type") == "array":
        if "prefixItems" in schema:
            return f"list of {len(schema['prefixItems'])}: {_allowed(schema['prefixItems'][0])}"
        return f"list of {_allowed(schema.get('items', {}))}"
    kind = schema["type"]
    return " ".join([TYPES.get(kind, kind), *_bounds(schema)])


def _bounds(schema: Mapping[str, Any]) -> Iterator[str]:
    low, high = schema.get("minimum"), schema.get("maximum")
    above, below = schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")
    if schema.get("type") == "integer" and above is not None:
        low, above = above + 1, None
    if low is not None and high is not None:
        yield f"from {_number(low)} to {_number(high)}"
        return
    bounds = {"at least": low, "above": above, "at most": high, "below": below}
    texts = [f"{word} {_number(value)}" for word, value in bounds.items() if value is not None]
    if texts:
        yield " and ".join(texts)


def _number(value: float) -> str:
    return f"{int(value):,}" if value == int(value) else f"{value:g}"


def fields_text(words: Sequence[str], recipe: RunConfig) -> str:
    """The settings that have all of some words, with the recipe's values; all sections without.

    A word is a section or setting by name, or part of a path or description. ConfigError where
    nothing has them.
    """
    settings = settings_of(RunConfig)
    if not words:
        return _sections(settings, recipe)
    # A word is a part of a path, or several in order.
    matches = [s for s in settings if all(f".{word}." in f".{s.path}." for word in words)]
    matches = matches or [
        setting
        for setting in settings
        if all(word.lower() in f"{setting.path} {setting.description}".lower() for word in words)
    ]
    if not matches:
        names = sorted({part for setting in settings for part in setting.path.split(".")})
        near = difflib.get_close_matches(" ".join(words), names, n=MAX_HINTS)
        hint = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
        raise ConfigError(
            f"no setting has {' and '.join(map(repr, words))} in its name or description; {hint}"
            "`trimtab fields` lists the sections"
        )
    values = recipe.model_dump(mode="json")
    return "\n\n".join(_setting_text(setting, values) for setting in matches)


def _sections(settings: Sequence[Setting], recipe: RunConfig) -> str:
    """Sections and settings without one, a line each."""
    lines = []
    for name, field in RunConfig.model_fields.items():
        section = section_of(field)
        if section is None:
            about, count = field.description, 1
        else:
            about = (section.__doc__ or "").strip().splitlines()[0]
            count = sum(setting.path.startswith(f"{name}.") for setting in settings)
        is_off = " (off)" if section and getattr(recipe, name) is None else ""
        lines.append((name, count, f"{' '.join((about or '').split())}{is_off}"))
    width = max(len(name) for name, _, _ in lines)
    rows = [
        f"{name:{width}}  {count:>3}  "
        + textwrap.shorten(about, WIDTH - width - 7, placeholder=" ...")
        for name, count, about in lines
    ]
    heading = (
        f"{len(settings)} settings, by section, as in the recipe {recipe.recipe}. In full: "
        "`trimtab fields ppo`, or any word."
    )
    return "\n".join([heading, "", *rows])


def _setting_text(setting: Setting, values: Mapping[str, Any]) -> str:
    """A setting's value in a recipe, what is allowed, and its description."""
    place, value = value_at(values, setting.path)
    is_off = place != setting.path
    shown = setting.default if is_off else to_json(value)
    off = f" (the section is off: {place}=null)" if is_off else ""
    about = textwrap.wrap(f"{setting.description}. Allowed: {setting.allowed}.", WIDTH - 4)
    return "\n".join([f"{setting.path}={shown}{off}", *(f"    {line}" for line in about)])
