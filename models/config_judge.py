"""The configuration of a judge model. Imports no torch, as `models.config` does not.

[RLAIF] Lee et al., RLAIF vs. RLHF, arXiv 2309.00267.
[CAI] Bai et al., Constitutional AI: Harmlessness from AI Feedback, arXiv 2212.08073.
"""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from models.config_endpoint import EndpointConfig
from models.config_numbers import Characters, Rows, Seed, Share, Tokens
from models.config_parts import StageConfig

Rubric = Literal["helpfulness", "harmlessness", "summarisation"]


class ChatModelConfig(StageConfig):
    """Who answers. Exactly one of endpoint, local_model and gold_accuracy."""

    endpoint: EndpointConfig | None = Field(None, description="Judge behind an HTTP address")
    local_model: str | None = Field(
        None, min_length=1, description="Judge in this process: packaged model, folder or hub id"
    )
    gold_accuracy: float | None = Field(
        None,
        ge=0.5,
        le=1,
        description="Judge by the synthetic world's gold scorer, right in this share of verdicts",
    )
    temperature: float = Field(0.0, ge=0, le=2, description="Sampling temperature of its answers")
    max_characters: Characters = Field(
        6000, description="Longest dialogue, and longest response, shown to it (free)"
    )

    @model_validator(mode="after")
    def _one_judge(self) -> Self:
        given = [
            name
            for name in ("endpoint", "local_model", "gold_accuracy")
            if getattr(self, name) is not None
        ]
        if len(given) != 1:
            raise ValueError(
                "exactly one of endpoint, local_model and gold_accuracy must be given, found "
                f"{' and '.join(given) or 'none'}"
            )
        return self


class JudgeConfig(ChatModelConfig):
    """Who judges, and how it is asked. Exactly one of endpoint, local_model and gold_accuracy."""

    rubric: Rubric = Field("helpfulness", description="What the judge is to look at")
    constitution: str | None = Field(
        None,
        min_length=1,
        description="Principles, of which one drawn at random decides each comparison: "
        "`harmlessness`, a file, a folder or an s3:// address; none: the rubric alone",
    )
    num_examples: int = Field(
        0, ge=0, le=8, description="Worked comparisons shown first [RLAIF: 0-8]"
    )
    chain_of_thought: bool = Field(
        False, description="Let it write its thoughts before it answers [RLAIF: helps]"
    )
    num_samples: int = Field(
        1,
        gt=0,
        le=1000,
        description="Answers whose mean counts (self-consistency) [RLAIF: 1 is best]",
    )
    top_logprobs: int = Field(
        20,
        ge=0,
        le=20,
        description="Most likely tokens to read a verdict's probability from; 0: by its text alone",
    )
    min_mass: float = Field(
        0.1,
        ge=0,
        lt=1,
        description="Least probability of all labels together for tokens to count (free)",
    )
    max_answer_tokens: int = Field(
        16, gt=1, le=1_048_576, description="Longest answer in tokens (free)"
    )
    max_thought_tokens: Tokens = Field(256, description="Longest thoughts in tokens (free)")
    clamp: tuple[Share, Share] | None = Field(
        None,
        description="Bounds of a pair's preference [CAI: .4, .6 with chain_of_thought], if any",
    )

    @model_validator(mode="after")
    def _samples_differ(self) -> Self:
        if self.num_samples > 1 and self.temperature == 0:
            raise ValueError(
                f"num_samples is {self.num_samples} at temperature 0, where all samples are "
                "equal: raise temperature, or set num_samples to 1"
            )
        if self.num_samples > 1 and self.top_logprobs and not self.chain_of_thought:
            raise ValueError(
                f"num_samples is {self.num_samples}, but without chain_of_thought all samples "
                "have the same token probabilities: set chain_of_thought, or top_logprobs to 0"
            )
        return self

    @model_validator(mode="after")
    def _clamp_is_around_a_half(self) -> Self:
        if self.clamp is not None and not 0 <= self.clamp[0] <= 0.5 <= self.clamp[1] <= 1:
            raise ValueError(
                f"clamp must be two bounds with 0 <= low <= 0.5 <= high <= 1, found {self.clamp}"
            )
        return self


def rating(judge: JudgeConfig | None) -> JudgeConfig | None:
    """A judge of single responses; ValueError where it has settings of comparisons."""
    for name in ("constitution", "clamp", "num_examples"):
        if judge is not None and getattr(judge, name):
            raise ValueError(
                f"{name} is {getattr(judge, name)!r}, but this judge rates single responses and "
                f"{name} is about comparisons of two: leave it out"
            )
    return judge


class JudgePreferencesConfig(StageConfig):
    """Letting a judge model compare the answers of preference pairs [RLAIF section 2.1]."""

    judge: JudgeConfig
    splits: tuple[Literal["train", "validation", "test"], ...] = Field(
        ("train",), min_length=1, description="Pairs of which splits are judged"
    )
    categories: tuple[str, ...] | None = Field(
        None, min_length=1, description="Pairs of which categories are judged; none: all"
    )
    max_pairs: Rows | None = Field(None, description="Pairs of each split; none: all")
    pairs_at_once: Rows = Field(256, description="Pairs between two reports and checkpoints")
    seed: Seed = Field(0, description="Seed of sampled answers and of gold's errors")


class HarmlessConfig(StageConfig):
    """Who tells whether answers to requests for harm are harmless [RLAIF section 2.3]."""

    judge: JudgeConfig
    categories: tuple[str, ...] = Field(
        min_length=1, description="Categories of prompts that ask for harm"
    )

    _rates = field_validator("judge")(rating)

    @model_validator(mode="after")
    def _looks_for_harm(self) -> Self:
        if self.judge.rubric != "harmlessness":
            raise ValueError(
                f"judge.rubric must be harmlessness, found {self.judge.rubric}: it is asked "
                "whether answers do harm"
            )
        return self


class AILabelsConfig(StageConfig):
    """A judge's preferences as the labels of the training pairs that it was asked of, the others
    keeping people's [RLAIF section 2.1]."""

    soft: bool = Field(
        True, description="Labels are the judge's probabilities [RLAIF]; else its choice, certain"
    )
