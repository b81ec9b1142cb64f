"""Errors that end a command with one line: mistakes (exit status 2), known failures (1)."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class ConfigError(ValueError):
    """A wrong configuration or command: what was found, and what is allowed."""


class CommandError(RuntimeError):
    """A valid command that failed. Only its message is shown, without a traceback."""


def unknown_name(kind: str, name: str, known: Iterable[str]) -> str:
    """The message about an unknown name, with the nearest known name and all known names."""
    names = list(known)
    near = difflib.get_close_matches(name, names, n=1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    return f"unknown {kind} {name!r}{hint}; known: {', '.join(names)}"
