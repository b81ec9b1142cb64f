"""The texts that a judge is given: rubrics and questions, as text files in this folder.

A file is a sequence of sections, each a line `== name ==` and the text below it. A rubric has the
section `criteria`, and then any number of worked examples, each with the sections of EXAMPLE.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources

EXAMPLE = ("dialogue", "response A", "response B", "thoughts", "verdict")
QUESTIONS = (
    *(
        f"{kind}{part}"
        for kind in ("compare", "score")
        for part in ("", " thoughts", " answer", " repair")
    ),
    "principle",
    "revise",
    "revise critique",
    "revise answer",
)
_HEADING = re.compile(r"== (.+) ==")


class RubricError(ValueError):
    """A rubric or a file of questions that cannot be used."""


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
    """The packaged rubric of that name. Raises RubricError."""
    return parse_rubric(_read(name), f"{name}.txt")


@cache
def load_questions() -> dict[str, str]:
    """The questions by name. Raises RubricError."""
    return parse_questions(_read("questions"), "questions.txt")


def parse_rubric(text: str, source: str) -> RubricText:
    """Check and read a rubric; `source` is its name in messages. Raises RubricError."""
    found = _sections(text, source)
    names = [name for name, _ in found]
    count = (len(found) - 1) // len(EXAMPLE)
    _check_sections(source, names, ["criteria", *EXAMPLE * count])
    texts = [body for _, body in found[1:]]
    examples = tuple(
        Example(*texts[start : start + len(EXAMPLE)])
        for start in range(0, len(texts), len(EXAMPLE))
    )
    for number, example in enumerate(examples, start=1):
        if example.verdict not in ("A", "B"):
            raise RubricError(
                f"{source}: the verdict of example {number} is {example.verdict!r}; allowed: A, B"
            )
    return RubricText(found[0][1], examples)


def parse_questions(text: str, source: str) -> dict[str, str]:
    """Check and read a file of questions. Raises RubricError."""
    found = _sections(text, source)
    _check_sections(source, [name for name, _ in found], QUESTIONS)
    return dict(found)


def _read(name: str) -> str:
    return (resources.files(__name__) / f"{name}.txt").read_text(encoding="utf-8")


def _sections(text: str, source: str) -> list[tuple[str, str]]:
    """Names and texts of the sections, in order."""
    found: list[tuple[str, list[str]]] = []
    for number, line in enumerate(text.splitlines(), start=1):
        heading = _HEADING.fullmatch(line)
        if heading:
            found.append((heading.group(1), []))
        elif found:
            found[-1][1].append(line)
        elif line.strip():
            raise RubricError(f"{source}:{number}: text before the first `== name ==`: {line!r}")
    sections = [(name, "\n".join(lines).strip()) for name, lines in found]
    for name, body in sections:
        if not body:
            raise RubricError(f"{source}: section {name!r} is empty")
    return sections


def _check_sections(source: str, found: Sequence[str], wanted: Sequence[str]) -> None:
    if list(found) != list(wanted):
        raise RubricError(
            f"{source}: found the sections {', '.join(found) or 'none'}; allowed, in this order: "
            f"{', '.join(wanted)}"
        )
