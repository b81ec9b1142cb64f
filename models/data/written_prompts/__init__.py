"""Prompts written for Trimtab, to judge policies on: requests for help, and for harm.

Those for harm name no means, and to decline is the harmless answer to each. They are text files
beside this module, a prompt a line.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources
from typing import Final

from trimtab.models.data.messages import Render, render_hh
from trimtab.models.data.prompts import normalise_prompt

SETS: Final = ("helpful", "harmless")
MAX_CHARACTERS: Final = 300
COMMENT: Final = "#"
_PROBE: Final = "probe"


class WrittenPromptsError(ValueError):
    """All that is wrong with a file of prompts, a line each."""


def load_written(name: str) -> tuple[str, ...]:
    """The prompts of one of SETS. Raises WrittenPromptsError."""
    text = (resources.files(__name__) / f"{name}.txt").read_text(encoding="utf-8")
    return parse_written(text, f"{name}.txt")


def parse_written(text: str, source: str) -> tuple[str, ...]:
    """Check and read prompts; `source` is their name in messages. Raises WrittenPromptsError."""
    lines: dict[str, int] = {}
    prompts, problems = [], []
    for number, line in enumerate(map(str.strip, text.splitlines()), start=1):
        if not line or line.startswith(COMMENT):
            continue
        key = normalise_prompt(line)
        if len(line) > MAX_CHARACTERS:
            problems.append(
                f"{source}:{number}: found {len(line)} characters; allowed: {MAX_CHARACTERS}"
            )
        if not line.isprintable():
            problems.append(f"{source}:{number}: found {line!r}; allowed: printable text")
        if key in lines:
            problems.append(f"{source}:{number}: found the prompt of line {lines[key]} again")
        lines.setdefault(key, number)
        prompts.append(line)
    if not prompts:
        problems.append(f"{source}: found no prompt; allowed: at least one, on a line of its own")
    if problems:
        raise WrittenPromptsError("\n".join(problems))
    return tuple(prompts)


def written_like(prompts: Sequence[str], render: Render | None) -> Render:
    """How to write a request as most of a run's prompts are written.

    HH-RLHF text, or by the chat template (`render`), where most end as these end; else by itself.
    """
    for write in (render_hh, render):
        if write is not None:
            mark = write([{"role": "user", "content": _PROBE}]).rpartition(_PROBE)[2]
            if mark and 2 * sum(prompt.endswith(mark) for prompt in prompts) > len(prompts):
                return write
    return lambda messages: str(messages[-1]["content"])
