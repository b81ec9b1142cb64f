"""Configurations of the stages `win_matrix` and `compare`. Imports no torch: flows build them."""

from __future__ import annotations

from pydantic import Field

from models.config_numbers import Seed, Several, Weight
from models.config_parts import StageConfig
from models.report.config import LineageEntry


class WinMatrixConfig(StageConfig):
    """Judging every two policies on the answers that they gave."""

    seed: Seed = Field(0, description="Seed of the bootstrap")
    tie_margin: Weight = Field(0.01, description="Score differences below this are ties")
    num_resamples: Several = Field(1000, description="Bootstrap resamples")


class CompareConfig(StageConfig):
    """What the page of a comparison cannot learn from the artifacts."""

    recipe: str = Field(description="The recipe whose sizes and settings the runs had")
    seeds: tuple[int, ...] = Field(min_length=1, description="Seeds of the runs")
    arms: tuple[str, ...] = Field(min_length=1, description="Methods, beside SFT")
    num_candidates: Several = Field(1, description="n of the arm `best_of_n`")
    lineage: tuple[LineageEntry, ...] = Field(
        (), description="Artifacts of the runs, roles as `<seed>.<role>`"
    )
