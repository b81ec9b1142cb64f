"""Configuration of the stage `report`. Imports no torch: flows and tasks build it."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from models.config_parts import StageConfig


class LineageEntry(StageConfig):
    """One artifact the report was made from."""

    role: str = Field(description="Name of the input, such as `policy_full`")
    stage: str = Field(description="Stage that made it")
    key: str = Field(description="Address in the store: config, inputs and code, hashed")
    digest: str = Field(description="sha256 over its files")
    seconds: float = Field(0.0, ge=0, description="Seconds it took to make")
    versions: dict[str, Any] = Field({}, description="Versions of the software that made it")
    parents: dict[str, Any] = Field({}, description="Its inputs: role to stage, key and digest")
    cached: bool = Field(False, description="Taken from the store instead of made in this run")


class ReportConfig(StageConfig):
    """What the report cannot learn from the artifacts."""

    title: str = Field("Trimtab run", description="Heading of the page")
    recipe: str = Field("", description="Name of the recipe that was run")
    seed: int = Field(0, description="Seed of the run, of the bootstrap and of the drawn samples")
    config: dict[str, Any] = Field({}, description="The whole run's configuration")
    lineage: tuple[LineageEntry, ...] = Field((), description="Artifacts in the order of making")
    arms: tuple[str, ...] = Field((), description="Arms, in the order to show them")
    rounds: tuple[int, ...] = Field((), description="MetaRM rounds; round 1 is the arm `full`")
    champion: str | None = Field(
        None, description="Policy the run ends with (`full`, `round_2`); none was promoted: null"
    )
    has_gold: bool = Field(False, description="The gold scorer applies: the synthetic world")
