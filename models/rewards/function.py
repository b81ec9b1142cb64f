"""A reward that is a Python function of the user's: `package.module:function`.

It is called `function(prompts, responses)` with two lists of text, and by keyword with the columns
of the prompts that it names, `category`, `messages` and those of `preferences.prompt_columns`, each
a list with None where a row has no such value. A function that takes `**columns` is given all. It
returns a number for each answer, and is called in the trainer's process, by the first rank alone.

One with a parameter `responses` or `completions` is given both by their names, and prompts only if
it takes them. `completions` are TRL's: where all prompts came as messages, both are lists of these.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from trimtab.models.judge.addresses import is_confined
from trimtab.models.rewards.checks import RewardError, checked_scores

NUM_TEXTS = 2  # prompts and responses, the first two parameters
PROMPTS, RESPONSES, COMPLETIONS = "prompts", "responses", "completions"


class RewardFunction:
    """A function, and the columns that it takes."""

    def __init__(self, name: str, label: str) -> None:
        """name: `package.module:function`; label: what errors call it.

        A module in the current folder is found after all others, and not where a worker's operator
        says what a run may read. Raises RewardError for what cannot be imported or called so.
        """
        self._label = label
        self._function = _load(name, label)
        parameters = list(inspect.signature(self._function).parameters.values())
        kinds = inspect.Parameter
        by_name = (kinds.POSITIONAL_OR_KEYWORD, kinds.KEYWORD_ONLY)
        named = [p for p in parameters if p.kind in by_name]
        answers = {RESPONSES, COMPLETIONS} & {p.name for p in named}
        self._answers = min(answers, default=None)
        if not answers:
            texts, named = parameters[:NUM_TEXTS], [p for p in parameters[NUM_TEXTS:] if p in named]
            positional = (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD)
            if sum(p.kind in positional for p in texts) != NUM_TEXTS:
                raise RewardError(
                    f"{label}: found the parameters {inspect.signature(self._function)}; allowed: "
                    "prompts and responses first, or one called completions, and names of columns"
                )
        self._takes_all = any(p.kind is kinds.VAR_KEYWORD for p in parameters)
        self._takes_prompts = self._takes_all or any(p.name == PROMPTS for p in named)
        texts_of = {PROMPTS, *answers}
        self._columns = {p.name: p.default is kinds.empty for p in named if p.name not in texts_of}

    def scores(self, rows: Sequence[Mapping[str, Any]], responses: Sequence[str]) -> list[float]:
        """The score of each row's prompt with its response, in one call.

        Raises RewardError for a column that it needs and no row has, where the function raises, and
        where it returns other than a finite number for each.
        """
        given = [{**row, **row.get("columns", {})} for row in rows]
        known = {name for row in given for name in row} - {"prompt", "columns"}
        if missing := [n for n, is_needed in self._columns.items() if is_needed and n not in known]:
            raise RewardError(
                f"{self._label}: found the parameter {missing[0]}; allowed beside prompts and "
                f"{self._answers or RESPONSES}: columns of the prompts "
                f"({', '.join(sorted(known)) or 'none'}), to which preferences.prompt_columns adds "
                "your own, and parameters with a default"
            )
        wanted = known if self._takes_all else known & self._columns.keys()
        columns = {name: [row.get(name) for row in given] for name in sorted(wanted)}
        prompts: Sequence[Any] = [row["prompt"] for row in rows]
        answers: Sequence[Any] = list(responses)
        talks = sum(bool(row.get("messages")) for row in rows)
        if self._answers == COMPLETIONS and talks:
            if talks < len(rows):
                raise RewardError(
                    f"{self._label}: found {talks} of {len(rows)} prompts as messages; allowed "
                    "with a parameter completions: all of them, or none (responses are texts)"
                )
            prompts = [row["messages"] for row in rows]
            answers = [[{"role": "assistant", "content": text}] for text in responses]
        try:
            if self._answers is None:
                values = self._function(prompts, answers, **columns)
            else:
                given_prompts = {PROMPTS: prompts} if self._takes_prompts else {}
                values = self._function(**given_prompts, **{self._answers: answers}, **columns)
            if inspect.iscoroutine(values):
                values = asyncio.run(values)
            if self._answers == COMPLETIONS:
                values = _numbers_of(values)
        except Exception as error:
            raise RewardError(f"{self._label} raised {type(error).__name__}: {error}") from error
        return checked_scores(self._label, values, len(responses))


def _numbers_of(values: Any) -> Any:
    """Right and wrong as 1 and 0, as TRL's tensor of them is."""
    values = values.tolist() if hasattr(values, "tolist") else values
    if not isinstance(values, list | tuple):
        return values
    return [float(value) if isinstance(value, bool) else value for value in values]


def _load(name: str, label: str) -> Callable[..., Any]:
    module, _, attribute = name.partition(":")
    if not is_confined() and os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        function = getattr(importlib.import_module(module), attribute)
    except Exception as error:  # of the user's module, whatever it does when it is imported
        raise RewardError(
            f"{label} cannot be imported: {type(error).__name__}: {error}; allowed: "
            "package.module:function of an installed package, of PYTHONPATH or of the current "
            "folder"
        ) from error
    if not inspect.isroutine(function) or inspect.isbuiltin(function):
        raise RewardError(f"{label}: found {type(function).__name__}; allowed: a Python function")
    return function
