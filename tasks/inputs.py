"""Inputs of a stage that may be one artifact or several."""

from __future__ import annotations

from tasks.execution import StageResult


def one_or_several(
    name: str, given: StageResult | list[StageResult] | None
) -> dict[str, StageResult]:
    """An artifact under `name`, several under `name_0`, `name_1` and so on; none under no name."""
    if given is None:
        return {}
    if isinstance(given, list):
        return {f"{name}_{index}": each for index, each in enumerate(given)}
    return {name: given}
