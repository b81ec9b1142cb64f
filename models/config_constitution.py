"""The configuration of Constitutional AI. Imports no torch, as `models.config` does not.

[CAI] Bai et al., Constitutional AI: Harmlessness from AI Feedback, arXiv 2212.08073.
"""

from __future__ import annotations

from pydantic import Field

from models.config_judge import ChatModelConfig
from models.config_numbers import Passes, Rows, Seed, Temperature, Tokens, Weight
from models.config_parts import StageConfig, TrainConfig


class ReviseConfig(StageConfig):
    """Letting a model criticise and revise a policy's answers by principles [CAI section 3.1]."""

    judge: ChatModelConfig
    constitution: str = Field(
        "harmlessness",
        min_length=1,
        description="Principles, one a line: `harmlessness`, a file, a folder or an s3:// address",
    )
    categories: tuple[str, ...] | None = Field(
        None, min_length=1, description="Prompts of which categories are answered; none: all"
    )
    max_prompts: Rows | None = Field(None, description="Prompts drawn to answer; none: all")
    num_revisions: Passes = Field(4, description="Revisions one after another [CAI: 4]")
    critique: bool = Field(
        True, description="Criticise before each revision [CAI: helps smaller models]"
    )
    policy_temperature: Temperature = Field(
        1.0, description="Sampling temperature of the policy [CAI: 1]"
    )
    max_new_tokens: Tokens = Field(24, description="Longest answer of the policy in tokens")
    max_critique_tokens: Tokens = Field(256, description="Longest critique in tokens (free)")
    max_revision_tokens: Tokens = Field(256, description="Longest revision in tokens (free)")
    prompts_at_once: Rows = Field(256, description="Prompts between two reports and checkpoints")
    seed: Seed = Field(0, description="Seed of prompts, answers, principles and gold's errors")


class ConstitutionalSFTConfig(StageConfig):
    """Supervised fine-tuning on revisions, mixed with helpful demonstrations [CAI section 3.2]."""

    seed: Seed = Field(0, description="Seed of the mixture and of data order")
    helpful_per_revision: Weight = Field(
        1.0,
        description="Demonstrations of other categories mixed in for each revision (free) [CAI: "
        "135,296 helpful prompts with two answers each to 182,831 others with four revisions]",
    )
    train: TrainConfig | None = Field(
        None, description="How it learns from the SFT policy; none: as `sft.train`"
    )


class ConstitutionConfig(StageConfig):
    """Constitutional AI's first stage: revisions, and a policy that has learned them."""

    revise: ReviseConfig
    learn: ConstitutionalSFTConfig = ConstitutionalSFTConfig()
