"""Prefect's server checks the parameters of every run that is made from a deployment.

A body with `enforce_parameter_schema: false` would skip the check: a process would start, only for
the run to fail (`trimtab.flows.flow`), and who asked for it would not be told.

It checks each schema once, and not at every start of a run: each time it would check the schema,
which came with the deployment, against JSON Schema's own. For the 200 KB of these flows that takes
a second, in which the server answers nobody else. Most of it are definitions, which the flows
share.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from prefect.server.schemas.actions import DeploymentFlowRunCreate
from prefect.utilities.schema_tools import validation


def check_parameters_always() -> None:
    """Have this process follow the deployment's setting, which a run's body cannot override."""
    body: Any = DeploymentFlowRunCreate
    body.enforce_parameter_schema = property(lambda _: None)  # "as the deployment says"


def check_schemas_once() -> None:
    """Have this process remember which schemas, and which of their definitions, it found good."""
    kind: Any = validation._VALIDATOR
    check, good = kind.check_schema, set()

    def check_once(schema: Any, *arguments: Any, **keywords: Any) -> None:
        for part in _parts(schema):
            digest = hashlib.sha256(json.dumps(part).encode()).digest()
            if digest not in good:
                check(part, *arguments, **keywords)
                good.add(digest)

    kind.check_schema = check_once


def _parts(schema: Any) -> list[Any]:
    """Schemas that are good if and only if this one is: its definitions, and the rest."""
    definitions = schema.get("definitions") if isinstance(schema, dict) else None
    if not isinstance(definitions, dict):
        return [schema]
    rest = {name: value for name, value in schema.items() if name != "definitions"}
    return [*definitions.values(), rest]
