"""Parameters that no run can have, and who refuses them before any stage.

`schema`: Prefect's API, by the schema of the deployment (409). `flow`: the flow itself, as soon as
it starts. The flow refuses all of them, as `enforce_parameter_schema: false` skips the schema; but
for infinity and NaN where null is a value, which it cannot tell from that (`alone`).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from typing import Any

import pytest
from prefect.exceptions import ParameterTypeError
from prefect.utilities.callables import parameter_schema
from prefect.utilities.schema_tools.validation import preprocess_schema, validate

from tests.flows.malformed import ALONE, FLOW, impossible_changes
from trimtab.flows.compare import compare
from trimtab.flows.config.config import ConfigError
from trimtab.flows.config.overrides import apply_changes, parse_overrides
from trimtab.flows.config.recipes import recipe_named
from trimtab.flows.deploy import serve_schema
from trimtab.flows.evaluate import evaluate
from trimtab.flows.rlhf import rlhf
from trimtab.flows.rounds import rounds
from trimtab.flows.study import study


def _schema(flow: Any) -> dict[str, Any]:
    """As the API has it of a deployment, once it prepared it."""
    schema = serve_schema(parameter_schema(flow).model_dump_for_openapi())
    return dict(preprocess_schema(json.loads(json.dumps(schema))))


def _stored(value: Any) -> Any:
    """As Prefect's database gives it back."""
    if isinstance(value, dict):
        return {name: _stored(inner) for name, inner in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _start(parameters: dict[str, Any]) -> None:
    """What the flow does before its first stage."""
    taken = rlhf.validate_parameters(parameters)
    apply_changes(recipe_named(taken["recipe"]), taken["changes"])


@pytest.mark.slow
def test_what_no_run_can_have_is_refused_before_any_stage() -> None:
    schema, cases = _schema(rlhf), list(impossible_changes())
    assert len(cases) > 110
    for what, changes, layer in cases:
        parameters = {"recipe": "smoke", "changes": changes}
        found = validate(parameters, schema, preprocess=False)
        assert bool(found) == (layer != FLOW), (what, [each.message for each in found])
        if layer == ALONE:
            continue
        with pytest.raises((ConfigError, ParameterTypeError)) as error:
            _start({"recipe": "smoke", "changes": _stored(changes)})
        said = str(error.value)
        assert any(word in said for word in re.findall(r"\w{3,}", what)), (what, said)
        assert len(said) < 2000, what


def test_a_form_that_nobody_touched_changes_nothing() -> None:
    """It sends the defaults that the schema has, of which there are none, in every section that was
    opened, and in the first of several."""
    sections = serve_schema(parameter_schema(rlhf).model_dump_for_openapi())["definitions"]
    assert '"default"' not in json.dumps(sections)

    def opened(name: str) -> dict[str, Any]:
        return {
            field: opened(described["then"]["$ref"].rpartition("/")[2])
            for field, described in sections[name]["properties"].items()
            if "then" in described
        }

    changes = opened("RunChanges")
    assert changes["ppo"]["lora"] == {} and changes["rounds"]["meta_rm"]["train"]["zero"] == {}
    parameters = {"recipe": "smoke", "changes": changes}
    assert validate(parameters, _schema(rlhf), preprocess=False) == []
    taken = rlhf.validate_parameters(parameters)
    assert apply_changes(recipe_named("smoke"), taken["changes"]) == recipe_named("smoke")


@pytest.mark.slow
def test_a_setting_may_be_given_by_its_path_as_the_form_does() -> None:
    changes = {
        "ppo.kl_coef": 0.2,
        "seed": 3,
        "ppo": {"num_steps": 6},
        "preferences.max_pairs": None,
    }
    parameters = {"recipe": "smoke", "changes": changes}
    assert validate(parameters, _schema(rlhf), preprocess=False) == []
    taken = rlhf.validate_parameters(parameters)
    given = parse_overrides(["ppo.kl_coef=0.2", "seed=3", "ppo.num_steps=6"])
    assert apply_changes(recipe_named("smoke"), taken["changes"]) == apply_changes(
        recipe_named("smoke"), given
    )
    for twice in ({"kl_coef": 0.3}, 3):
        with pytest.raises((ConfigError, ParameterTypeError), match=r"ppo"):
            _start({"recipe": "smoke", "changes": {"ppo.kl_coef": 0.2, "ppo": twice}})
    for wrong in (
        {"ppo.kl_coef": -1},
        {"ppo.kl_coef": None},
        {"ppo.gamma": 1},
        {"sft.model.base": 3},
    ):
        parameters = {"recipe": "smoke", "changes": wrong}
        assert validate(parameters, _schema(rlhf), preprocess=False), wrong
        with pytest.raises((ConfigError, ParameterTypeError), match=next(iter(wrong))):
            _start(parameters)


@pytest.mark.parametrize(
    "flow", [rlhf, rounds, evaluate, study, compare], ids=lambda each: each.name
)
def test_every_number_has_two_bounds(flow: Any) -> None:
    schema = parameter_schema(flow).model_dump_for_openapi()
    unbound = [path for path, number in _numbers(schema) if not _is_bound(number)]
    assert unbound == []


def _numbers(schema: Any, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every schema of a number, wherever it stands; not what is refused by `not`."""
    if isinstance(schema, dict):
        if schema.get("type") in ("integer", "number") and "enum" not in schema:
            yield path, schema
        for name, inner in schema.items():
            if name not in ("not", "default"):
                yield from _numbers(inner, f"{path}.{name}")
    elif isinstance(schema, list):
        for index, inner in enumerate(schema):
            yield from _numbers(inner, f"{path}.{index}")


def _is_bound(number: dict[str, Any]) -> bool:
    return bool({"minimum", "exclusiveMinimum"} & set(number)) and bool(
        {"maximum", "exclusiveMaximum"} & set(number)
    )
