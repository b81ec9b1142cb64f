"""Evaluation, comparisons, reports and studies."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import Field

from trimtab.models.config.base import (
    Count,
    Positive,
    Seed,
    StageConfig,
    Temperature,
    Tokens,
    Weight,
)
from trimtab.models.config.judge import HarmlessConfig
from trimtab.models.config.policy import DPOLoss
from trimtab.models.config.sampling import SamplingStageConfig


class EvaluateConfig(SamplingStageConfig):
    """Evaluating a policy's answers, and comparing two policies."""

    seed: Seed = 0
    """Seed of sampling and bootstrap"""
    temperature: Temperature = 0.7
    """Sampling temperature of the evaluated answers"""
    top_p: float = Field(1.0, gt=0, le=1)
    """Nucleus sampling: total probability of the tokens drawn from; 1: all tokens"""
    repetition_penalty: Positive = 1.0
    """Repetition penalty of the evaluated answers; 1: none"""
    max_new_tokens: Tokens = 24
    """Longest response in tokens"""
    num_candidates: Count = 1
    """Answers sampled per prompt, of which the scorer's best is evaluated"""
    instruction: str = ""
    """Text appended to every prompt"""
    tie_margin: Weight = 0.01
    """Score differences below this are ties"""
    num_resamples: Count = 1000
    """Bootstrap resamples"""
    has_gold: bool = False
    """Prompts come from the synthetic world"""
    annotator_sharpness: Positive = 12.0
    """Slope of the simulated annotators' Bradley-Terry model"""
    annotator_flip_share: float = Field(0.2, ge=0, lt=0.5)
    """Share of the simulated annotators' verdicts that are flipped"""
    harmless: HarmlessConfig | None = None
    """Judge that says which answers are harmless, where there is no gold scorer"""

    def _problems(self) -> Iterator[str]:
        if self.has_gold and self.harmless is not None:
            yield (
                "harmless must be none in the synthetic world, found a judge: the gold scorer says "
                "which answers are harmless"
            )


class WinMatrixConfig(StageConfig):
    """Comparing every two policies by the scores of their answers."""

    seed: Seed = 0
    """Seed of the bootstrap"""
    tie_margin: Weight = 0.01
    """Score differences below this are ties"""
    num_resamples: Count = 1000
    """Bootstrap resamples"""


class LineageEntry(StageConfig):
    """One artifact the report was made from."""

    role: str
    """Name of the input, such as `policy_full`"""
    stage: str
    """Stage that made it"""
    key: str
    """Address in the store: config, inputs and code, hashed"""
    digest: str
    """sha256 over its files"""
    seconds: float = Field(0.0, ge=0)
    """Seconds it took to make"""
    versions: dict[str, Any] = Field({})
    """Versions of the software that made it"""
    parents: dict[str, Any] = Field({})
    """Its inputs: role to stage, key and digest"""
    cached: bool = False
    """Taken from the store instead of made in this run"""


class ReportConfig(StageConfig):
    """What the report cannot learn from the artifacts."""

    title: str = "Trimtab run"
    """Heading of the page"""
    recipe: str = ""
    """Name of the recipe that was run"""
    seed: int = 0
    """Seed of the run, of the bootstrap and of the drawn samples"""
    config: dict[str, Any] = Field({})
    """The whole run's configuration"""
    lineage: tuple[LineageEntry, ...] = ()
    """Artifacts in the order of making"""
    arms: tuple[str, ...] = ()
    """Arms, in the order to show them"""
    rounds: tuple[int, ...] = ()
    """MetaRM rounds; round 1 is the arm `full`"""
    champion: str | None = None
    """Policy the run ends with (`full`, `round_2`); null if none was promoted"""
    has_gold: bool = False
    """The run is in the synthetic world, so that the gold scorer applies"""


class AuditConfig(StageConfig):
    """The label audit for a person: the page to review pairs with, and the audited set."""

    recipe: str = ""
    """Name of the recipe, for the page's heading"""
    seed: Seed = 0
    """Seed of the run, for the page's heading"""
    voters: tuple[str, ...] = ()
    """What the members are, in order; none: they are reward models"""
    num_external: int = Field(0, ge=0, le=300)
    """How many of the voters, the last ones, are the user's own"""
    judges: tuple[str, ...] = ()
    """Names of the judges, which are the last of the voters"""


class CompareConfig(StageConfig):
    """What the page of a comparison cannot learn from the artifacts."""

    recipe: str
    """The recipe whose sizes and settings the runs had"""
    seeds: tuple[int, ...] = Field(min_length=1)
    """Seeds of the runs"""
    arms: tuple[str, ...] = Field(min_length=1)
    """Arms that are compared, besides SFT"""
    num_candidates: Count = 1
    """n of the arm `best_of_n`"""
    dpo_loss: DPOLoss = "sigmoid"
    """Loss of the arm `dpo`"""
    lineage: tuple[LineageEntry, ...] = ()
    """Artifacts of the runs, roles as `<seed>.<role>`"""


class StudyConfig(StageConfig):
    """What a study cannot learn from the artifacts."""

    paper: str
    """Which paper"""
    exhibit: str
    """Which of its tables or figures"""
    scale: str
    """The recipe whose sizes and settings the runs had"""
    seeds: tuple[int, ...] = Field(min_length=1)
    """Seeds of the runs"""
    command: str = ""
    """The command that runs it again"""
    world_version: int | None = None
    """Version of the synthetic world; none: people's preferences"""
    lineage: tuple[LineageEntry, ...] = ()
    """Artifacts that the runs made"""
