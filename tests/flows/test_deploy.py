"""Deployments: what prefect.yaml names can be run, and what a server accepts as parameters."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import yaml
from prefect.events.actions import CallWebhook, SendNotification
from prefect.flows import load_flow_from_entrypoint
from prefect.server.events import actions  # noqa: F401  (templates have its filters)
from prefect.server.utilities.user_templates import render_user_template_sync
from prefect.utilities.callables import parameter_schema
from prefect.utilities.schema_tools.validation import preprocess_schema, validate
from prefect.workers.process import ProcessWorker

from tests.flows.malformed import malformed
from trimtab.flows.config.config import ConfigError
from trimtab.flows.config.overrides import FIELDS, OFTEN, apply_changes, parse_overrides
from trimtab.flows.config.recipes import RECIPES, RecipeName, recipe_named
from trimtab.flows.deploy import (
    ENGINE,
    HEARTBEATS,
    JOB_TEMPLATE,
    LEFT,
    NOTICE,
    STUCK,
    _notice_of_silence,
    close_template,
    deploy,
    notices,
    serve_schema,
    set_image,
)
from trimtab.flows.rlhf import rlhf
from trimtab.flows.runs.flow import _schemas
from trimtab.tasks.events import ADVANCED

FILE = yaml.safe_load((Path(__file__).parents[2] / "prefect.yaml").read_text())
DEPLOYMENTS = {each["name"]: each for each in FILE["deployments"]}


def _schema(name: str) -> dict[str, Any]:
    flow = load_flow_from_entrypoint(DEPLOYMENTS[name]["entrypoint"], use_placeholder_flow=False)
    assert flow.name == name
    return serve_schema(parameter_schema(flow).model_dump_for_openapi())


@pytest.mark.parametrize("name", ["rlhf", "compare"])
def test_a_schema_is_made_once_and_is_its_reader_s(name: str) -> None:
    flow = load_flow_from_entrypoint(DEPLOYMENTS[name]["entrypoint"], use_placeholder_flow=False)
    count = len(_schemas)
    first = parameter_schema(flow)
    assert first == parameter_schema(flow.fn) == flow.parameters
    first.properties.clear()
    assert parameter_schema(flow) == flow.parameters != first
    assert len(_schemas) == count


@pytest.mark.slow
@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_every_deployment_names_its_flow_and_describes_every_parameter(name: str) -> None:
    schema = _schema(name)
    assert schema["properties"]
    for parameter in schema["properties"].values():
        assert parameter["description"]
    for section in schema.get("definitions", {}).values():
        for field, described in section["properties"].items():
            assert "$ref" in str(described) or described.get("description"), field


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_the_form_has_an_order_labels_of_their_own_and_folded_sections(name: str) -> None:
    schema = _schema(name)
    labels = []
    for section in [schema, *schema.get("definitions", {}).values()]:
        fields = section["properties"].values()
        places = [field["position"] for field in fields]
        assert len(set(places)) == len(places)
        labels += [field["title"] for field in fields]
        for field in fields:
            choices = field.get("anyOf", [])
            if any("$ref" in each for each in choices):
                assert (choices[0]["title"], choices[0]["properties"]) == ("as in the recipe", {})
            assert all("title" in each or "$ref" in each for each in choices), field
            assert field.get("type") != "boolean"
    assert len(set(labels)) == len(labels)
    assert schema["required"] == [
        each for each in schema["required"] if each in DEPLOYMENTS[name]["parameters"]
    ]
    if name in ("rlhf", "policy", "reward", "label-audit"):
        first = sorted(
            schema["properties"], key=lambda each: schema["properties"][each]["position"]
        )
        assert (first, schema["required"]) == (["recipe", "name", "changes"], ["recipe"])
        settings = schema["definitions"]["RunChanges"]["properties"]
        in_order = sorted(settings, key=lambda each: settings[each]["position"])
        assert in_order[: len(OFTEN)] == list(OFTEN)
        assert in_order[len(OFTEN) :] == [each for each in FIELDS if each not in OFTEN]


def test_what_is_deployed() -> None:
    whole = {"rlhf", "policy", "reward", "label-audit"}
    assert set(DEPLOYMENTS) == whole | {"rounds", "evaluate", "study", "compare"}
    limit = DEPLOYMENTS["rounds"]["concurrency_limit"]
    assert limit == {"limit": 1, "collision_strategy": "CANCEL_NEW"}
    assert {each["work_pool"]["name"] for each in DEPLOYMENTS.values()} == {"trimtab"}
    assert all("trimtab" in each["tags"] for each in DEPLOYMENTS.values())
    assert "/" not in "".join(each["entrypoint"] for each in DEPLOYMENTS.values())


def test_a_pool_of_processes_lets_a_run_choose_nothing() -> None:
    template = ProcessWorker.get_default_base_job_template()
    closed = close_template(template)
    assert closed["job_configuration"] == {
        "command": ENGINE,
        "stream_output": True,
        "env": HEARTBEATS,
    }
    assert close_template(closed) == closed
    errors = validate({"env": {"A": "B"}}, closed["variables"], preprocess=False)
    assert errors and validate({}, closed["variables"], preprocess=False) == []


def test_what_the_operator_has_given_a_pool_stays() -> None:
    template = ProcessWorker.get_default_base_job_template()
    properties = template["variables"]["properties"]
    properties["command"]["default"] = "/opt/python -m prefect.engine"
    properties["env"]["default"] = {"HF_HOME": "/srv/hub"}
    closed = close_template(template)
    assert closed["job_configuration"]["command"] == "/opt/python -m prefect.engine"
    assert closed["job_configuration"]["env"] == {**HEARTBEATS, "HF_HOME": "/srv/hub"}
    assert close_template(closed) == closed
    assert closed["variables"]["properties"] == {}


def test_an_image_is_refused_where_runs_are_processes() -> None:
    with pytest.raises(ConfigError, match="runs of a 'process' pool have no image"):
        deploy(1, "process", None, "trimtab:1")


def test_an_image_changes_nothing_else_of_a_pool() -> None:
    template = json.loads(JOB_TEMPLATE.read_text())
    changed = set_image(template, "trimtab:1")
    before, after = json.dumps(template), json.dumps(changed)
    assert after == before.replace('"trimtab:latest"', '"trimtab:1"') != before


def test_a_notice_of_what_stays_away_names_no_event_of_before() -> None:
    """The last event that came is that the run got on."""
    webhook = CallWebhook(block_document_id=uuid4(), payload=NOTICE)
    block = SendNotification(block_document_id=uuid4(), subject="{{ event.event }}", body=NOTICE)
    told = {each.name: each for each in notices(webhook)}
    (action,) = told["trimtab: tell of runs in which nothing moves"].actions
    event = {"event": ADVANCED, "resource": {"name": "smoke"}, "payload": {}}
    assert isinstance(action, CallWebhook)
    for text in (action.payload, _notice_of_silence(block, STUCK).body):  # type: ignore[union-attr]
        assert json.loads(render_user_template_sync(text, {"event": event}))["event"] == STUCK
    assert notices(None) == []


def test_a_crashed_run_that_stays_down_is_told_of() -> None:
    """Whatever follows a crash ends the wait, or begins it anew."""
    webhook = CallWebhook(block_document_id=uuid4(), payload=NOTICE)
    told = {each.name: each for each in notices(webhook)}
    left = told["trimtab: tell of crashed runs that do not go on"]
    trigger: Any = left.trigger
    assert trigger.after == {"prefect.flow-run.Crashed"}
    states = ("AwaitingRetry", "Pending", "Running", "Failed", "Cancelled", "Crashed")
    assert trigger.expect >= {f"prefect.flow-run.{each}" for each in states}
    (action,) = left.actions
    assert isinstance(action, CallWebhook)
    text = render_user_template_sync(action.payload, {"event": {"resource": {}, "payload": {}}})
    assert json.loads(text)["event"] == LEFT


def test_a_suspended_run_is_told_of_and_is_not_stuck() -> None:
    suspended = "prefect.flow-run.Suspended"
    webhook = CallWebhook(block_document_id=uuid4(), payload=NOTICE)
    told = {each.name: each.trigger for each in notices(webhook)}
    assert suspended in told["trimtab: tell of runs in which nothing moves"].expect  # type: ignore[union-attr]
    waiting: Any = told["trimtab: tell of runs that wait for a person"]
    failed: Any = told["trimtab: tell of failed runs"]
    assert waiting.expect == {suspended}
    assert waiting.match_related == failed.match_related


def test_the_form_has_all_recipes() -> None:
    assert set(RecipeName.__args__) == set(RECIPES)


@pytest.mark.slow
@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_malformed_parameters_are_refused_before_a_run_exists(name: str) -> None:
    """By the check that Prefect's API makes; what it lets pass is what a run takes."""
    schema = _schema(name)
    cases = list(malformed(schema))
    assert len(cases) > (200 if name not in ("rounds", "evaluate") else 5)
    prepared = preprocess_schema(schema)
    for path, parameters in cases:
        errors = validate(parameters, prepared, preprocess=False)
        assert errors, (path, parameters)
        assert any(_dotted(error.json_path) in path for error in errors), path


