"""Runs that share their stages: what one has submitted, another gets the same future of."""

from __future__ import annotations

import inspect
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel

from flows.run import Future, Run

# How a stage is shown and how many cores it gets: no part of what it makes.
_MANNER = {"label", "place", "by_ranks", "is_patient"}


@dataclass
class SharedRun(Run):
    """A run that submits a stage only if none of those with the same `made` has.

    The store would find it done, too; so the timeline shows it once, and nobody waits for a lock.
    """

    made: dict[Hashable, Future] = field(default_factory=dict)

    def submit(self, task: Any, *arguments: Any, **keywords: Any) -> Future:
        """Hand a stage's task to Prefect, or return the future of one like it."""
        wait_for = keywords.pop("wait_for", ())
        given = inspect.signature(task.fn).bind(*arguments, **keywords).arguments
        decides = {name: _identity(v) for name, v in given.items() if name not in _MANNER}
        key = (task.name, frozenset(decides.items()))
        if key not in self.made:
            self.made[key] = super().submit(task, *arguments, wait_for=wait_for, **keywords)
        return self.made[key]


def _identity(value: Any) -> Hashable:
    """Configurations by what they say, futures by which they are."""
    if isinstance(value, BaseModel):
        return type(value).__name__, value.model_dump_json()
    if isinstance(value, list | tuple):
        return tuple(map(_identity, value))
    return id(value)
