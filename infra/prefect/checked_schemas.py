"""Prefect's server checks each schema of parameters once, and not at every start of a run.

Before it checks the parameters that a run is started with by the API, it checks their schema, which
came with the deployment, against JSON Schema's own. For the 200 KB of these flows that takes a
second, in which the server answers nobody else. Most of it are definitions, which the flows share.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from prefect.utilities.schema_tools import validation


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