def _dotted(json_path: str) -> str:
    return json_path.replace("['", ".").replace("']", "").removeprefix("$.")


@pytest.mark.slow
def test_well_formed_parameters_are_accepted_and_run() -> None:
    parameters = {"recipe": "smoke", "changes": {"ppo": {"num_steps": 6, "score_clip": None}}}
    validate(parameters, _schema("rlhf"), raise_on_error=True)
    taken = rlhf.validate_parameters(parameters)
    config = apply_changes(recipe_named(taken["recipe"]), taken["changes"])
    assert config == apply_changes(
        recipe_named("smoke"), parse_overrides(["ppo.num_steps=6", "ppo.score_clip=null"])
    )


@pytest.mark.parametrize("name", ['x", "event": "all is well", "y": "', 'a"\n{{ 7 * 7 }}', "smoke"])
def test_a_run_s_name_is_no_more_than_a_text_of_its_notice(name: str) -> None:
    """Who starts a run chooses the name, and a program reads the notice."""
    event = {"event": "prefect.flow-run.Failed", "resource": {"name": name}, "payload": {"a": 1}}
    for found in (event, {**event, "resource": {}}):
        notice = json.loads(render_user_template_sync(NOTICE, {"event": found}))
        assert list(notice) == ["event", "resource", "occurred", "payload", "run"]
        assert notice["event"] == "prefect.flow-run.Failed"
        assert notice["resource"] == found["resource"].get("name", "")  # type: ignore[attr-defined]
        assert notice["payload"] == {"a": 1}
