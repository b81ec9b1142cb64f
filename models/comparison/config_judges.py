"""Configuration of the stage `judge_answers`. Imports no torch: flows build it."""

from __future__ import annotations

from pydantic import Field, field_validator

from models.config_judge import JudgeConfig
from models.config_numbers import Rows, Seed
from models.config_parts import StageConfig

NAME = r"^[a-z0-9]([a-z0-9_.-]*[a-z0-9])?$"


class JudgeAnswersConfig(StageConfig):
    """Letting a judge model compare what every two policies answered to the same prompts."""

    name: str = Field(
        max_length=40,
        pattern=NAME,
        description="What its verdicts are called: small letters, digits, `_`, `.` and `-`",
    )
    judge: JudgeConfig
    sets: tuple[str, ...] | None = Field(
        None, min_length=1, description="Sets of prompts it judges; none: all but `validation`"
    )
    categories: tuple[str, ...] | None = Field(
        None, min_length=1, description="Prompts of which categories it judges; none: all"
    )
    max_prompts: Rows | None = Field(
        None, description="Prompts of each set and seed, the first ones; none: all"
    )
    pairs_at_once: Rows = Field(256, description="Pairs between two reports and checkpoints")
    seed: Seed = Field(0, description="Seed of sampled answers, of principles, of gold's errors")

    @field_validator("name")
    @classmethod
    def _is_its_own(cls, value: str) -> str:
        if value == "gold" or value.startswith("judge_"):
            raise ValueError(
                f"must be neither gold nor begin with judge_, found {value}: so are the gold "
                "scorer and the held-out reward models called"
            )
        return value
