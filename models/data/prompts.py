"""When two prompts belong together: what splits and folds must not put on two sides."""

from __future__ import annotations

from collections.abc import Iterable


def normalise_prompt(prompt: str) -> str:
    """Return what two prompts that only differ in case and white space have in common."""
    return " ".join(prompt.casefold().split())


def first_turn(prompt: str) -> str:
    """Return a dialogue up to its first answer (HH-RLHF text), else the whole prompt.

    Taken from the normalised prompt, so that equal prompts have equal first turns.
    """
    return normalise_prompt(prompt).partition(" assistant:")[0]


def cluster_ids(prompts: Iterable[str]) -> list[int]:
    """Return a number for each prompt, from 0, equal where prompts have the same first turn."""
    ids: dict[str, int] = {}
    return [ids.setdefault(first_turn(prompt), len(ids)) for prompt in prompts]
