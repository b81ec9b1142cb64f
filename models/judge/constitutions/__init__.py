"""Constitutions: principles, one per line, by which a model criticises, revises and compares.

[CAI] Bai et al., Constitutional AI: Harmlessness from AI Feedback, arXiv 2212.08073, sections 3.1
and 4.1. The packaged ones are text files in this folder.

Deviation from [CAI]
1. The paper phrases a principle as a request for a critique or a revision, or as a question for
   comparisons. Here it is one sentence about the response, followed by a request that is the same
   for all principles (`rubrics/questions.toml`), so one list serves all three.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

PACKAGED = ("harmlessness",)
MAX_CHARACTERS = 500
COMMENT = "#"


class ConstitutionError(ValueError):
    """All problems of a constitution, one per line."""


@dataclass(frozen=True)
class Constitution:
    """Principles, at least one, all different."""

    principles: tuple[str, ...]

    def draw(self, seed: int, *texts: str) -> str:
        """A random principle, which depends on the seed and the texts alone."""
        content = "\0".join((str(seed), *texts))
        number = int.from_bytes(hashlib.sha256(content.encode(errors="replace")).digest())
        return self.principles[number % len(self.principles)]


def load_constitution(name: str, folder: Path | None) -> Constitution:
    """The packaged constitution of that name, or the one file in `folder` if it is given.

    Raises ConstitutionError.
    """
    if folder is None:
        packaged = resources.files(__name__) / f"{name}.txt"
        return parse_constitution(packaged.read_bytes(), packaged.name)
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    if len(paths) != 1:
        names = ", ".join(path.name for path in paths) or "none"
        raise ConstitutionError(f"{name}: found {len(paths)} files ({names}); allowed: one file")
    return parse_constitution(paths[0].read_bytes(), paths[0].name)


def parse_constitution(content: bytes, source: str) -> Constitution:
    """Check and read a constitution; `source` is its name in messages. Raises ConstitutionError."""
    try:
        lines = content.decode("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        number = error.object.count(b"\n", 0, error.start) + 1
        raise ConstitutionError(
            f"{source}:{number}: found the byte {error.object[error.start]:#04x}; allowed: UTF-8"
        ) from None
    principles: dict[str, int] = {}
    problems: list[str] = []
    for number, line in enumerate(map(str.strip, lines), start=1):
        if not line or line.startswith(COMMENT):
            continue
        problems += [f"{source}:{number}: {problem}" for problem in _problems(line, principles)]
        principles.setdefault(line, number)
    if not principles:
        problems.append(
            f"{source}: found no principle; allowed: at least one, on a line of its own"
        )
    if problems:
        raise ConstitutionError("\n".join(problems))
    return Constitution(tuple(principles))


def _problems(line: str, before: dict[str, int]) -> Iterator[str]:
    """The problems of a principle; `before` has the line numbers of earlier ones."""
    if len(line) > MAX_CHARACTERS:
        yield f"found {len(line)} characters; allowed: at most {MAX_CHARACTERS} a principle"
    if not line.isprintable():
        bad = next(character for character in line if not character.isprintable())
        yield f"found the character U+{ord(bad):04X}; allowed: printable text"
    if line in before:
        yield f"found the principle of line {before[line]} again; allowed: each principle once"
