"""Prefect's server of the stack: bodies have a size, and who starts a run says no more of it than
what it is to do.

By itself Prefect makes a run in whatever state the body names, with a message of its own, such as
one that was Completed with a verdict and never ran, and its tags may say what a run says of itself.
A name or a tag that the database cannot keep ends in a 500 or 503.

    uvicorn --factory trimtab.infra.prefect.app:create_app

Whoever may use the rest of the API, as everybody may who has the login, can set states and tags by
other requests, which runs need as well (docs/reference/threat-model.md).
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from hmac import compare_digest
from importlib import import_module
from typing import Any

from trimtab.infra.asgi import (
    BODY_SECONDS,
    App,
    Message,
    Receive,
    Send,
    read_login,
    read_request,
    refuse,
    replay_request,
)

# Kinds of tags that a run gives itself: `verdict:better`.
RUN_TAGS = ("recipe", "data", "commit", "verdict")

# What makes runs: of a deployment, several of it, and of a flow.
CREATES = re.compile(r".*/(deployments/[^/]+/create_flow_run(/bulk)?|flow_runs)/?")
MAX_CREATED = 1 << 20  # bytes of a body that makes runs: parameters are rendered and validated
MAX_BODY = 16 << 20  # of all others; clients send logs in batches of up to 4 MB
MAX_TEXT = 250  # characters
MAX_TAGS = 100
MAX_RETRIES = 20  # of a run that has failed, by Prefect and at once, whatever it failed of
_TEXTS = ("name", "idempotency_key", "work_queue_name", "work_pool_name", "flow_version")
# How a run may begin: Prefect's client, pages and engine ask for no other states.
_BEGINNINGS = ("SCHEDULED", "PENDING")


def create_app() -> App:
    """Prefect's API and pages behind the checks."""
    from prefect.server.api.server import create_app as create_prefect
    from prefect.settings import get_current_settings

    check_schemas_once()
    secret = get_current_settings().server.api.auth_string
    return add_checks(create_prefect(), None if secret is None else secret.get_secret_value())


def check_schemas_once() -> None:
    """Have Prefect check a definition of a schema of parameters the first time it comes only.

    It would check all of a schema four times as a deployment is made, and at every run that is
    started: for Trimtab's 0.6 s, in which it answers nobody. Flows have most definitions in common.
    """
    from prefect.utilities.schema_tools import validation

    jsonschema: Any = import_module("jsonschema")  # without type stubs
    for validator in (jsonschema.Draft202012Validator, validation._VALIDATOR):
        validator.check_schema = _check_parts_once(validator.check_schema)


def _check_parts_once(check: Callable[[Any], None]) -> Callable[..., None]:
    """`check` of a schema without its definitions, and of each of these, unless it has passed."""

    @lru_cache(maxsize=1024)
    def check_text(schema: str) -> None:
        check(json.loads(schema))

    def check_parts(schema: Any, **_: Any) -> None:
        parts = [schema]
        if isinstance(schema, dict) and isinstance(schema.get("definitions"), dict):
            parts = [{**schema, "definitions": {}}, *schema["definitions"].values()]
        for part in parts:
            check_text(json.dumps(part))

    return check_parts


