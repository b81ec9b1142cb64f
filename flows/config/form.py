"""How Prefect's pages draw the form of a flow's `changes`: order, labels, folded sections.

Both of Prefect's pages (3.8.8) draw a section open, with all sections in it, sort fields by
`position`, and let a person choose among the schemas of `anyOf`, the first unless there is a value.
So a section is drawn as a choice between nothing and its fields. What is valid is said apart from
that, by `if` and `then`, which the pages do not read: a mistake is then reported at its field and
not at the choice.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

# The names of a section's choices.
CHANGE = "change"
FOLDED = {"type": "object", "title": "as in the recipe", "properties": {}}
NONE = {"type": "null", "title": "none"}
# The names of other choices, by type.
KINDS = {
    "integer": "number",
    "number": "number",
    "string": "text",
    "array": "list",
    "null": "none",
}
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

# Parameters that a person chooses in any case; the deployments of prefect.yaml have values of them.
REQUIRED = ("recipe", "paper", "exhibit")

Schema = dict[str, Any]


def draw_sections(position: int, extra: Mapping[str, Any], schema: Schema) -> None:
    """Change a field's JSON schema in place: where it stands, and how it is drawn.

    extra: what is valid besides the field's type.
    """
    schema.update({**extra, "position": position + len(OFTEN)})
    options = schema.get("anyOf", [schema])
    sections = [each["$ref"] for each in options if "$ref" in each]
    if sections:
        _fold(schema, sections[0], is_optional=len(options) > 1)
    elif any(each.get("type") == "boolean" for each in options):
        # Neither page's switch has a third state: a list to choose from starts without a choice.
        for name in ("anyOf", "default", "type"):
            schema.pop(name, None)
        schema["enum"] = [True, False]
    elif "anyOf" in schema:
        _name_choices(schema["anyOf"])


def _name_choices(choices: Sequence[Schema]) -> None:
    for each in choices:
        if "const" in each:  # of which a page makes no value
            each["enum"] = [each.pop("const")]
        words = each.get("enum", [KINDS[each["type"]]])
        each["title"] = " or ".join(map(str, words))


def _fold(schema: Schema, reference: str, *, is_optional: bool) -> None:
    for name in ("anyOf", "$ref"):
        schema.pop(name, None)
    section = {"$ref": reference}
    schema["anyOf"] = [dict(FOLDED), section, *([dict(NONE)] if is_optional else [])]
    schema |= {"if": {"type": "object"}, "then": dict(section)}


def add_often_changed(schema: Schema, resolved: Callable[[Schema], Schema]) -> None:
    """Put those of `OFTEN` that `changes` has first in its schema, those of sections by path.

    resolved: the section that a reference is to.
    """
    for position, (path, label) in enumerate(OFTEN.items()):
        found: Schema | None = {"then": schema}
        for name in path.split("."):
            section = resolved(found["then"]) if found and "then" in found else {}
            found = section.get("properties", {}).get(name)
        if found is not None:
            schema["properties"][path] = {**found, "title": label, "position": position}


def serve_schema(schema: Mapping[str, Any]) -> Schema:
    """The schema of a flow's parameters as its deployment has it.

    Prefect's own lets a misspelt parameter pass, which would then fail the run; it says of no
    parameter with a default that a run needs it; and it draws what may be none as folded.
    """
    found: Schema = copy.deepcopy(dict(schema))
    parameters = found.get("properties", {})
    found["additionalProperties"] = False
    found["required"] = [name for name in REQUIRED if name in parameters]
    for name in ("name", "changes"):
        given = parameters.get(name, {})
        if "anyOf" in given:
            kind, _none = given.pop("anyOf")
            given |= kind
            del given["default"]
    if "changes" in parameters:  # the longest comes last
        parameters["changes"]["position"] = len(parameters)
    return found
