"""Changes to a recipe: models like its configuration, with every field optional and no defaults.

A flow takes a recipe's name and changes to it. The UI makes a form of both, the REST API validates
them, the command line writes them as `path.to.field=value`; what is left out stays as it was.

Null is a value where a field may be none, and a mistake elsewhere: JSON has no infinite number, for
which Prefect stores null. Prefect's check lets null stand for any field that is not required,
unless the field's schema says `not`. Its forms leave out untouched fields.

Both of Prefect's pages (3.8.8) draw a section open, with all sections in it, sort fields by
`position`, and let a person choose among the schemas of `anyOf`, the first unless there is a value.
So a section is drawn as a choice between nothing and its fields. What is valid is said apart from
that, by `if` and `then`, which the pages do not read: a mistake is then reported at its field and
not at the choice.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce
from operator import or_
from pathlib import Path
from types import GenericAlias, UnionType
from typing import Annotated, Any, ClassVar, Self, get_args, get_origin

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    ModelWrapValidatorHandler,
    ValidationError,
    create_model,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError

from trimtab.flows.config.config import ConfigError, RunConfig, load_config
from trimtab.flows.config.paths import (
    EXPLAINED,
    explain,
    explained,
    leaves,
    merge_changes,
    nested,
    section_of,
    short,
    value_at,
)

# The names of a section's choices.
CHANGE = "change"
FOLDED = {"type": "object", "title": "as in the recipe", "properties": {}}
NONE = {"type": "null", "title": "none"}
# The names of other choices, by type.
KINDS = {"integer": "number", "number": "number", "string": "text", "array": "list", "null": "none"}
# Settings that people change most, first in the form, by path, with their labels.
OFTEN = {
    "seed": "Seed of the run (seed)",
    "preferences.sources": "Your own pairs (preferences.sources)",
    "preferences.max_pairs": "Number of pairs (preferences.max_pairs)",
    "sft.model.base": "Base model (sft.model.base)",
    "ensemble.size": "Reward models that vote (ensemble.size)",
    "arms": "Policies to train (arms)",
    "ppo.kl_coef": "KL coefficient (ppo.kl_coef)",
    "ppo.num_steps": "PPO steps (ppo.num_steps)",
}

Schema = dict[str, Any]

NOT_NULL: dict[str, Any] = {"not": {"type": "null"}}
# For numbers that may be null: NaN would be stored as null, and is not smaller than any number.
NOT_NAN: dict[str, Any] = {"not": {"type": "number", "exclusiveMinimum": sys.float_info.max}}


class _Changes(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, title=CHANGE, defer_build=True
    )

    @model_validator(mode="before")
    @classmethod
    def _null_leaves_a_switch(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        fields = cls.model_fields.items()
        switches = {name for name, field in fields if bool in get_args(field.annotation)}
        return {k: v for k, v in values.items() if v is not None or k not in switches}


class ExplainedChanges(BaseModel):
    """Base of a flow's `changes`: mistakes in our words, as Prefect's omit what was found.

    Settings that are often changed may be given by their path as well, as the form does.
    """

    @model_validator(mode="wrap")
    @classmethod
    def _explains(cls, values: Any, check: ModelWrapValidatorHandler[Self]) -> Self:
        try:
            return check(_nest_by_section(values))
        except ValidationError as error:
            raise explained(error, cls) from None

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        drawn = handler(schema)
        add_often_changed(handler.resolve_ref_schema(drawn), handler.resolve_ref_schema)
        return drawn


def _nest_by_section(values: Any) -> Any:
    """Settings given by their path, `{"ppo.kl_coef": 0.1}`, at their place in the sections."""
    if not isinstance(values, Mapping):
        return values
    by_path = {path: values[path] for path in OFTEN if "." in path and path in values}
    sections = {name: value for name, value in values.items() if name not in by_path}
    for path, value in by_path.items():
        _, other = value_at(sections, path)
        if other not in (..., value):
            text = f"{path}: given twice, found {short(value)} and {short(other)}"
            raise PydanticCustomError(EXPLAINED, "{text}", {"text": text})
        sections = merge_changes(sections, nested(path, value))
    return sections


def changes_to(model: type[BaseModel], only: Sequence[str] = (), above: str = "") -> Any:
    """A model with the fields of `model`, or `only` some by path, all of them optional.

    `above` is what the paths of its fields begin with: their labels in the form are their paths.

    Null is refused except where it is one of a field's values, or where the field is a switch, for
    which it means the same as not giving it. Sections are such models again.
    """
    fields: dict[str, Any] = {}
    for position, (name, field) in enumerate(model.model_fields.items()):
        inside = [path.removeprefix(f"{name}.") for path in only if path.startswith(f"{name}.")]
        if only and name not in only and not inside:
            continue
        path = f"{above}{name}"
        kind: Any = _changes_in(field.annotation, inside, path)
        for constraint in field.metadata:
            kind = Annotated[kind, constraint]
        extra = NOT_NULL
        if type(None) in get_args(field.annotation):
            extra = NOT_NAN if _is_number(field.annotation) else {}
        section = section_of(field)
        about = field.description or (section and section.__doc__) or ""
        change: Any = Field(
            default_factory=lambda: None,
            title=path,
            description=about.strip().partition("\n")[0] or None,
            json_schema_extra=partial(draw_sections, position, extra),
        )
        fields[name] = (bool | None if kind is bool else kind, change)
    return create_model(
        above.rstrip(".").replace(".", "_") or model.__name__, __base__=_Changes, **fields
    )


def _changes_in(kind: Any, only: Sequence[str], path: str) -> Any:
    """A field's type, with changes in place of a section, be it optional, or one of several."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return changes_to(kind, only, f"{path}.")
    if get_origin(kind) is tuple:
        return GenericAlias(tuple, tuple(_changes_in(item, only, path) for item in get_args(kind)))
    if isinstance(kind, UnionType):
        return reduce(or_, (_changes_in(option, only, path) for option in get_args(kind)))
    return kind


