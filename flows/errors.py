"""What ends a command with a line: mistakes (exit status 2) and known failures (1)."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class ConfigError(ValueError):
    """A configuration or command that cannot be run: what was found, and what is allowed."""


class CommandError(RuntimeError):
    """A command that failed, though what was asked for is right: its message is all there is."""


def unknown_name(kind: str, name: str, known: Iterable[str]) -> str:
    """The message about a name that is not known: the nearest one that is, and all of them."""
    names = list(known)
    near = difflib.get_close_matches(name, names, n=1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    return f"unknown {kind} {name!r}{hint}; known: {', '.join(names)}"
