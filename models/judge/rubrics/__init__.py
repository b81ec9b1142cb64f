"""The texts that a judge is given: rubrics and questions, as TOML files in this folder.

A rubric has `criteria`, and worked `examples` with the fields of `Example`.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any


@dataclass(frozen=True)
class Example:
    """A worked example; `verdict` names the better response, A or B."""

    dialogue: str
    first: str
    second: str
    thoughts: str
    verdict: str


@dataclass(frozen=True)
class RubricText:
    """The criteria of a good response, and worked comparisons."""

    criteria: str
    examples: tuple[Example, ...]


@cache
def load_rubric(name: str) -> RubricText:
    """The packaged rubric of that name."""
    rubric = _read(name)
    examples = tuple(Example(**example) for example in rubric["examples"])
    return RubricText(rubric["criteria"], examples)


@cache
def load_questions() -> dict[str, str]:
    """The questions by name."""
    return _read("questions")


def _read(name: str) -> dict[str, Any]:
    return tomllib.loads((resources.files(__name__) / f"{name}.toml").read_text(encoding="utf-8"))