def _is_number(kind: Any) -> bool:
    """Whether a field's type is a number, be it optional."""
    return kind in (int, float) or any(
        _is_number(option) for option in get_args(kind) if get_origin(kind) is not tuple
    )


def draw_sections(position: int, extra: Mapping[str, Any], schema: Schema) -> None:
    """Change a field's JSON schema in place: where it stands, and how it is drawn.

    extra: what is valid besides the field's type.
    """
    schema.update({**extra, "position": position + len(OFTEN)})
    options = schema.get("anyOf", [schema])
    sections = [{"$ref": option["$ref"]} for option in options if "$ref" in option]
    if sections:
        schema.pop("$ref", None)
        none = [dict(NONE)] if len(options) > 1 else []
        schema["anyOf"] = [dict(FOLDED), sections[0], *none]
        schema |= {"if": {"type": "object"}, "then": dict(sections[0])}
    elif any(option.get("type") == "boolean" for option in options):
        # Neither page's switch has a third state: a list to choose from starts without a choice.
        for name in ("anyOf", "default", "type"):
            schema.pop(name, None)
        schema["enum"] = [True, False]
    elif "anyOf" in schema:
        for choice in schema["anyOf"]:
            if "const" in choice:  # of which a page makes no value
                choice["enum"] = [choice.pop("const")]
            words = choice.get("enum", [KINDS[choice["type"]]])
            choice["title"] = " or ".join(map(str, words))


def add_often_changed(schema: Schema, resolved: Callable[[Schema], Schema]) -> None:
    """Put those of `OFTEN` that `changes` has first in its schema, those of sections by path.

    resolved: the section that a reference is to.
    """
    for position, (path, label) in enumerate(OFTEN.items()):
        field: Schema | None = {"then": schema}
        for name in path.split("."):
            section = resolved(field["then"]) if field and "then" in field else {}
            field = section.get("properties", {}).get(name)
        if field is not None:
            schema["properties"][path] = {**field, "title": label, "position": position}


