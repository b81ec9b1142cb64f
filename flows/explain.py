"""A configuration's mistakes in words."""

from __future__ import annotations

import difflib
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from models.config_parts import MAY_BE_SECRET


def explain(error: ValidationError, model: type[BaseModel]) -> str:
    """One line a mistake: field, what was found, what is allowed, the nearest name."""
    lines = []
    for problem in error.errors():
        path = ".".join(str(part) for part in problem["loc"])
        if problem["type"] == "extra_forbidden":
            lines.append(_unknown(path, _fields_at(model, problem["loc"][:-1])))
        else:
            is_shown = problem["type"] != MAY_BE_SECRET
            found = f"; found {problem['input']!r}" if is_shown else ""
            lines.append(f"{path or 'configuration'}: {problem['msg']}{found}")
    return "\n".join(lines)


def _fields_at(model: Any, path: tuple[int | str, ...]) -> list[str]:
    for part in path:
        if isinstance(part, int):  # one of several
            continue
        field = model.model_fields.get(part)
        kind = None if field is None else field.annotation
        sections = [each for each in (kind, *get_args(kind)) if hasattr(each, "model_fields")]
        if not sections:
            return []
        model = sections[0]
    return list(model.model_fields)


def _unknown(path: str, known: list[str]) -> str:
    name = path.rpartition(".")[2]
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else "."
    return f"{path}: unknown field {name!r}{hint} Allowed: {', '.join(known) or 'none'}"