def add_checks(app: App, login: str | None = None) -> App:
    """An ASGI application that answers as Prefect's does, but refuses such bodies.

    login: `name:password`. The body of a request with another login is not read.
    """

    async def answer(scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in ("GET", "HEAD", "OPTIONS"):
            await app(scope, receive, send)
            return
        if login and not compare_digest(login.encode(), (read_login(scope) or "").encode()):
            await _refuse(send, 401, "Log in with PREFECT_API_AUTH_STRING.")
            return
        creates = scope["method"] == "POST" and CREATES.fullmatch(scope["path"])
        limit = MAX_CREATED if creates else MAX_BODY
        request = await read_request(receive, limit)
        if request is None:
            large = f"the body is larger than {limit} bytes, or took more than {BODY_SECONDS:.0f} s"
            await _refuse(send, 413, large)
        elif creates and (fault := find_fault(request.get("body", b""))):
            await _refuse(send, 422, fault)
        else:
            await app(scope, replay_request(request, receive), send)

    return answer


async def _refuse(send: Send, status: int, fault: str) -> None:
    """As Prefect says it, whose client and pages show the detail."""
    text = json.dumps({"detail": fault})
    await refuse(send, status, text, {"Content-Type": "application/json"})


def find_fault(body: bytes) -> str | None:
    """The first fault of a body that makes one run or several, in words; None without one.

    Prefect then checks the rest.
    """
    try:
        value = json.loads(body, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        return f"the body is no JSON: {error}"
    for text in _texts(value):
        if "\0" in text or any("\ud800" <= letter <= "\udfff" for letter in text):
            return f"found {text[:40]!r}; a text may hold neither NUL nor half a surrogate pair"
    runs = value if isinstance(value, list) else [value]
    return next((fault for run in runs if isinstance(run, dict) for fault in _faults(run)), None)


def _refuse_constant(name: str) -> None:
    """Python reads NaN and Infinity, and Prefect fails as it answers with them."""
    raise ValueError(f"found {name}")


def _texts(content: Any) -> Iterator[str]:
    """All texts of a JSON value."""
    waiting = [content]
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict):
            waiting += [*value.keys(), *value.values()]
        elif isinstance(value, list):
            waiting += value


def _faults(run: Mapping[str, Any]) -> Iterator[str]:
    for field in _TEXTS:
        value = run.get(field)
        if isinstance(value, str) and (len(value) > MAX_TEXT or not value.isprintable()):
            yield (
                f"{field}: found {value[:40]!r} of {len(value)} characters, allowed are up to "
                f"{MAX_TEXT}, without control characters"
            )
    tags = run.get("tags")
    if isinstance(tags, list):
        yield from _faults_of_tags([str(tag) for tag in tags])
    if isinstance(run.get("empirical_policy"), dict):
        yield from _faults_of_policy(run["empirical_policy"])
    if isinstance(run.get("state"), dict):
        yield from _faults_of_state(run["state"])


def _faults_of_tags(tags: list[str]) -> Iterator[str]:
    if len(tags) > MAX_TAGS:
        yield f"tags: found {len(tags)}, allowed are up to {MAX_TAGS}"
    for tag in tags:
        kind, colon, _ = unicodedata.normalize("NFKC", tag).partition(":")
        if len(tag) > MAX_TEXT or not tag.isprintable():
            yield f"tags: found {tag[:40]!r}, allowed are {MAX_TEXT} characters that can be seen"
        if colon and kind.strip().casefold() in RUN_TAGS:
            yield f"tags: found {tag!r}; a run gives itself tags that begin with {kind.strip()}:"


def _faults_of_policy(policy: Mapping[str, Any]) -> Iterator[str]:
    for name, value in policy.items():
        if name in ("retries", "max_retries"):
            if value is not None and not (type(value) is int and 0 <= value <= MAX_RETRIES):
                yield f"empirical_policy.{name}: found {value!r}, allowed: 0 to {MAX_RETRIES}"
        elif value and name not in ("retry_delay", "retry_delay_seconds"):
            yield f"empirical_policy.{name}: found {value!r}; a run says it of itself"


def _faults_of_state(state: Mapping[str, Any]) -> Iterator[str]:
    kind, details = state.get("type"), state.get("state_details") or {}
    if kind not in _BEGINNINGS:
        yield f"state.type: found {kind!r}, a run begins as {' or '.join(_BEGINNINGS)}"
    elif state.get("name") not in (None, "", kind, kind.capitalize()):
        yield f"state.name: found {state['name']!r}, allowed for {kind}: {kind.capitalize()}"
    if state.get("data"):
        yield "state.data: found a result, and the run has not run"
    for name, value in details.items() if isinstance(details, dict) else ():
        if value and name != "scheduled_time":
            yield f"state.state_details.{name}: found {value!r}, allowed: scheduled_time"