# All but the recipe, which is a parameter by itself.
FIELDS = tuple(name for name in RunConfig.model_fields if name != "recipe")
ROUND_FIELDS = (
    "ppo",
    "rounds.meta_rm",
    "rounds.promote",
    "suspend.for_champion_approval",
    "suspend.timeout_hours",
)


class RunChanges(ExplainedChanges, changes_to(RunConfig, FIELDS)):  # type: ignore[misc]
    """Settings that a run changes in its recipe."""


class RoundChanges(ExplainedChanges, changes_to(RunConfig, ROUND_FIELDS)):  # type: ignore[misc]
    """Settings that a round may change in its champion's run, such that both stay comparable."""


def apply_changes(
    config: RunConfig,
    changes: BaseModel | Mapping[str, Any] | None,
    kind: type[BaseModel] = RunChanges,
) -> RunConfig:
    """The configuration with changes applied; ConfigError names all mistakes at once."""
    if changes is None:
        return config
    if not isinstance(changes, BaseModel):
        changes = validate_changes(changes, kind)
    changed = _drop_empty(changes.model_dump(mode="json", exclude_unset=True))
    values = config.model_dump(mode="json")
    # Categories are one a source: the recipe's do not hold for another number of sources.
    sources = changed.get("preferences", {}).get("sources")
    if sources is not None and len(sources) != len(values["preferences"]["categories"]):
        values["preferences"]["categories"] = []
    return load_config(merge_changes(values, changed))


def validate_changes(changes: Mapping[str, Any], kind: type[BaseModel]) -> BaseModel:
    """Validate changes without a recipe, as the model `kind`; ConfigError names all mistakes."""
    if "recipe" in changes:
        raise ConfigError(
            f"recipe: found {changes['recipe']!r} among the changed settings; allowed: the recipe "
            "as an argument of its own"
        )
    try:
        return kind.model_validate(changes)
    except ValidationError as error:
        raise ConfigError(explain(error, kind)) from None


def _drop_empty(value: Any) -> Any:
    """Drop empty sections: Prefect's form sends sections that the user left untouched.

    Such a section would otherwise replace a null section, such as `zero`, by one of defaults.
    """
    if isinstance(value, list):
        return [_drop_empty(item) for item in value]
    if isinstance(value, Mapping):
        inside = {name: _drop_empty(item) for name, item in value.items()}
        return {name: item for name, item in inside.items() if item != {}}
    return value


def parse_overrides(overrides: Sequence[str]) -> dict[str, Any]:
    """Parse `path.to.field=value` overrides to nested values; a value is JSON, else plain text."""
    changes: dict[str, Any] = {}
    for override in overrides:
        path, separator, text = override.partition("=")
        if not separator:
            raise ConfigError(f"{override!r} is not of the form field=value")
        changes = merge_changes(changes, nested(path, _value(text)))
    return _wrap_lists(changes, RunConfig)


def _wrap_lists(values: Mapping[str, Any], model: type[BaseModel]) -> dict[str, Any]:
    """Settings with a list of one where a list of any length is asked and one value stands.

    For settings that people write; flows take what their schema says.
    """
    changed = dict(values)
    for name, field in model.model_fields.items():
        value = values.get(name)
        section = section_of(field)
        if isinstance(value, dict) and section is not None:
            changed[name] = _wrap_lists(value, section)
        elif isinstance(value, str | int | float) and not isinstance(value, bool):
            kinds = [field.annotation, *get_args(field.annotation)]
            if any(get_origin(kind) is tuple and ... in get_args(kind) for kind in kinds):
                changed[name] = [value]
    return changed


