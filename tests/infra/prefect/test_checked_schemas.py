"""Parameters are checked at every start of a run, whatever its body says, and their schema once."""

from __future__ import annotations

from typing import Any

import pytest
from jsonschema import SchemaError
from prefect.server.schemas.actions import DeploymentFlowRunCreate
from prefect.utilities.schema_tools import validation

from trimtab.infra.prefect.checked_schemas import check_parameters_always, check_schemas_once

STEPS = {"type": "object", "properties": {"steps": {"type": "integer"}}}


def _validate(parameters: dict[str, Any], schema: dict[str, Any]) -> None:
    """As Prefect's server does where a run is started."""
    validation.validate(parameters, schema, raise_on_error=True)


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What is checked in full, once schemas are remembered."""
    found: list[Any] = []
    own = validation._VALIDATOR.check_schema

    def check(schema: Any, *given: Any, **named: Any) -> None:
        found.append(schema)
        own(schema, *given, **named)

    monkeypatch.setattr(validation._VALIDATOR, "check_schema", check)
    check_schemas_once()
    return found


def test_a_schema_is_checked_once_and_parameters_always(checked: list[Any]) -> None:
    for _ in range(3):
        _validate({"steps": 3}, STEPS)
        with pytest.raises(validation.ValidationError, match="'steps'"):
            _validate({"steps": "three"}, STEPS)
    assert len(checked) == 1
    _validate({"steps": "three"}, {"type": "object", "properties": {"steps": {"type": "string"}}})
    assert len(checked) == 2


def test_definitions_that_schemas_share_are_checked_once(
    checked: list[Any],
) -> None:
    section = {"type": "object", "properties": {"steps": {"$ref": "#/definitions/Steps"}}}
    for title in ("one", "another"):
        schema = {**section, "title": title, "definitions": {"Steps": {"type": "integer"}}}
        with pytest.raises(validation.ValidationError, match="'steps'"):
            _validate({"steps": "three"}, schema)
    assert len(checked) == 3


def test_a_wrong_schema_stays_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(validation._VALIDATOR, "check_schema", validation._VALIDATOR.check_schema)
    check_schemas_once()
    wrong = {"type": "object", "properties": {"steps": {"type": "numbr"}}}
    for schema in (wrong, {"type": "object", "definitions": {"Steps": wrong}}):
        for _ in range(2):
            with pytest.raises(SchemaError):
                _validate({}, schema)


def test_a_body_cannot_switch_the_check_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        DeploymentFlowRunCreate, "enforce_parameter_schema", None, raising=False
    )  # so that it is taken away again
    check_parameters_always()
    for given in ({}, {"enforce_parameter_schema": False}, {"enforce_parameter_schema": True}):
        body = DeploymentFlowRunCreate.model_validate({**given, "parameters": {"recipe": "smoke"}})
        assert body.enforce_parameter_schema is None  # the deployment decides
        assert body.parameters == {"recipe": "smoke"}
