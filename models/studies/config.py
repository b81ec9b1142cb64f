"""Configuration of the stage `study`. Imports no torch: flows and tasks build it."""

from __future__ import annotations

from pydantic import Field

from models.config_parts import StageConfig
from models.report.config import LineageEntry
from models.studies.exhibit import ExhibitName, Paper


class StudyConfig(StageConfig):
    """What a study cannot learn from the artifacts."""

    paper: Paper = Field(description="Which paper")
    exhibit: ExhibitName = Field(description="Which of its tables or figures")
    scale: str = Field(description="The recipe whose sizes and settings the runs had")
    seeds: tuple[int, ...] = Field(min_length=1, description="Seeds of the runs")
    command: str = Field("", description="The command that runs it again")
    lineage: tuple[LineageEntry, ...] = Field((), description="Artifacts that the runs made")