def read_changes(path: Path) -> dict[str, Any]:
    """The settings in a file of YAML or JSON: a whole configuration, or some settings of one.

    `recipe`, if it is among them, says which recipe they change. ConfigError for a file that cannot
    be read, with the place of a mistake.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no UTF-8 text"
        raise ConfigError(f"--config: found {path}, which cannot be read: {reason}") from None
    try:
        values = load_yaml(text)
    except ValueError as error:
        raise ConfigError(f"--config: {path} is no YAML: {' '.join(str(error).split())}") from None
    if not isinstance(values, dict) or not all(isinstance(name, str) for name in values):
        raise ConfigError(
            f"--config: found {short(values)} in {path}; allowed: settings by name, as "
            "`trimtab run RECIPE --print-config` prints them"
        )
    return _wrap_lists(values, RunConfig)


def drop_usual(changes: Mapping[str, Any], usual: Mapping[str, Any]) -> dict[str, Any]:
    """Changes without those settings that have their usual value."""
    differing = {}
    for name, value in changes.items():
        usual_value = usual.get(name, ...)
        if isinstance(value, dict) and isinstance(usual_value, dict):
            if inside := drop_usual(value, usual_value):
                differing[name] = inside
        elif value != usual_value:
            differing[name] = value
    return differing


def format_overrides(changes: BaseModel | Mapping[str, Any] | None) -> list[str]:
    """Write changes as command line overrides, which `parse_overrides` reads."""
    if changes is None:
        return []
    if isinstance(changes, BaseModel):
        changes = changes.model_dump(mode="json", exclude_unset=True)
    return [f"{path}={_text(value)}" for path, value in leaves(_drop_empty(changes))]


def _text(value: Any) -> str:
    """A value as text: strings without quotes unless they would parse as JSON."""
    if isinstance(value, str) and _value(value) == value:
        return value
    return json.dumps(value, ensure_ascii=False)


def _value(text: str) -> Any:
    """JSON; a list or mapping also without quotes, as YAML has it; else the text itself."""
    try:
        return json.loads(text)
    except ValueError:
        if not (text.startswith("[") and text.endswith("]")) and not text.startswith("{"):
            return text
    try:
        return load_yaml(text)
    except ValueError:
        return text


# PyYAML follows version 1.1 of YAML, in which `on`, the name of one of our settings, is a switch,
# 5e-6 a text and 1:30 the number 90. Below are numbers and switches as version 1.2 reads them.
TAG = "tag:yaml.org,2002:"
FLOAT = r"[-+]?(?:\.[0-9]+|[0-9]+\.[0-9]*|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?"
REPLACED = {
    "bool": (r"true|True|TRUE|false|False|FALSE", "tTfF"),
    "int": (r"[-+]?[0-9]+", "-+0123456789"),
    "float": (FLOAT, "-+0123456789."),
}
REMOVED = [TAG + name for name in (*REPLACED, "timestamp")]


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {
        first: [(tag, pattern) for tag, pattern in known if tag not in REMOVED]
        for first, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """PyYAML's mapping, but ValueError for a name that comes twice."""
        names = [self.construct_object(key, deep=True) for key, _ in node.value]
        _refuse_repeated(names, str(node.start_mark))
        values: dict[Any, Any] = super().construct_mapping(node, deep)
        return values


for _name, (_pattern, _firsts) in REPLACED.items():
    _Loader.add_implicit_resolver(TAG + _name, re.compile(f"^(?:{_pattern})$"), list(_firsts))
# Version 1.1's reads 010 as 8.
_Loader.add_constructor(f"{TAG}int", lambda loader, node: int(loader.construct_scalar(node)))


def load_yaml(text: str) -> Any:
    """The value of a document of JSON or YAML; ValueError, with the place, for what is none."""
    try:
        return json.loads(text, object_pairs_hook=_once)
    except json.JSONDecodeError:
        pass
    try:
        return yaml.load(text, _Loader)  # a SafeLoader: plain values only
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    _refuse_repeated([name for name, _ in pairs])
    return dict(pairs)


def _refuse_repeated(names: list[Any], place: str = "") -> None:
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise ValueError(f"{twice[0]!r} comes twice{place}")
